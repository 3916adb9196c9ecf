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
)

func newReload(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "reload",
		Short: "Have the running daemon load its configuration again",
		Long: `Have the running daemon load its configuration again, and wait until it has. The TLS files, the screening list, and these
values, take effect at once, for new connections and requests:

` + "  " + strings.Join(config.Reloadable(), "\n  ") + `

What else changed is named, and takes a restart. A configuration with a fault is refused as a whole: the old one stays,
and the exit status is 1. SIGHUP does the same, and tells only the log.`,
		Example: "  attestd reload\n  systemctl reload attestd",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			needRestart, err := a.reloadDaemon(cmd.Context())
			if err != nil {
				return fmt.Errorf("reload: %w", err)
			}
			return a.print(map[string]any{"ok": true, "needRestart": needRestart}, func(w io.Writer) {
				fmt.Fprintln(w, "The configuration is loaded.")
				if len(needRestart) > 0 {
					fmt.Fprintf(w, "These changed, and take a restart: %s\n", strings.Join(needRestart, ", "))
				}
			})
		},
	}
}

// reloadDaemon asks the daemon also where the configuration is wrong: it refuses it itself, and its log tells.
func (a *app) reloadDaemon(ctx context.Context) (needRestart []string, err error) {
	c, wrong := a.config(nil)
	if c == nil { // not even the socket is known; what the file does not set is likely to be right
		if c, err = a.source.LoadFile(os.DevNull, nil); err != nil {
			return nil, wrong
		}
	}
	daemon := client.NewAdmin(c.Admin.Socket)
	needRestart, err = daemon.Reload(ctx)
	if errors.Is(err, client.ErrNotRunning) && wrong != nil {
		err = wrong
	}
	return needRestart, errors.Join(err, daemon.Close())
}
