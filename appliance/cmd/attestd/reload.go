package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/attestd/attestd/api"
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

// reload reads the configuration again and takes over what a running daemon can. It returns the names of values that
// changed but take a restart. After an error nothing has changed.
func (r *running) reload() (needRestart []string, err error) {
	r.reloading.Lock()
	defer r.reloading.Unlock()
	// Type=notify knows RELOADING=1 too, and takes it for what it is; READY=1 must follow, whatever comes out.
	r.notify(fmt.Sprintf("%s\nMONOTONIC_USEC=%d", daemon.SdNotifyReloading, monotonicMicroseconds()))
	defer r.notify(daemon.SdNotifyReady)
	needRestart, err = r.reloadConfig()
	if err != nil {
		r.logger.Error("reload: the configuration is refused, and the old one stays", "error", err.Error())
		return nil, err
	}
	r.logger.Info("reload: the configuration is loaded", "need_restart", needRestart)
	return needRestart, nil
}

func (r *running) reloadConfig() (needRestart []string, err error) {
	if r.options.load == nil {
		return nil, errors.New("this daemon does not load its configuration again")
	}
	next, err := r.options.load()
	if err != nil {
		return nil, err
	}
	if err := checkReferences(next); err != nil {
		return nil, err
	}
	// All that can fail comes first, so that a configuration is taken over whole or not at all.
	adoptTLS, err := r.prepareTLS(next)
	if err != nil {
		return nil, err
	}
	screened, err := readScreening(next)
	if err != nil {
		return nil, err
	}
	adoptTLS()
	r.attestor.Screen(screened)
	if r.options.level != nil {
		r.options.level.Set(next.Level())
	}
	r.public.SetRates(next.Limits.DefaultRate, next.Limits.AnonymousRate)
	return r.changedOtherwise(next), nil
}

// prepareTLS loads the files that next names, and returns what makes the server use them. Turning TLS on or off takes a
// restart.
func (r *running) prepareTLS(next *config.Config) (adopt func(), err error) {
	files := next.Server.TLS
	if r.certificates == nil || files.Cert == "" {
		return func() {}, nil
	}
	loaded, err := api.LoadCertificates(files.Cert, files.Key, files.ClientCA)
	if err != nil {
		return nil, fmt.Errorf("server.tls: %w", err)
	}
	return func() { r.certificates.Replace(loaded) }, nil
}

// changedOtherwise returns the names of values that are not those with which the daemon runs.
func (r *running) changedOtherwise(next *config.Config) (names []string) {
	tlsToggled := (r.certificates == nil) != (next.Server.TLS.Cert == "")
	for _, name := range r.config.Differing(next) {
		live := slices.Contains(config.Reloadable(), name)
		if tlsToggled && strings.HasPrefix(name, "server.tls.") {
			live = false
		}
		if !live {
			names = append(names, name)
		}
	}
	return names
}

// monotonicMicroseconds is CLOCK_MONOTONIC, by which systemd tells this reload from an earlier one (sd_notify(3)).
func monotonicMicroseconds() int64 {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) != nil {
		return 0
	}
	return time.Duration(now.Nano()).Microseconds()
}
