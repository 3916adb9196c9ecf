package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/daemon"
)

func newLogRotateKey(a *app) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "rotate-key --reason REASON",
		Short: "Go on as a new log with a new log key, such as after the old key was stolen",
		Long: `Make a new log key, and go on as another log that it signs, while attestd is stopped. Whoever has the old key can sign
checkpoints of the old log, and nothing of the new one: the new key does not follow from the old one. If journal.key names a
key in an HSM, that is the new log's key. Otherwise it is a new one in log.key.

The new log's first leaf says from which log it goes on, when, why and who; all records follow with their bytes unchanged.
The old key stays in data_dir as a retired one, and signs nothing again there. With a database, run it once, on any
appliance, while all are stopped, and bring the new key to the others: attestd setup --bundle here, and there, once log.key is moved
away, attestd setup --join.

Who pinned the old verifier key, or a policy that names it, must be told the new one, and why.`,
		Example: `  systemctl stop attestd
  attestd log rotate-key --reason 'a backup of 3 November, with its passphrase, was stolen'
  systemctl start attestd`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if reason == "" {
				return usagef(cmd, "--reason is required: it is recorded in the new log's first leaf")
			}
			return a.rotateLogKey(cmd, reason)
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why the log key is replaced; it is recorded (required)")
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
		return interrupted(cmd.Context(), fmt.Errorf("rotate-key: %w", err), "the old journal is in place; the same command begins again")
	}
	return a.print(struct {
		OK          bool   `json:"ok"`
		Origin      string `json:"origin"`
		VerifierKey string `json:"verifierKey"`
		Records     int64  `json:"records"`
		MovedAside  string `json:"movedAside,omitempty"`
	}{true, next.Key.Verifier.Name(), next.Key.VerifierText, next.Head.Tree.N, next.Aside}, func(w io.Writer) {
		fmt.Fprintf(w, "%d records go on as another log:\n", next.Head.Tree.N-1)
		printLog(w, next.Key.Verifier.Name(), next.Key.VerifierText)
		if next.Aside != "" {
			fmt.Fprintf(w, "What was there is now %s.\n", next.Aside)
		}
	})
}
