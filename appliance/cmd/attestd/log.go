package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"golang.org/x/mod/sumdb/note"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/service"
	"github.com/attestd/attestd/appliance/text"
)

func newLog(a *app) *cobra.Command {
	return group("log", "The journal: list, show, verify, export, checkpoint, prove, accept-loss",
		`The journal holds every attestation that was ever answered, as leaves of a Merkle tree (RFC 6962) whose
root is signed (C2SP tlog-checkpoint). While the daemon runs these commands go through its admin socket;
while it does not, they read the files.`,
		newLogList(a), newLogShow(a), newLogVerify(a), newLogExport(a), newLogCheckpoint(a), newLogProve(a), newLogAcceptLoss(a))
}

func newLogList(a *app) *cobra.Command {
	var q appliance.JournalQuery
	var since, until string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List attestations and events, newest first",
		Example: `  attestd log list --limit 20
  attestd log list --key k3x5wq7mzp2n4r6t --since 24h
  attestd log list --before 4711`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			now := time.Now()
			if q.From, err = parseSince(since, now); err != nil {
				return usagef(cmd, "--since: %w", err)
			}
			if q.Until, err = parseSince(until, now); err != nil {
				return usagef(cmd, "--until: %w", err)
			}
			return a.withBackend(cmd, func(o backend) error {
				entries, err := o.Records(cmd.Context(), q)
				if err != nil {
					return err
				}
				return a.printEntries(entries)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&q.KeyID, "key", "", "only those that this API key asked for")
	f.StringVar(&since, "since", "", "only from then on: a time such as 2026-01-31T00:00:00Z, or a duration before now such as 24h")
	f.StringVar(&until, "until", "", "only before then, in the same forms")
	f.Int64Var(&q.Before, "before", 0, "only indexes below this: the last index shown gives the next page")
	f.IntVar(&q.Limit, "limit", appliance.DefaultListed, fmt.Sprintf("at most this many (1 to %d)", appliance.MaxListed))
	return cmd
}

// parseSince reads a time (RFC 3339) or a duration before now.
func parseSince(s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return t, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return time.Time{}, fmt.Errorf("%q is neither a time such as 2026-01-31T00:00:00Z nor a duration such as 24h", s)
	}
	return now.Add(-d), nil
}

func (a *app) printEntries(entries []appliance.Entry) error {
	rows := make([][]string, len(entries))
	for i, e := range entries {
		if e.Event != nil {
			rows[i] = []string{fmt.Sprint(e.Index), text.Time(e.Event.Time), e.Event.ID.String(), "-", "event: " + string(e.Event.Kind), e.Event.Details["reason"]}
			continue
		}
		r := e.Record
		rows[i] = []string{fmt.Sprint(e.Index), text.Time(r.Time), r.ID.String(), r.KeyID, r.UnspendableAddress.String(), r.Beneficiary.String()}
	}
	if entries == nil {
		entries = []appliance.Entry{}
	}
	return a.print(entries, func(w io.Writer) {
		if len(entries) == 0 {
			a.say("No attestations match.")
			return
		}
		table(w, "INDEX\tTIME\tID\tKEY\tUNSPENDABLE\tBENEFICIARY", rows)
	})
}

func newLogShow(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "show ID",
		Short:   "Show one attestation's record, or an event",
		Example: "  attestd log show 0198c1f2-7a3b-7def-8123-456789abcdef",
		Args:    oneArg("attestation ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := attestationID(cmd, args[0])
			if err != nil {
				return err
			}
			return a.withBackend(cmd, func(o backend) error {
				e, err := o.Record(cmd.Context(), id)
				if err != nil {
					return err
				}
				return a.print(e, func(w io.Writer) { showEntry(w, e) })
			})
		},
	}
}

func attestationID(cmd *cobra.Command, s string) (uuid.UUID, error) {
	id, err := uuid.Parse(s)
	if err != nil {
		return uuid.Nil, usagef(cmd, "%q is not an attestation ID (a UUID)", s)
	}
	return id, nil
}

func showEntry(w io.Writer, e appliance.Entry) {
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
	})
}

