package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/daemon"
)

// watchInterval is the interval between two polls of --watch.
const watchInterval = time.Second

func newStatus(a *app) *cobra.Command {
	watch := false
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show whether the appliance signs, and the state of its parts",
		Long: `Show in the first line whether the appliance signs, and below the state of the HSM, the journal, the replica
and the machine. The exit status is 0 if it signs, and 1 if not; the output then shows the command to run
next. The command asks the daemon; if no daemon runs, it says so and shows the state of the files.

--watch updates every second until q or Ctrl-C. On a terminal it redraws the screen; otherwise it writes one
line per update, or one JSON object with --output json.`,
		Example: "  attestd status\n  attestd status --watch\n  attestd status --output json | jq .signing",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.config(nil)
			if err != nil {
				return err
			}
			admin := client.NewAdmin(c.Admin.Socket)
			defer func() { _ = admin.Close() }()
			if watch {
				return a.watchStatus(cmd.Context(), c, admin)
			}
			g, err := glanceAt(cmd.Context(), c, admin)
			if err != nil {
				return fmt.Errorf("status: %w", err)
			}
			if unset := daemon.RequireSetup(&a.source, c); g.files != nil && unset != nil {
				g.files.Signing.Why, g.files.Signing.Remedy = "attestd is not set up on this machine", "attestd setup"
			}
			err = a.print(g.document(), func(w io.Writer) { g.write(w, time.Now()) })
			if err == nil && g.signing().State != wire.SigningReady {
				err = silentFailure{}
			}
			return err
		},
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "update every second")
	return cmd
}

// glance is the status of an appliance.
type glance struct {
	status *wire.Status // nil while no daemon runs
	files  *filesGlance // nil while a daemon runs
}

// glanceAt asks the daemon, or reads the files if none runs. An error means that a daemon may run but does not answer.
func glanceAt(ctx context.Context, c *config.Config, admin *client.Admin) (glance, error) {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	status, err := admin.Status(ctx)
	if errors.Is(err, client.ErrNotRunning) {
		return glance{files: readFiles(ctx, c, time.Now())}, nil
	}
	return glance{status: &status}, err
}

func (g glance) signing() wire.Signing {
	if g.status == nil {
		return g.files.Signing
	}
	return g.status.Signing
}

// document is the value that --output json shows.
func (g glance) document() any {
	if g.status != nil {
		return g.status
	}
	return g.files
}

// watchStatus polls until the user interrupts it. If the daemon does not answer, it keeps polling.
func (a *app) watchStatus(ctx context.Context, c *config.Config, admin *client.Admin) error {
	var s *screen
	var quit chan struct{}
	if !a.json() {
		if s = a.openScreen(); s != nil {
			defer s.close()
			quit = s.quit
		}
	}
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	for {
		g, err := glanceAt(ctx, c, admin)
		if ctx.Err() == nil {
			if err := a.showGlance(s, g, err); err != nil {
				return err
			}
		}
		select {
		case <-tick.C:
		case <-quit:
			return s.ended()
		case <-ctx.Done():
			return errInterrupted()
		}
	}
}

// errInterrupted ends a command that has neither kept nor lost work.
func errInterrupted() error { return interruptedError{errors.New("interrupted")} }

// ended returns nil if q closed the screen. In raw mode, Ctrl-C is a key; elsewhere it is a signal.
func (s *screen) ended() error {
	if s.key.Load() == keyQuit {
		return nil
	}
	return errInterrupted()
}

func (a *app) showGlance(s *screen, g glance, failed error) error {
	now := time.Now()
	switch {
	case s != nil:
		var b strings.Builder
		width, _ := s.size()
		p := &page{w: &b, columns: width, colours: a.colours(a.out)}
		if failed == nil {
			g.write(p, now)
		} else {
			paragraph(p, red, failed.Error())
		}
		s.draw(b.String())
		return nil
	case failed != nil:
		a.say("%v", failed)
		return nil
	case a.json():
		return json.NewEncoder(a.out).Encode(g.document())
	}
	_, err := fmt.Fprintln(a.out, g.line(now))
	return err
}
