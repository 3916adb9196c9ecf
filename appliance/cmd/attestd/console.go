package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/api/console"
)

func newConsole(a *app) *cobra.Command {
	var role string
	roles := console.Roles()
	cmd := &cobra.Command{
		Use:   "console",
		Short: "Print a link into the operator's console, good once",
		Long: `Print a link into the operator's console. Whoever opens it first, within a minute, is signed in for half an hour.

A viewer sees how the appliance is, and not who was attested to whom. An auditor sees the journal, too, and verifies it. An
operator makes and revokes API keys, which takes a link that was opened within the last five minutes.

The console is off until console.listen is set, such as 127.0.0.1:9465, and attestd is restarted (docs/console.md).`,
		Example: "  attestd console\n  attestd console --role viewer",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains(roles, role) {
				return usagef(cmd, "--role must be %s, not %q", strings.Join(roles, ", "), role)
			}
			c, err := a.config(nil)
			if err != nil {
				return err
			}
			daemon := client.NewAdmin(c.Admin.Socket)
			defer func() { _ = daemon.Close() }()
			link, err := daemon.ConsoleLink(cmd.Context(), role)
			if err != nil {
				return fmt.Errorf("console: %w", err)
			}
			return a.print(link, func(w io.Writer) { fmt.Fprintln(w, link.URL) })
		},
	}
	cmd.Flags().StringVar(&role, "role", console.Operator.String(), "what whoever opens it may do: "+strings.Join(roles, ", "))
	must(cmd.RegisterFlagCompletionFunc("role", cobra.FixedCompletions(roles, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}
