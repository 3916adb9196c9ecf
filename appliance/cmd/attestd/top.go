package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance/text"
)

// topSeconds is the time span of the view, which is as far back as the daemon keeps samples.
const topSeconds = 15 * 60

func newTop(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "top",
		Short: "Show live activity of the daemon: rates, latency, errors, API keys",
		Long: `Show live activity of the daemon: attestations, reads and errors per second, latency of attestations, sessions
of the HSM, and the API keys that attest most. Rates over one and 15 minutes are averages; latencies are those
of the worst second. The daemon keeps 15 minutes, so the view is complete at once. It fills the terminal: a
sparkline has one column for each of the last seconds.

Press q or Ctrl-C to quit. If the output is not a terminal, each second is a line; with --output json, a JSON
object.`,
		Example: "  attestd top\n  attestd top --output json | jq -c '[.time, .attestations, .p99Seconds]'",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.config(nil)
			if err != nil {
				return err
			}
			admin := client.NewAdmin(c.Admin.Socket)
			defer func() { _ = admin.Close() }()
			if err := a.top(cmd.Context(), admin); err != nil {
				return fmt.Errorf("top: %w", err)
			}
			return nil
		},
	}
}

func (a *app) top(ctx context.Context, admin *client.Admin) error {
	if _, err := admin.Status(ctx); err != nil { // before the terminal switches to raw mode
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var s *screen
	if !a.json() {
		s = a.openScreen()
	}
	if s == nil {
		return a.sampleLines(ctx, admin)
	}
	defer s.close()
	go func() {
		select {
		case <-s.quit:
			cancel()
		case <-ctx.Done():
		}
	}()
	v := topView{admin: admin, screen: s, colours: a.colours(a.out)}
	v.run(ctx)
	return s.ended()
}

// sampleLines writes each new sample on a line.
func (a *app) sampleLines(ctx context.Context, admin *client.Admin) error {
	return followSamples(ctx, admin, 0, func(one wire.Sample) error {
		if a.json() {
			return json.NewEncoder(a.out).Encode(one)
		}
		_, err := fmt.Fprintf(a.out, "%s  %d attestations  median %s  p99 %s  %d errors  %d reads  %d sessions\n",
			text.Time(one.Time),
			one.Attestations, milliseconds(one.P50Seconds), milliseconds(one.P99Seconds), errorsOf(one), one.Reads,
			one.InUse)
		return err
	}, func(err error) { a.say("Waiting for the daemon, which does not answer: %v", err) })
}

// followSamples yields samples until ctx ends or yield fails. If the daemon stops, it waits until the daemon is back.
func followSamples(ctx context.Context, admin *client.Admin, seconds int, yield func(wire.Sample) error,
	away func(error)) error {
	for told := false; ; {
		var failed error
		err := admin.Activity(ctx, seconds, true, func(one wire.Sample) error {
			told = false
			failed = yield(one)
			return failed
		})
		switch {
		case ctx.Err() != nil:
			return errInterrupted()
		case failed != nil:
			return failed
		case !told:
			told = true
			if err == nil {
				err = errors.New("it ended")
			}
			away(err)
		}
		seconds = 0
		select {
		case <-time.After(watchInterval):
		case <-ctx.Done():
		}
	}
}

func errorsOf(one wire.Sample) (n int64) {
	for _, count := range one.Errors {
		n += count
	}
	return n
}

// milliseconds formats a latency; nil is a dash.
func milliseconds(seconds *float64) string {
	if seconds == nil {
		return "-"
	}
	return fmt.Sprintf("%.1fms", *seconds*1000)
}
