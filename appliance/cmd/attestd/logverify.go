package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"
	"golang.org/x/mod/sumdb/note"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/archive"
)

// logVerify is one run of the command.
type logVerify struct {
	*app
	earlier, checkpoint, verifierKey string
	signers                          []string
	witnesses                        witnessCheck
}

func newLogVerify(a *app) *cobra.Command {
	v := logVerify{app: a}
	cmd := &cobra.Command{
		Use:   "verify [FILE]",
		Short: "Prove that nothing was changed, dropped or reordered, and tell who signed",
		Long: `Check every record's digest and signature, who signed, their order, the tree, the indexes and the signed checkpoint.
Exit status 1 when anything is damaged; each damage names its record.

With FILE, an export made by 'attestd log export' is checked instead, anywhere and without the appliance:
give the signed checkpoint and the log's verifier key (GET /functions/v1/attestor shows it). FILE may be a backup, too,
which has its checkpoint; without --verifier-key, its log key is taken at its own word.

Each attestor key that signed is listed, with the records that it signed. One that is not known is a damage. Known are
those of --signer alone; without it, the appliance's own and those that events of the journal name, such as its start. Who
has log.key can add events: give --signer where the journal may be in others' hands.

With --policy, a C2SP tlog-policy file, a quorum of its witnesses must have cosigned the checkpoint (that of
--checkpoint, else of --since-checkpoint, else the one that the appliance publishes), and the log's key is the policy's.`,
		Example: `  attestd log verify
  attestd log verify --since-checkpoint 2026-10.checkpoint
  attestd log verify /var/backups/attestd/attestd-20261101T023000Z.tar.zst --signer 0x…
  attestd log verify journal.ndjson --checkpoint 2026-11.checkpoint --verifier-key 'example.com/attestd+1a2b3c4d+AQ…'
  attestd log verify journal.ndjson --checkpoint 2026-11.checkpoint --policy witnesses.policy`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef(cmd, "%s takes at most one FILE", cmd.CommandPath())
			}
			if len(args) == 0 && (v.checkpoint != "" || v.verifierKey != "") {
				return usagef(cmd, "FILE, --checkpoint and --verifier-key or --policy go together")
			}
			if v.verifierKey != "" && v.witnesses.file != "" {
				return usagef(cmd, "--policy has the log's key: leave out --verifier-key")
			}
			return nil
		},
		RunE: v.run,
	}
	f := cmd.Flags()
	f.StringVar(&v.earlier, "since-checkpoint", "", "a checkpoint kept from earlier: the journal must still begin with its records")
	f.StringVar(&v.checkpoint, "checkpoint", "", "with an export as FILE: the signed checkpoint of its records")
	f.StringVar(&v.verifierKey, "verifier-key", "", "with FILE: the log's verifier key, name+hash+key")
	f.StringVar(&v.witnesses.file, "policy", "", "policy file (C2SP tlog-policy): which log's the checkpoint must be, and which witnesses must have cosigned it")
	f.StringArrayVar(&v.signers, "signer", nil, "the address of an attestor key that may have signed, and no other; may be repeated")
	return cmd
}

func (v *logVerify) run(cmd *cobra.Command, args []string) error {
	opts, err := v.options(cmd)
	if err != nil {
		return err
	}
	update, end := v.progress("verify", unitRecords)
	opts.Progress = update
	var report appliance.AuditReport
	if len(args) == 1 {
		report, err = v.file(cmd, args[0], opts)
	} else {
		err = v.withBackend(cmd, func(o backend) error {
			if err := v.witnesses.since(cmd.Context(), o, &opts); err != nil {
				return err
			}
			report, err = o.Verify(cmd.Context(), opts)
			return err
		})
	}
	end()
	if err != nil {
		return interrupted(cmd.Context(), err, "nothing was found out, and nothing changed")
	}
	return v.printReport(report, v.witnesses.found)
}

func (v *logVerify) options(cmd *cobra.Command) (opts appliance.VerifyOptions, err error) {
	if opts.Signers, err = parseSigners(v.signers); err != nil {
		return opts, usageError{cmd.CommandPath(), err}
	}
	if v.earlier != "" {
		if opts.Earlier, err = v.readCheckpoint("--since-checkpoint", v.earlier); err != nil {
			return opts, err
		}
	}
	v.witnesses.policy, err = v.policy(v.witnesses.file)
	return opts, err
}

// parseSigners reads the addresses of --signer.
func parseSigners(texts []string) (all []appliance.Address, err error) {
	for _, text := range texts {
		address, err := appliance.ParseAddress(text)
		if err != nil {
			return nil, fmt.Errorf("--signer %w", err)
		}
		all = append(all, address)
	}
	return all, nil
}

// zstdMagic is how a backup begins (RFC 8878, section 3.1.1).
var zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}

