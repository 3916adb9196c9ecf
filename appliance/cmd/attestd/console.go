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
		Short: "Print a link to the operator's console, valid once",
		Long: `Print a link to the operator's console. The first person who opens it, within a minute, is signed in for half
an hour.

A viewer sees the state of the appliance, but no addresses. An auditor also sees and verifies the journal. An
operator also creates and revokes API keys, within five minutes of opening a link.

The console is off until console.listen is set, for example to 127.0.0.1:9465, and attestd is restarted
(docs/console.md).`,
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
	cmd.Flags().StringVar(&role, "role", console.Operator.String(),
		"role of the signed-in person: "+strings.Join(roles, ", "))
	must(cmd.RegisterFlagCompletionFunc("role", cobra.FixedCompletions(roles, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}
