package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/text"
)

func newLog(a *app) *cobra.Command {
	return group("log", "The journal: list, show, verify, export, checkpoint, prove, accept-loss",
		`The journal holds every attestation ever issued, as leaves of a Merkle tree (RFC 6962) with a signed root
(C2SP tlog-checkpoint). While the daemon runs, these commands use its admin socket; otherwise they read the
files.`,
		newLogList(a), newLogShow(a), newLogVerify(a), newLogExport(a), newLogCheckpoint(a), newLogProve(a),
		newLogAcceptLoss(a), newLogRotateKey(a))
}

const logListLong = `List attestations and events, newest first.

--follow shows the newest records, oldest first, and then each new record until it is interrupted; with --output json,
each record is an object on its own line. It needs the daemon, and waits while the daemon restarts.`

// logList is one run of the command.
type logList struct {
	*app
	q                                            journal.Query
	since, until, hash, unspendable, beneficiary string
	redeemed, unredeemed, follow                 bool
}

func newLogList(a *app) *cobra.Command {
	l := logList{app: a}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List attestations and events, newest first",
		Long:  logListLong,
		Example: `  attestd log list --limit 20
  attestd log list --follow --key k3x5wq7mzp2n4r6t
  attestd log list --key payments --since 24h
  attestd log list --events --since 24h
  attestd log list --before 4711`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return l.run(cmd) },
	}
	f := cmd.Flags()
	f.BoolVar(&l.q.EventsOnly, "events", false, "only events: actions of operators and incidents")
	f.BoolVar(&l.q.AttestationsOnly, "attestations", false, "only attestations")
	f.BoolVar(&l.redeemed, "redeemed", false,
		"only attestations that a contract of chain.contracts has redeemed, with time and amount")
	f.BoolVar(&l.unredeemed, "unredeemed", false, "only attestations that have not been redeemed")
	f.BoolVarP(&l.follow, "follow", "f", false, "continue with new records")
	f.StringVar(&l.q.KeyID, "key", "", "only attestations requested with this API key: its ID or its name")
	f.StringVar(&l.hash, "hash", "", "only attestations with this hash")
	f.StringVar(&l.unspendable, "unspendable", "", "only attestations for this unspendable address")
	f.StringVar(&l.beneficiary, "beneficiary", "",
		"only attestations for this beneficiary; reads all others, too, so give --since or --key if the journal is large")
	f.StringVar(&l.since, "since", "",
		"only from this time: a time such as 2026-01-31T12:00:00Z, a date (00:00 UTC), or a duration before now such as 30d or 24h")
	f.StringVar(&l.until, "until", "", "only before this time, in the same forms")
	f.Int64Var(&l.q.Before, "before", 0, "only indexes below this number: for the next page, give the last index shown")
	f.IntVar(&l.q.Limit, "limit", journal.DefaultListed,
		fmt.Sprintf("maximum number of records (1 to %d)", journal.MaxListed))
	return cmd
}

func (l logList) run(cmd *cobra.Command) (err error) {
	if l.q.From, l.q.Until, err = parseSpan(cmd, l.since, l.until); err != nil {
		return err
	}
	if err := checkListing(cmd, l.q); err != nil {
		return err
	}
	if err := searched(&l.q, l.hash, l.unspendable); err != nil {
		return usageError{cmd.CommandPath(), err}
	}
	if l.q.KeyID != "" {
		err := l.withBackend(cmd, func(o backend) error {
			key, err := findKey(cmd.Context(), o, l.q.KeyID)
			l.q.KeyID = key.ID
			return err
		})
		if err != nil {
			return err
		}
	}
	switch ofChain := l.redeemed || l.unredeemed; {
	case l.beneficiary != "":
		return l.listOfBeneficiary(cmd, l.q, l.beneficiary, ofChain || l.follow)
	case l.follow:
		return l.followListing(cmd, l.q, ofChain)
	case ofChain:
		return l.listRedeemed(cmd, l.q, l.redeemed, l.unredeemed)
	}
	return l.list(cmd, l.q)
}

// parseSpan reads --since and --until.
func parseSpan(cmd *cobra.Command, since, until string) (from, to time.Time, err error) {
	now := time.Now()
	if from, err = parsePast(since, now); err != nil {
		return from, to, usagef(cmd, "--since: %w", err)
	}
	if to, err = parsePast(until, now); err != nil {
		return from, to, usagef(cmd, "--until: %w", err)
	}
	return from, to, nil
}

