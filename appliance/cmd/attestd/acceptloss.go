package main

import (
	"fmt"
	"io"
	"os"
	"os/user"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/text"
)

func newLogAcceptLoss(a *app) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "accept-loss --reason REASON",
		Short: "Continue as a new log after the journal has lost published records",
		Long: `Continue after the journal has lost published records for good: a database lost its newest records, or only an
older copy is left. Stop attestd first. With a database, run the command once, on any appliance: the others
follow.

The journal continues as a new log with a new name and a new key, so that the old name never stands for two
histories. The new log's first leaf records the old log, its highest published checkpoint, the remaining
records, the reason, the time and the operator. All remaining records follow unchanged. The old journal and
the old log key, now retired, stay in data_dir.

Give the new verifier key, and the reason, to everyone who pinned the old one. If the command is interrupted,
run it again: either the old or the new journal is in place.`,
		Example: `  systemctl stop attestd
  attestd log accept-loss --reason 'disk of 3 November lost, restored from its snapshot'
  systemctl start attestd`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if reason == "" {
				return usagef(cmd, "--reason is required: the new log's first leaf records it")
			}
			return a.acceptLoss(cmd, reason)
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "reason for accepting the loss, which the log records (required)")
	return cmd
}

func (a *app) acceptLoss(cmd *cobra.Command, reason string) error {
	c, err := a.config(nil)
	if err != nil {
		return err
	}
	if err := refuseWhileRunning(cmd.Context(), c, "accept-loss"); err != nil {
		return err
	}
	update, end := a.progress("copy", unitRecords)
	next, loss, err := daemon.AcceptLoss(cmd.Context(), c, archive.ContinueOptions{
		Reason: reason, By: operator(), Now: time.Now(), Progress: update,
	})
	end()
	if err != nil {
		return interrupted(cmd.Context(), fmt.Errorf("accept-loss: %w", err),
			"the old journal is in place; run the same command again")
	}
	return a.print(struct {
		OK          bool   `json:"ok"`
		Origin      string `json:"origin"`
		VerifierKey string `json:"verifierKey"`
		Records     int64  `json:"records"`
		MovedAside  string `json:"movedAside,omitempty"`
		Lost        string `json:"lost"`
	}{true, next.Key.Verifier.Name(), next.Key.VerifierText, next.Head.Tree.N, next.Aside, loss.Why},
		func(w io.Writer) {
			fmt.Fprintf(w, "%s records remain, and continue as a new log:\n", text.Count(next.Head.Tree.N-1))
			printLog(w, next.Key.Verifier.Name(), next.Key.VerifierText)
			if next.Aside != "" {
				fmt.Fprintf(w, "The old journal is now %s.\n", next.Aside)
			}
		})
}

// printLog shows the name and the verifier key of a new log, which the operator must pass on.
func printLog(w io.Writer, origin, verifierKey string) {
	fields(w, [][2]string{{"  origin", origin}, {"  verifier key", verifierKey}})
	fmt.Fprintln(w,
		"Give the new verifier key to all auditors with the old one, which no longer signs. The first leaf has the reason: attestd log list --events")
}

// operator names the user of this command for the log's auditors. Under sudo, it names the invoking user, too.
func operator() string {
	uid := os.Getuid()
	name := fmt.Sprintf("uid %d", uid)
	if u, err := user.Current(); err == nil {
		name = fmt.Sprintf("%s (uid %d)", u.Username, uid)
	}
	if sudo := os.Getenv("SUDO_USER"); sudo != "" && os.Getenv("SUDO_UID") != strconv.Itoa(uid) {
		name = fmt.Sprintf("%s, through sudo by %s (uid %s)", name, sudo, os.Getenv("SUDO_UID"))
	}
	return strings.ToValidUTF8(name, "?")
}