// file audits a backup or an export.
func (v *logVerify) file(cmd *cobra.Command, name string, opts appliance.VerifyOptions) (report appliance.AuditReport, err error) {
	var verifier note.Verifier
	if v.verifierKey != "" {
		if verifier, err = note.NewVerifier(v.verifierKey); err != nil {
			return report, notVerifierKey(cmd)
		}
	}
	f, err := v.openInput(name)
	if err != nil && v.checkpoint == "" && v.verifierKey == "" {
		return report, usagef(cmd, "FILE, --checkpoint and --verifier-key or --policy go together, unless it is a backup: %w", err)
	}
	if err != nil {
		return report, err
	}
	defer f.Close()
	in := bufio.NewReader(f)
	magic, _ := in.Peek(len(zstdMagic))
	isBackup := bytes.Equal(magic, zstdMagic)
	switch {
	case isBackup && v.checkpoint != "":
		return report, usagef(cmd, "%s is a backup, which has its checkpoint: --checkpoint is for an export", name)
	case isBackup && v.witnesses.policy != nil:
		return report, usagef(cmd, "%s is a backup, whose checkpoint no witness has cosigned: --policy is for an export", name)
	case isBackup:
		return v.backup(cmd.Context(), in, verifier, opts)
	case v.checkpoint == "" || verifier == nil && v.witnesses.policy == nil:
		return report, usagef(cmd, "FILE, --checkpoint and --verifier-key or --policy go together")
	}
	signed, err := v.readCheckpoint("--checkpoint", v.checkpoint)
	if err != nil {
		return report, err
	}
	if v.witnesses.policy != nil {
		if verifier, err = v.witnesses.open(signed); err != nil {
			return report, fmt.Errorf("%s: %w", v.checkpoint, err)
		}
	}
	if report, err = auditExport(cmd.Context(), in, verifier, signed, opts); err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return report, err
}

func notVerifierKey(cmd *cobra.Command) error {
	return usagef(cmd, "--verifier-key: it is none; the log's is name+hash+key, as GET /functions/v1/attestor shows it")
}

func (v *logVerify) backup(ctx context.Context, in io.Reader, verifier note.Verifier, opts appliance.VerifyOptions) (appliance.AuditReport, error) {
	found, err := archive.Inspect(ctx, in, opts)
	if err != nil {
		return found.Report, err
	}
	name := appliance.LogName(found.Key.Verifier)
	switch {
	case verifier == nil:
		v.say("The backup is of the log %s, as it says itself: --verifier-key holds it against what you know.", name)
	case v.verifierKey != found.Key.VerifierText:
		return found.Report, fmt.Errorf("the backup is of another log, %s", name)
	}
	return found.Report, nil
}

// auditExport audits NDJSON of leaves.
func auditExport(ctx context.Context, in io.Reader, verifier note.Verifier, signed []byte, opts appliance.VerifyOptions) (report appliance.AuditReport, err error) {
	tree, err := appliance.OpenCheckpoint(signed, verifier)
	if err != nil {
		return report, err
	}
	audit, err := appliance.NewAudit(verifier, opts.Earlier)
	if err != nil {
		return report, err
	}
	audit.Expect(opts)
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	for n := int64(1); lines.Scan(); n++ {
		audit.Leaf(lines.Bytes())
		opts.Progress(n, max(n, tree.N))
		if err := ctx.Err(); err != nil {
			return report, err
		}
	}
	if err := lines.Err(); err != nil {
		return report, fmt.Errorf("read: %w", err)
	}
	return audit.Finish(signed), nil
}

func (a *app) printReport(r appliance.AuditReport, witnessed *witnessedCheckpoint) error {
	if r.Damages == nil {
		r.Damages = []appliance.Damage{}
	}
	if r.Signers == nil {
		r.Signers = []appliance.AuditedSigner{}
	}
	err := a.print(struct {
		OK bool `json:"ok"`
		appliance.AuditReport
		Witnessed *witnessedCheckpoint `json:"witnessed,omitempty"`
	}{r.OK(), r, witnessed}, func(w io.Writer) {
		writeAudit(w, r)
		if witnessed != nil && r.OK() {
			fmt.Fprintf(w, "witnessed: %s\n", witnessed.text)
		}
	})
	if err == nil && !r.OK() {
		err = silentFailure{}
	}
	return err
}

func writeAudit(w io.Writer, r appliance.AuditReport) {
	for _, d := range r.Damages {
		fmt.Fprintln(w, d)
	}
	if r.More > 0 {
		fmt.Fprintf(w, "… and %d more\n", r.More)
	}
	for _, s := range r.Signers {
		fmt.Fprintf(w, "signer %s\n", s)
	}
	if !r.OK() {
		fmt.Fprintf(w, "The journal is DAMAGED: %d faults in %d records.\n", int64(len(r.Damages))+r.More, r.Size)
		return
	}
	events := ""
	if r.Events > 0 {
		events = fmt.Sprintf(" and %d events", r.Events)
	}
	fmt.Fprintf(w, "The journal is whole: %d records%s, each signature good, none changed, dropped or reordered.\n", r.Size-r.Events, events)
	fmt.Fprintf(w, "root hash %x\n", r.Root)
	byItself := func(s appliance.AuditedSigner) bool {
		return s.Known == appliance.SignerEvent || s.Known == appliance.SignerFirst
	}
	if slices.ContainsFunc(r.Signers, byItself) {
		fmt.Fprintln(w, "Not checked: whether the signers are those that you know. Give --signer.")
	}
}
