package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/follower"
	"github.com/attestd/attestd/appliance/text"
)

// syncGiveUp is how long 'attestd replica sync' retries a failing upstream. The daemon never gives up.
const syncGiveUp = 2 * time.Minute

func newReplicaSync(a *app) *cobra.Command {
	var address string
	cmd := &cobra.Command{
		Use:   "sync",
		Short: "Synchronise the replica with its upstream, once",
		Long: fmt.Sprintf(`Bring the replica in step with its upstream: read what it has and the replica has not, the newest first, and end when
all is here. The upstream is graphql.upstream, or what --upstream names: another than the configured one is sent none of
graphql.upstream_headers.

It can be interrupted at any time, by a crash too: the same command goes on where it was. An upstream that fails is asked
again, at growing intervals, until it has failed for %s.

While the daemon runs, which follows graphql.upstream by itself, this has it look at once, and shows its progress until it
is in step.`, syncGiveUp),
		Example: `  attestd replica sync
  attestd replica sync --upstream https://attestd.example.com/v1/graphql
  attestd replica sync --output json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.configFor(address)
			if err != nil {
				return err
			}
			backend, err := a.openReplica(cmd.Context(), c)
			if err != nil {
				return err
			}
			return errors.Join(a.sync(cmd, backend, address), backend.Close())
		},
	}
	cmd.Flags().StringVar(&address, "upstream", "",
		"address of the GraphQL endpoint to read; overrides graphql.upstream")
	return cmd
}

// configFor replaces graphql.upstream, unless address is empty. The configured headers may be secret, so they are not
// sent to another upstream.
func (a *app) configFor(address string) (*config.Config, error) {
	if address == "" {
		return a.config(nil)
	}
	configured, err := a.config(nil)
	if err != nil {
		return nil, err
	}
	c, err := a.config(map[string]any{"graphql.upstream": address})
	if err == nil && c.GraphQL.Upstream != configured.GraphQL.Upstream {
		c.GraphQL.UpstreamHeaders = nil
	}
	return c, err
}

func (a *app) sync(cmd *cobra.Command, backend replicaBackend, address string) error {
	file, isFile := backend.(offlineReplica)
	switch {
	case !isFile && address != "":
		return usagef(cmd, "the daemon is running and follows graphql.upstream: omit --upstream, or stop attestd first")
	case !isFile:
		return a.syncDaemon(cmd.Context(), backend.(*client.Admin))
	case file.config.GraphQL.Upstream == "":
		return errors.New("no upstream: set graphql.upstream, or give --upstream URL")
	}
	return a.syncFile(cmd.Context(), file)
}

// syncFile follows the upstream in this process until the replica is in step.
func (a *app) syncFile(ctx context.Context, file offlineReplica) error {
	upstream, err := file.upstream()
	if err != nil {
		return err
	}
	o := daemon.FollowerOptions(file.config, file.replica, upstream, nil)
	if file.config.GraphQL.Verify == config.VerifyChain {
		if o.Chains, err = daemon.OpenVerifier(file.config, version()); err != nil {
			return err
		}
	}
	o.GiveUp = syncGiveUp
	f := follower.New(o)
	began, end := time.Now(), a.watchSync(f.Status)
	err = f.Sync(ctx)
	end()
	status := f.Status()
	if err != nil {
		if ctx.Err() == nil {
			a.say("%d rows are written; run the same command again to continue.", status.Written)
		}
		return interrupted(ctx, err, "%d rows are written; run the same command again to continue", status.Written)
	}
	return a.printSynced(status, time.Since(began))
}

// watchSync shows the progress of a follower in this process until end is called.
func (a *app) watchSync(status func() follower.Status) (end func()) {
	show, endBar := a.syncProgress()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(syncLook)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				show(status())
			}
		}
	}()
	return func() {
		close(stop)
		<-stopped
		endBar()
	}
}

// syncLook is the interval between two polls of the progress.
const syncLook = 200 * time.Millisecond

// syncProgress draws a bar on a terminal, and prints a line when the upstream begins to fail.
func (a *app) syncProgress() (show func(follower.Status), end func()) {
	update, end := a.progress("sync", unitRows)
	failing := false
	return func(s follower.Status) {
		if all := text.Rows(s); all.Upstream > 0 {
			update(int64(all.Here), int64(max(all.Here, all.Upstream)))
		}
		if s.Failing && !failing {
			a.say("%s; retrying.", text.OneLine(s.LastError))
		}
		failing = s.Failing
	}, end
}

// syncDaemon waits until the daemon has everything that the upstream had when the command began.
func (a *app) syncDaemon(ctx context.Context, daemon *client.Admin) error {
	began := time.Now()
	before, err := daemon.SyncReplica(ctx)
	if err != nil {
		return err
	}
	show, end := a.syncProgress()
	status, err := waitInStep(ctx, daemon, *before.Follower, began, show)
	end()
	if err != nil {
		return interrupted(ctx, err, "the daemon continues; see: attestd replica status")
	}
	status.Written -= before.Follower.Written
	return a.printSynced(status, time.Since(began))
}

func waitInStep(ctx context.Context, daemon *client.Admin, s follower.Status, began time.Time,
	show func(follower.Status)) (follower.Status, error) {
	tick := time.NewTicker(syncLook)
	defer tick.Stop()
	working := began // time of the last poll without a failure
	for s.Backfilled.IsZero() || s.InStep.Before(began) {
		show(s)
		if !s.Failing {
			working = time.Now()
		}
		if time.Since(working) > syncGiveUp {
			return s,
				fmt.Errorf(
					"the upstream has not answered for %s; the daemon keeps retrying. Check graphql.upstream and the network: %s", syncGiveUp, text.OneLine(s.LastError))
		}
		select {
		case <-ctx.Done():
			return s, ctx.Err()
		case <-tick.C:
		}
		status, err := daemon.ReplicaStatus(ctx)
		if err != nil {
			return s, err
		}
		if status.Follower == nil {
			return s, errors.New("the daemon was restarted without graphql.upstream, and no longer follows it")
		}
		s = *status.Follower
	}
	return s, nil
}

// synced is the result of 'attestd replica sync'. Written counts the rows that were written while the command ran.
type synced struct {
	follower.Status
	Seconds   float64 `json:"seconds"`
	PerSecond float64 `json:"perSecond"` // rows written
}

func (a *app) printSynced(s follower.Status, took time.Duration) error {
	result := synced{s, took.Seconds(), float64(s.Written) / took.Seconds()}
	return a.print(result, func(w io.Writer) {
		fmt.Fprintf(w, "Synchronised with %s: %s packets and %s transfers. %s rows written in %s, %s per second.\n",
			s.Upstream,
			text.Count(s.Rows[index.PacketType.Name].Here), text.Count(s.Rows[index.TransferType.Name].Here),
			text.Count(s.Written), took.Round(time.Millisecond), text.Decimal(result.PerSecond, 0))
		if len(s.Missing) > 0 {
			fmt.Fprintf(w, "These fields are null, because the upstream's schema lacks them: %s.\n",
				text.OneLine(strings.Join(s.Missing, ", ")))
		}
		if s.Waiting > 0 {
			fmt.Fprintf(w, "%s rows wait for a check against their chain. %s\n", text.Count(s.Waiting), text.OneLine(s.ChainError))
		}
		if s.Unverified > s.Waiting {
			fmt.Fprintf(w, "%s rows fail verification and are quarantined. To list them: attestd replica verify\n",
				text.Count(s.Unverified-s.Waiting))
		}
	})
}

// followerFields are the fields of a follower in 'attestd replica status'.
func followerFields(s follower.Status, running bool) [][2]string {
	if !running {
		return [][2]string{{"upstream", s.Upstream}, {"follower", "not running, because the daemon is not running"},
			{"in step", text.Age(s.InStep)}}
	}
	readBack := [2]string{"backfilled", text.Age(s.Backfilled)}
	if s.Backfilled.IsZero() {
		readBack = [2]string{"read back to", text.Time(s.Oldest)}
	}
	lastError := ""
	if s.LastError != "" {
		lastError = fmt.Sprintf("%s: %s", text.Age(s.LastErrorAt), text.OneLine(s.LastError))
	}
	return [][2]string{
		{"upstream", s.Upstream},
		{"follower", text.Follower(s)},
		{"lag", text.Lag(s)},
		readBack,
		{"unfinished", nonZero(s.Unfinished)},
		{"waiting", nonZero(s.Waiting)},
		{"chain error", text.OneLine(s.ChainError)},
		{"missing fields", text.OneLine(strings.Join(s.Missing, ", "))},
		{"last error", lastError},
	}
}

// nonZero formats a number for fields. It returns an empty text for 0.
func nonZero[N int | uint64](n N) string {
	if n == 0 {
		return ""
	}
	return text.Count(n)
}

func newReplicaVerify(a *app) *cobra.Command {
	var sample int
	var chain chainRange
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Compare the replica with its upstream or with a chain, and list differences",
		Long: `Compare the replica with graphql.upstream: all counts; all chains, tokens, channels, clients and connections;
and random packets and transfers. List the differences, and the quarantined rows, which fail verification.
Exit status 1 if there is a fault.

Packets in transit that the upstream has just updated count as behind; that is not a fault.

With --chain, check instead each packet that was sent on that chain against the chain's nodes (indexer.chains), and
name each packet that the chain does not know. An interrupted check continues with the same command.`,
		Example: `  attestd replica verify
  attestd replica verify --chain ethereum.1 --from 22236429
  attestd replica verify --sample 100000
  attestd replica verify --output json | jq '.unverified[]'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if sample <= 0 {
				return usagef(cmd, "--sample must be more than zero")
			}
			if err := chain.check(cmd); err != nil {
				return err
			}
			return a.withReplica(cmd, func(o replicaBackend) error {
				if chain.chain != "" {
					return a.verifyReplicaChain(cmd.Context(), o, chain)
				}
				return a.verifyReplica(cmd.Context(), o, sample)
			})
		},
	}
	chain.flags(cmd)
	cmd.Flags().IntVar(&sample, "sample", follower.DefaultSample, "number of packets, and of transfers, to compare")
	return cmd
}