func showEvent(w io.Writer, e appliance.Entry) {
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

func newLogExport(a *app) *cobra.Command {
	var from int64
	var output string
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write the records as NDJSON, each line a leaf of the tree",
		Long: `Write the records as NDJSON, and events, which begin with the member event. Each line is exactly the bytes of a leaf:
SHA-256(0x00 ‖ line without its newline) is its hash in the tree. 'attestd log verify FILE' checks such a
file anywhere, without the appliance. Records say who was attested to whom: keep the file secret.`,
		Example: `  attestd log export --file journal.ndjson
  attestd log export | jq -r .beneficiary | sort | uniq -c`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if from < 0 {
				return usagef(cmd, "--from must not be negative")
			}
			return a.withBackend(cmd, func(o backend) error { return a.export(cmd, o, from, output) })
		},
	}
	cmd.Flags().Int64Var(&from, "from", 0, "begin at this index")
	cmd.Flags().StringVarP(&output, "file", "f", "-", "file to write, made with mode 0600; - for standard output")
	return cmd
}

func (a *app) export(cmd *cobra.Command, o backend, from int64, name string) error {
	out := a.out
	if name != "-" {
		f, err := a.create(name)
		if err != nil {
			return err
		}
		defer f.Close()
		out = f
	}
	w := bufio.NewWriterSize(out, 1<<16)
	var count int64
	err := o.Entries(cmd.Context(), from, func(leaf []byte) error {
		count++
		_, err := w.Write(append(leaf, '\n'))
		return err
	})
	if err = errors.Join(err, w.Flush()); err != nil {
		return fmt.Errorf("after %d records: %w", count, err)
	}
	if f, ok := out.(*os.File); ok && name != "-" {
		if err := f.Sync(); err != nil {
			return err
		}
		a.say("%d records written to %s.", count, name)
	}
	return nil
}

// create makes a file; in a folder of the daemon's user root does it as that, whatever was planted there.
func (a *app) create(name string) (f *os.File, err error) {
	c, err := a.config(nil)
	if err != nil {
		return nil, err
	}
	daemons, err := service.UserOf(c.DataDir)
	if err != nil {
		return nil, err
	}
	err = daemons.In(filepath.Dir(name)).Do(func() error {
		f, err = os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
		return err
	})
	return f, err
}

func newLogCheckpoint(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "checkpoint",
		Short: "Print the newest signed checkpoint (C2SP tlog-checkpoint)",
		Long: `Print the newest signed checkpoint: the log's origin, its number of records, its root hash and the
signature. Who keeps one can prove later that nothing before it was changed: attestd log verify --since-checkpoint.`,
		Example: "  attestd log checkpoint > 2026-11.checkpoint",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withBackend(cmd, func(o backend) error {
				checkpoint, err := o.Checkpoint(cmd.Context())
				if err != nil {
					return err
				}
				if a.json() {
					return a.printJSON(map[string]string{"checkpoint": string(checkpoint)})
				}
				_, err = a.out.Write(checkpoint)
				return err
			})
		},
	}
}

func newLogProve(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "prove ID",
		Short: "Print the proof that an attestation is in the journal (C2SP tlog-proof)",
		Long: `Print the proof that an attestation is in the tree of the newest checkpoint, in the form of C2SP
tlog-proof. With --output json: the record's leaf, the hashes and the checkpoint.`,
		Example: "  attestd log prove 0198c1f2-7a3b-7def-8123-456789abcdef > attestation.tlog-proof",
		Args:    oneArg("attestation ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := attestationID(cmd, args[0])
			if err != nil {
				return err
			}
			return a.withBackend(cmd, func(o backend) error {
				e, proof, err := o.Prove(cmd.Context(), id)
				if err != nil {
					return err
				}
				return a.print(struct {
					Leaf  []byte                   `json:"leaf"`
					Proof appliance.InclusionProof `json:"proof"`
				}{e.Leaf, proof}, func(w io.Writer) { io.WriteString(w, proof.String()) })
			})
		},
	}
}

// maxCheckpoint bounds a checkpoint file; real ones have some 200 bytes.
const maxCheckpoint = 64 << 10

