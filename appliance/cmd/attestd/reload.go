package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/daemon"
)

func newReload(a *app) *cobra.Command {
	var confirmed daemon.Confirmed
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Reload the configuration of the running daemon",
		Long: `Make the running daemon reload its configuration, and wait for the result. The TLS files, the screening list
and these values take effect at once, for new connections and requests:

` + "  " + strings.Join(config.Reloadable(), "\n  ") + `

The output lists other changed settings, which need a restart. An invalid configuration is refused as a whole: the old one stays,
and the exit status is 1. SIGHUP does the same, but reports only to the log.

A policy or a screening list that is empty, or has fewer than half of its previous entries, is refused, also at a start.
--allow-empty and --allow-shorter confirm the current file. If no daemon runs, the next start uses it.`,
		Example: "  attestd reload\n  attestd reload --allow-shorter\n  systemctl reload attestd",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if confirmed != (daemon.Confirmed{}) {
				if err := a.confirmRules(confirmed); err != nil {
					return fmt.Errorf("reload: %w", err)
				}
			}
			needRestart, err := a.reloadDaemon(cmd.Context())
			if errors.Is(err, client.ErrNotRunning) && confirmed != (daemon.Confirmed{}) {
				return a.print(map[string]any{"ok": true}, func(w io.Writer) {
					fmt.Fprintln(w,
						"attestd is not running; its next start accepts the current policy and screening list.")
				})
			}
			if err != nil {
				return fmt.Errorf("reload: %w", err)
			}
			return a.print(map[string]any{"ok": true, "needRestart": needRestart}, func(w io.Writer) {
				fmt.Fprintln(w, "The configuration is reloaded.")
				if len(needRestart) > 0 {
					fmt.Fprintf(w, "These changed settings need a restart (systemctl restart attestd): %s\n",
						strings.Join(needRestart, ", "))
				}
			})
		},
	}
	cmd.Flags().BoolVar(&confirmed.Empty, "allow-empty", false, "accept a policy or a screening list without entries")
	cmd.Flags().BoolVar(&confirmed.Shorter, "allow-shorter", false,
		"accept one with fewer than half of its previous entries")
	return cmd
}

func (a *app) confirmRules(confirmed daemon.Confirmed) error {
	c, err := a.config(nil)
	if err != nil {
		return err
	}
	return daemon.ConfirmRules(c, confirmed)
}

// reloadDaemon asks the daemon to reload even if the configuration is invalid, so that the daemon refuses it and logs
// why.
func (a *app) reloadDaemon(ctx context.Context) (needRestart []string, err error) {
	c, wrong := a.config(nil)
	if c == nil { // the socket is not known; the default is likely to be right
		if c, err = a.source.LoadFile(os.DevNull, nil); err != nil {
			return nil, wrong
		}
	}
	admin := client.NewAdmin(c.Admin.Socket)
	needRestart, err = admin.Reload(ctx)
	if errors.Is(err, client.ErrNotRunning) && wrong != nil {
		err = wrong
	}
	return needRestart, errors.Join(err, admin.Close())
}