// checkListing refuses flags that contradict each other, or that the daemon would refuse.
func checkListing(cmd *cobra.Command, q journal.Query) error {
	switch {
	case q.EventsOnly && q.AttestationsOnly:
		return usagef(cmd, "give --events or --attestations, not both")
	case q.Limit < 1 || q.Limit > journal.MaxListed:
		return usagef(cmd, "--limit must be 1 to %d", journal.MaxListed)
	case q.Before < 0:
		return usagef(cmd, "--before must not be negative")
	case !q.From.IsZero() && !q.Until.IsZero() && !q.From.Before(q.Until):
		return usagef(cmd, "--since must be before --until")
	}
	return nil
}

// searched adds the search flags to a query.
func searched(q *journal.Query, hash, unspendable string) error {
	if hash != "" {
		q.Hash = new(appliance.Digest)
		if err := q.Hash.UnmarshalText([]byte(hash)); err != nil {
			return fmt.Errorf("--hash: %w", err)
		}
	}
	if unspendable != "" {
		address, err := appliance.ParseAddress(unspendable)
		if err != nil {
			return fmt.Errorf("--unspendable %w", err)
		}
		q.Unspendable = &address
	}
	return nil
}

func (a *app) list(cmd *cobra.Command, q journal.Query) error {
	return a.withBackend(cmd, func(o backend) error {
		entries, err := o.Records(cmd.Context(), q)
		if err != nil {
			return err
		}
		return a.printEntries(entries, q.EventsOnly)
	})
}

// listOfBeneficiary lists the attestations of a beneficiary. It reads every record that the rest of the query selects.
func (a *app) listOfBeneficiary(cmd *cobra.Command, q journal.Query, beneficiary string,
	otherwise bool) error {
	if otherwise || q.EventsOnly {
		return usagef(cmd, "--beneficiary cannot be combined with --redeemed, --unredeemed, --follow or --events")
	}
	address, err := appliance.ParseAddress(beneficiary)
	if err != nil {
		return usagef(cmd, "--beneficiary %w", err)
	}
	return a.withBackend(cmd, func(o backend) error {
		found, err := journal.Search(cmd.Context(), o.Records, q, address, 0)
		if err != nil {
			return err
		}
		return a.printEntries(found.Entries, false)
	})
}

func (a *app) printEntries(entries []journal.Entry, events bool) error {
	what := "attestations"
	if events {
		what = "events"
	}
	rows := make([][]string, len(entries))
	for i, e := range entries {
		rows[i] = entryRow(e, events)
	}
	if entries == nil {
		entries = []journal.Entry{}
	}
	return a.print(entries, func(w io.Writer) {
		if len(entries) == 0 {
			a.say("No %s found.", what)
			return
		}
		table(w, entryHeader(events), rows, "ID")
	})
}

// entryHeader is the header of entryRow's rows.
func entryHeader(events bool) string {
	if events {
		return "INDEX\tTIME\tID\tEVENT\tBY\tDETAILS"
	}
	return "INDEX\tTIME\tID\tKEY\tUNSPENDABLE\tBENEFICIARY"
}

// entryRow formats an entry as a table row. If events is set, the table lists events alone.
func entryRow(e journal.Entry, events bool) []string {
	row := []string{fmt.Sprint(e.Index), text.Time(e.Time()), e.ID().String()}
	switch v, r := e.Event, e.Record; {
	case v == nil:
		return append(row, r.KeyID, r.UnspendableAddress.String(), r.Beneficiary.String())
	case events:
		return append(row, string(v.Kind), orDash(v.By), brief(v.Details))
	default:
		return append(row, "-", "event: "+string(v.Kind), brief(v.Details))
	}
}

// brief formats an event's details on one line. If the details have a reason, it is the reason alone.
func brief(details map[string]string) string {
	if reason := details["reason"]; reason != "" {
		return reason
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(details)) {
		parts = append(parts, name+": "+strings.Join(strings.Fields(details[name]), " "))
	}
	return strings.Join(parts, ", ")
}

