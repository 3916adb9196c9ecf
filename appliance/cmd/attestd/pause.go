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
		Long: `Stop attesting until 'attestd resume', even across restarts. Once the command returns, no attestation is
recorded: requests for attestations get status 503 with the code "paused" and a Retry-After, and GET /readyz
reports the pause. Existing attestations can still be read, and the GraphQL API is not affected. With a
database (store.url), all appliances that share it stop.

If no daemon runs, the next one starts paused. 'attestd health', 'attestd doctor' and the journal show the
reason; clients do not see it.`,
		Example: "  attestd pause --reason 'contract upgrade of 3 November'\n  attestd resume",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if reason == "" {
				return usagef(cmd, "--reason is required: other operators see it while attesting is paused")
			}
			return a.withBackend(cmd, func(o backend) error {
				state, err := o.Pause(cmd.Context(), reason)
				if err != nil {
					return fmt.Errorf("pause: %w", err)
				}
				return a.print(state, func(w io.Writer) {
					fmt.Fprintln(w, "Attesting is paused. To resume: attestd resume")
				})
			})
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "reason for the pause, which the journal records (required)")
	return cmd
}

func newResume(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "resume",
		Short: "Resume attesting after 'attestd pause' or a halt",
		Long: `Resume attesting after 'attestd pause', or after the watchtower has halted it (chain.halt). The redemptions
that caused the halt count as resolved: they do not halt attesting again, others do. The output shows the
pause or halt that ended.`,
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
		fmt.Fprintf(w, "Ended the halt of %s: %s\nThese redemptions do not halt attesting again: %s\n",
			h.Time.Format(time.RFC3339), h.Reason, strings.Join(h.Redemptions, ", "))
	}
	if ended.Paused == nil && ended.Halted == nil {
		fmt.Fprintln(w, "Attesting was neither paused nor halted.")
	}
}