func newLogVerify(a *app) *cobra.Command {
	var earlier, checkpoint, verifierKey string
	cmd := &cobra.Command{
		Use:   "verify [FILE]",
		Short: "Prove that nothing was changed, dropped or reordered",
		Long: `Check every record's digest and signature, their order, the tree, the indexes and the signed checkpoint.
Exit status 1 when anything is damaged; each damage names its record.

With FILE, an export made by 'attestd log export' is checked instead, anywhere and without the appliance:
give the signed checkpoint and the log's verifier key (GET /functions/v1/attestor shows it).`,
		Example: `  attestd log verify
  attestd log verify --since-checkpoint 2026-10.checkpoint
  attestd log verify journal.ndjson --checkpoint 2026-11.checkpoint --verifier-key 'example.com/attestd+1a2b3c4d+AQ…'`,
		Args: cobra.MatchAll(func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef(cmd, "%s takes at most one FILE", cmd.CommandPath())
			}
			if (len(args) == 1) != (checkpoint != "" && verifierKey != "") {
				return usagef(cmd, "FILE, --checkpoint and --verifier-key go together")
			}
			return nil
		}),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts, err := a.verifyOptions(earlier)
			if err != nil {
				return err
			}
			update, end := a.progress("verify", "records")
			opts.Progress = update
			var report appliance.AuditReport
			if len(args) == 1 {
				report, err = a.verifyExport(cmd, args[0], checkpoint, verifierKey, opts)
			} else {
				err = a.withBackend(cmd, func(o backend) error {
					report, err = o.Verify(cmd.Context(), opts)
					return err
				})
			}
			end()
			if err != nil {
				return err
			}
			return a.printReport(report)
		},
	}
	f := cmd.Flags()
	f.StringVar(&earlier, "since-checkpoint", "", "a checkpoint kept from earlier: the journal must still begin with its records")
	f.StringVar(&checkpoint, "checkpoint", "", "with FILE: the signed checkpoint of its records")
	f.StringVar(&verifierKey, "verifier-key", "", "with FILE: the log's verifier key, name+hash+key")
	return cmd
}

func (a *app) verifyOptions(earlier string) (opts appliance.VerifyOptions, err error) {
	if earlier != "" {
		opts.Earlier, err = a.readSmall(earlier, maxCheckpoint)
	}
	return opts, err
}

// readSmall reads a small file, or standard input for "-".
func (a *app) readSmall(name string, max int64) ([]byte, error) {
	f, err := a.openInput(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := readLimited(f, max)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return b, nil
}

// verifyExport audits an NDJSON file of leaves.
func (a *app) verifyExport(cmd *cobra.Command, name, checkpoint, verifierKey string, opts appliance.VerifyOptions) (report appliance.AuditReport, err error) {
	verifier, err := note.NewVerifier(verifierKey)
	if err != nil {
		return report, usagef(cmd, "--verifier-key: %w", err)
	}
	signed, err := a.readSmall(checkpoint, maxCheckpoint)
	if err != nil {
		return report, err
	}
	tree, err := appliance.OpenCheckpoint(signed, verifier)
	if err != nil {
		return report, err
	}
	audit, err := appliance.NewAudit(verifier, opts.Earlier)
	if err != nil {
		return report, err
	}
	f, err := a.openInput(name)
	if err != nil {
		return report, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for n := int64(1); lines.Scan(); n++ {
		audit.Leaf(lines.Bytes())
		opts.Progress(n, max(n, tree.N))
		if err := cmd.Context().Err(); err != nil {
			return report, err
		}
	}
	if err := lines.Err(); err != nil {
		return report, fmt.Errorf("read %s: %w", name, err)
	}
	return audit.Finish(signed), nil
}

func (a *app) printReport(r appliance.AuditReport) error {
	if r.Damages == nil {
		r.Damages = []appliance.Damage{}
	}
	err := a.print(struct {
		OK bool `json:"ok"`
		appliance.AuditReport
	}{r.OK(), r}, func(w io.Writer) {
		for _, d := range r.Damages {
			fmt.Fprintln(w, d)
		}
		if r.More > 0 {
			fmt.Fprintf(w, "… and %d more\n", r.More)
		}
		if r.OK() {
			events := ""
			if r.Events > 0 {
				events = fmt.Sprintf(" and %d events", r.Events)
			}
			fmt.Fprintf(w, "The journal is whole: %d records%s, each signature good, none changed, dropped or reordered.\n", r.Size-r.Events, events)
			fmt.Fprintf(w, "root hash %x\n", r.Root)
		} else {
			fmt.Fprintf(w, "The journal is DAMAGED: %d faults in %d records.\n", int64(len(r.Damages))+r.More, r.Size)
		}
	})
	if err == nil && !r.OK() {
		err = silentFailure{}
	}
	return err
}