func newLogShow(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "show ID|INDEX",
		Short:   "Show one attestation's record, or an event",
		Example: "  attestd log show 0198c1f2-7a3b-7def-8123-456789abcdef\n  attestd log show 4711",
		Args:    oneArg("attestation ID or index"),
		RunE: func(cmd *cobra.Command, args []string) error {
			find := func(o backend) (journal.Entry, error) { return entryAt(cmd.Context(), o, args[0]) }
			if _, err := strconv.ParseUint(args[0], 10, 63); err != nil {
				id, err := uuid.Parse(args[0])
				if err != nil {
					return usagef(cmd, "%q is not an attestation ID (a UUID) or an index of the journal", args[0])
				}
				find = func(o backend) (journal.Entry, error) { return o.Record(cmd.Context(), id) }
			}
			return a.withBackend(cmd, func(o backend) error {
				e, err := find(o)
				if err != nil {
					return err
				}
				return a.print(e, func(w io.Writer) { showEntry(w, e) })
			})
		},
	}
}

// entryAt returns the entry with that index.
func entryAt(ctx context.Context, o backend, decimal string) (journal.Entry, error) {
	index, err := strconv.ParseInt(decimal, 10, 64)
	if err != nil {
		return journal.Entry{}, err
	}
	entries, err := o.Records(ctx, journal.Query{Before: index + 1, Limit: 1})
	if err == nil && (len(entries) == 0 || entries[0].Index != index) {
		err = appliance.Errorf(appliance.CodeNotFound,
			"no record %d in the journal; list the newest with: attestd log list", index)
	}
	if err != nil {
		return journal.Entry{}, err
	}
	return entries[0], nil
}

func attestationID(cmd *cobra.Command, s string) (uuid.UUID, error) {
	id, err := uuid.Parse(s)
	if err != nil {
		return uuid.Nil, usagef(cmd, "%q is not an attestation ID (a UUID)", s)
	}
	return id, nil
}

func showEntry(w io.Writer, e journal.Entry) {
	if e.Event != nil {
		showEvent(w, e)
		return
	}
	r := e.Record
	fields(w, [][2]string{
		{"index", fmt.Sprint(e.Index)},
		{"id", r.ID.String()},
		{"time", r.Time.Format(time.RFC3339Nano)},
		{"API key", r.KeyID},
		{"idempotency key", r.IdempotencyKey},
		{"unspendable", r.UnspendableAddress.String()},
		{"beneficiary", r.Beneficiary.String()},
		{"scheme", r.Scheme},
		{"hash", r.Hash.String()},
		{"r", appliance.Digest(r.Signature.R).String()},
		{"s", appliance.Digest(r.Signature.S).String()},
		{"v", fmt.Sprint(r.Signature.V)},
		{"signer", r.SignerAddress.String()},
		{"coordinator", r.Coordinator},
	})
	if r.Quorum == nil {
		return
	}
	pairs := [][2]string{{"contract", r.Quorum.Contract.String()}}
	for _, s := range r.Quorum.Signatures {
		pairs = append(pairs,
			[2]string{"member", fmt.Sprintf("%s as %s, its record %s", s.Member, s.SignerAddress, s.ID)})
	}
	fields(w, pairs)
}

func showEvent(w io.Writer, e journal.Entry) {
	v := e.Event
	fields(w, [][2]string{
		{"index", fmt.Sprint(e.Index)},
		{"event", string(v.Kind)},
		{"id", v.ID.String()},
		{"time", v.Time.Format(time.RFC3339Nano)},
		{"by", v.By},
	})
	for _, name := range slices.Sorted(maps.Keys(v.Details)) {
		fmt.Fprintf(w, "%s:\n  %s\n", name, strings.ReplaceAll(strings.TrimSpace(v.Details[name]), "\n", "\n  "))
	}
}

// maxCheckpoint bounds the size of a checkpoint file, in bytes. Real ones have about 200.
const maxCheckpoint = 64 << 10

// readCheckpoint reads a flag's checkpoint file. An empty file is an error: the check would always pass.
func (a *app) readCheckpoint(flag, name string) ([]byte, error) {
	text, err := a.readSmall(name, maxCheckpoint)
	if err == nil && len(bytes.TrimSpace(text)) == 0 {
		err = fmt.Errorf("%s is empty: it must contain a checkpoint", name)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	return text, nil
}

// readSmall reads a small file, or standard input for "-".
func (a *app) readSmall(name string, max int64) ([]byte, error) {
	f, err := a.openInput(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := readLimited(f, max)
	if named := (*fs.PathError)(nil); err != nil && !errors.As(err, &named) {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return b, err
}