func (a *app) verifyReplica(ctx context.Context, backend replicaBackend, sample int) error {
	update, end := a.progress("compare", unitRows)
	report, err := backend.VerifyReplica(ctx, sample, update)
	end()
	if err != nil {
		return interrupted(ctx, err, "no result; the data is unchanged")
	}
	err = a.print(struct {
		OK bool `json:"ok"`
		follower.Report
	}{report.OK(), report}, func(w io.Writer) { writeReport(w, report) })
	if err == nil && !report.OK() {
		err = silentFailure{}
	}
	return err
}

// mostShown limits the differences and the unverified rows in the text form. The JSON form has all that the report
// lists.
const mostShown = 20

func writeReport(w io.Writer, r follower.Report) {
	var counts [][]string
	for _, t := range index.RowTypes {
		count := r.Rows[t.Name]
		counts = append(counts, []string{t.Name + "s", orDash(nonZero(count.Here)), orDash(nonZero(count.Upstream)),
			text.Count(r.Compared[t.Name])})
	}
	table(w, "KIND\tHERE\tUPSTREAM\tCOMPARED", counts)
	if r.Differing > 0 {
		var lines [][]string
		for _, d := range r.Differences[:min(len(r.Differences), mostShown)] {
			lines = append(lines, []string{d.Kind, text.OneLine(d.Key), d.What, orDash(strings.Join(d.Fields, ", "))})
		}
		fmt.Fprintf(w, "\nDifferences, %d of %d:\n", len(lines), r.Differing)
		table(w, "KIND\tKEY\tWHAT\tFIELDS", lines)
	}
	if r.Doubtful > 0 {
		var lines [][]string
		for _, d := range r.Unverified[:min(len(r.Unverified), mostShown)] {
			lines = append(lines, []string{d.Kind, text.OneLine(d.Key), text.Time(d.Since), text.OneLine(d.Reason)})
		}
		fmt.Fprintf(w, "\nUnverified, %d of %d:\n", len(lines), r.Doubtful)
		table(w, "KIND\tKEY\tSINCE\tREASON", lines)
	}
	fmt.Fprintf(w, "\n%s\n", strings.Join(verdict(r), "\n"))
}

// verdict explains a report and its remedies, one line each.
func verdict(r follower.Report) (lines []string) {
	say := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	if r.OK() {
		say("The replica equals its upstream.")
	}
	if r.Differing > 0 {
		say(
			"%d rows differ from the upstream. Rows that changed during the comparison are no fault: run 'attestd replica sync', and verify again. If the differences stay, rebuild the replica: stop attestd, delete replica.db, start attestd.", r.Differing)
	}
	if r.Doubtful > 0 {
		say(
			"%d rows fail verification. The upstream is faulty or dishonest: ask its operator. The rows are quarantined until the upstream corrects them, and served only with graphql.serve_unverified.", r.Doubtful)
	}
	if !r.CountsAgree {
		say(
			"The upstream has a different number of rows. The replica is behind, or the upstream has removed rows: run 'attestd replica sync', and verify again.")
	}
	if r.Behind > 0 {
		say("%d rows of packets in transit are behind; the follower updates them automatically.", r.Behind)
	}
	if len(r.Missing) > 0 {
		say("The upstream's schema lacks %s: these fields are null.", text.OneLine(strings.Join(r.Missing, ", ")))
	}
	return lines
}
