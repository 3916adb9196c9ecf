package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/attestd/attestd/appliance/stop"
)

func newPause(a *app) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "pause --reason REASON",
		Short: "Stop attesting until 'attestd resume'",
		Long: `Stop attesting until 'attestd resume', also over restarts. When the command returns, nothing is recorded any more: requests for
attestations are answered 503 with the code "paused" and a Retry-After, and GET /readyz says so, too. What was attested can still be
read back, and the GraphQL API goes on. With a database (store.url), all appliances that share it stop.

While no daemon runs, the next one starts paused. Clients are not told the reason; 'attestd health', 'attestd doctor' and the journal are.`,
		Example: "  attestd pause --reason 'contract upgrade of 3 November'\n  attestd resume",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if reason == "" {
				return usagef(cmd, "--reason is required: who finds attesting paused should know why")
			}
			return a.withBackend(cmd, func(o backend) error {
				state, err := o.Pause(cmd.Context(), reason)
				if err != nil {
					return fmt.Errorf("pause: %w", err)
				}
				return a.print(state, func(w io.Writer) {
					fmt.Fprintln(w, "Attesting is paused. To go on: attestd resume")
				})
			})
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why attesting is paused; it is recorded (required)")
	return cmd
}

func newResume(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "resume",
		Short: "Let attesting go on after 'attestd pause' or a halt",
		Long: `Let attesting go on after 'attestd pause', or after the watchtower has halted it (chain.halt). Redemptions for which it was halted
are taken as cleared up: they do not halt it again, others do. The output says what was ended.`,
		Example: "  attestd resume",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withBackend(cmd, func(o backend) error {
				ended, err := o.Resume(cmd.Context())
				if err != nil {
					return fmt.Errorf("resume: %w", err)
				}
				return a.print(ended, func(w io.Writer) { writeEnded(w, ended) })
			})
		},
	}
}

func writeEnded(w io.Writer, ended stop.State) {
	if p := ended.Paused; p != nil {
		fmt.Fprintf(w, "Ended the pause of %s by %s: %s\n", p.Time.Format(time.RFC3339), p.By, p.Reason)
	}
	if h := ended.Halted; h != nil {
		fmt.Fprintf(w, "Ended the halt of %s: %s\nThese do not halt again: %s\n", h.Time.Format(time.RFC3339), h.Reason, strings.Join(h.Redemptions, ", "))
	}
	if ended.Paused == nil && ended.Halted == nil {
		fmt.Fprintln(w, "Attesting was not stopped.")
	}
}
