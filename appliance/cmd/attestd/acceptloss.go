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
)

func newLogAcceptLoss(a *app) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "accept-loss --reason REASON",
		Short: "Go on after the journal lost what was published: as a new log",
		Long: `Go on after the journal lost records that were published, when they are gone for good: a database lost its tail, or an
older copy is all there is. While attestd is stopped; with a database, run it once, on any appliance: the others follow.

The journal goes on as another log, with a name and a key of its own, so that nothing signs a second history under the
old name. Its first leaf says from which log, the highest checkpoint that was published, what is left of it, why, when
and who; all records that are left follow with their bytes unchanged. The old journal stays in data_dir, and so does
the old log's key, as a retired one.

Who pinned the old verifier key must be told the new one, and why. A kill leaves the old journal or the new one: the
same command goes on.`,
		Example: `  systemctl stop attestd
  attestd log accept-loss --reason 'disk of 3 November lost, restored from its snapshot'
  systemctl start attestd`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if reason == "" {
				return usagef(cmd, "--reason is required: it is recorded in the new log's first leaf")
			}
			return a.acceptLoss(cmd, reason)
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why the loss is accepted; it is recorded (required)")
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
		return interrupted(cmd.Context(), fmt.Errorf("accept-loss: %w", err), "the old journal is in place; the same command begins again")
	}
	return a.print(struct {
		OK          bool   `json:"ok"`
		Origin      string `json:"origin"`
		VerifierKey string `json:"verifierKey"`
		Records     int64  `json:"records"`
		MovedAside  string `json:"movedAside,omitempty"`
		Lost        string `json:"lost"`
	}{true, next.Key.Verifier.Name(), next.Key.VerifierText, next.Head.Tree.N, next.Aside, loss.Why}, func(w io.Writer) {
		fmt.Fprintf(w, "%d records are left, and go on as another log:\n", next.Head.Tree.N-1)
		printLog(w, next.Key.Verifier.Name(), next.Key.VerifierText)
		if next.Aside != "" {
			fmt.Fprintf(w, "What was there is now %s.\n", next.Aside)
		}
	})
}

// printLog shows the name and the verifier key of a new log, which the operator must pass on.
func printLog(w io.Writer, origin, verifierKey string) {
	fields(w, [][2]string{{"  origin", origin}, {"  verifier key", verifierKey}})
	fmt.Fprintln(w, "Tell the verifier key to all who pinned the old one: it signs nothing any more. The first leaf says why (attestd log list --events).")
}

// operator names the user of this command for the log's auditors. Under sudo, it names the invoking user, too.
func operator() string {
	uid := os.Getuid()
	name := fmt.Sprintf("uid %d", uid)
	if u, err := user.Current(); err == nil {
		name = fmt.Sprintf("%s (uid %d)", u.Username, uid)
	}
	if sudo := os.Getenv("SUDO_USER"); sudo != "" && os.Getenv("SUDO_UID") != strconv.Itoa(uid) {
		name = fmt.Sprintf("%s, by sudo of %s (uid %s)", name, sudo, os.Getenv("SUDO_UID"))
	}
	return strings.ToValidUTF8(name, "?")
}
