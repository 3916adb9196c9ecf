package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/text"
)

func newLogRotateKey(a *app) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "rotate-key --reason REASON",
		Short: "Continue as a new log with a new log key, for example after the old key was stolen",
		Long: `Create a new log key, and continue the journal as a new log signed by it. Stop attestd first. A holder of the
old key can sign checkpoints of the old log only. If journal.key names a key in an HSM, that key signs the new
log; otherwise the new key is in log.key.

The new log's first leaf records the old log, the time, the reason and the operator. All records follow
unchanged. The old key stays in data_dir as a retired key, and does not sign again. With a database, stop all
appliances, run the command once on any of them, and copy the new key to the others: run attestd setup
--bundle here; there, move log.key away and run attestd setup --join.

Give the new verifier key, and the reason, to everyone who pinned the old one or has a policy with it.`,
		Example: `  systemctl stop attestd
  attestd log rotate-key --reason 'a backup of 3 November, with its passphrase, was stolen'
  systemctl start attestd`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if reason == "" {
				return usagef(cmd, "--reason is required: the new log's first leaf records it")
			}
			return a.rotateLogKey(cmd, reason)
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "reason for the new log key, which the log records (required)")
	return cmd
}

func (a *app) rotateLogKey(cmd *cobra.Command, reason string) error {
	c, err := a.config(nil)
	if err != nil {
		return err
	}
	if err := refuseWhileRunning(cmd.Context(), c, "rotate-key"); err != nil {
		return err
	}
	update, end := a.progress("copy", unitRecords)
	next, err := daemon.RotateLogKey(cmd.Context(), c, archive.ContinueOptions{
		Reason: reason, By: operator(), Now: time.Now(), Progress: update,
	})
	end()
	if err != nil {
		return interrupted(cmd.Context(), fmt.Errorf("rotate-key: %w", err),
			"the old journal is in place; run the same command again")
	}
	return a.print(struct {
		OK          bool   `json:"ok"`
		Origin      string `json:"origin"`
		VerifierKey string `json:"verifierKey"`
		Records     int64  `json:"records"`
		MovedAside  string `json:"movedAside,omitempty"`
	}{true, next.Key.Verifier.Name(), next.Key.VerifierText, next.Head.Tree.N, next.Aside}, func(w io.Writer) {
		fmt.Fprintf(w, "%s records continue as a new log:\n", text.Count(next.Head.Tree.N-1))
		printLog(w, next.Key.Verifier.Name(), next.Key.VerifierText)
		if next.Aside != "" {
			fmt.Fprintf(w, "The old journal is now %s.\n", next.Aside)
		}
	})
}
