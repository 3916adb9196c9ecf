package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/mod/sumdb/note"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/journal"
)

// logVerify is one run of the command.
type logVerify struct {
	*app
	earlier, checkpoint, verifierKey string
	notOlder                         string
	signers                          []string
	witnesses                        witnessCheck
	isFile                           bool // an export or a backup is verified, not the appliance's journal
}

func newLogVerify(a *app) *cobra.Command {
	v := logVerify{app: a}
	cmd := &cobra.Command{
		Use:   "verify [FILE]",
		Short: "Verify that no record was changed, dropped or reordered, and list the signers",
		Long: `Check each record's digest and signature, the signers, the order, the tree, the indexes and the signed
checkpoint. Exit status 1 if anything is damaged; each fault names its record.

With FILE, check an export of 'attestd log export' instead, anywhere and without the appliance: give the
signed checkpoint and the log's verifier key (GET /functions/v1/attestor shows it). FILE may also be a backup,
which includes its checkpoint; without --verifier-key, the key in the backup is trusted.

The output lists each attestor key that signed, with its records. A signature of an unknown key is a fault.
With --signer, only those addresses are known. Without it, the appliance's own keys are known, and the keys in
events of the journal, such as a start. A holder of log.key can add events: give --signer if the journal may
have been in other hands.

With --policy, a C2SP tlog-policy file, a quorum of its witnesses must have cosigned the checkpoint (of
--checkpoint, or --since-checkpoint, or the one that the appliance publishes, in this order), and the policy
has the log's key. --not-older-than limits the age of the cosignatures.

Exit status 1 also if an event of the journal says that a witness has cosigned another history of the log
(docs/witness.md): any witness, or with --policy one of the policy's.

The last lines list the parts that were not checked, such as records after the checkpoint. With a verifier key
alone, a journal that the holder of log.key has rewritten or truncated looks the same as the one shown to
others.`,
		Example: `  attestd log verify
  attestd log verify --since-checkpoint 2026-10.checkpoint
  attestd log verify /var/backups/attestd/attestd-20261101T023000Z.tar.zst --signer 0x…
  attestd log verify journal.ndjson --checkpoint 2026-11.checkpoint --verifier-key 'example.com/attestd+1a2b3c4d+AQ…'
  attestd log verify journal.ndjson --checkpoint 2026-11.checkpoint --policy witnesses.policy --not-older-than 24h`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef(cmd, "%s accepts at most one FILE", cmd.CommandPath())
			}
			if len(args) == 0 && (v.checkpoint != "" || v.verifierKey != "") {
				return usagef(cmd, "FILE, --checkpoint, and --verifier-key or --policy must be given together")
			}
			if v.verifierKey != "" && v.witnesses.file != "" {
				return usagef(cmd, "--policy includes the log's key: omit --verifier-key")
			}
			if v.notOlder != "" && v.witnesses.file == "" {
				return usagef(cmd, "--not-older-than needs --policy: only cosignatures of witnesses have a time")
			}
			return nil
		},
		RunE: v.run,
	}
	f := cmd.Flags()
	f.StringVar(&v.earlier, "since-checkpoint", "", "file with an earlier checkpoint: the journal must still begin with its records")
	f.StringVar(&v.checkpoint, "checkpoint", "", "with an export as FILE: the signed checkpoint of its records")
	f.StringVar(&v.verifierKey, "verifier-key", "", "with FILE: the log's verifier key, name+hash+key")
	f.StringVar(&v.witnesses.file, "policy", "", "policy file (C2SP tlog-policy) with the log of the checkpoint, and the witnesses that must have cosigned it")
	f.StringVar(&v.notOlder, "not-older-than", "", "with --policy: maximum age of the quorum's cosignatures, such as 24h or 7d")
	f.StringArrayVar(&v.signers, "signer", nil, "address of an attestor key; signatures of other keys are faults; may be repeated")
	return cmd
}

func (v *logVerify) run(cmd *cobra.Command, args []string) error {
	opts, err := v.options(cmd)
	if err != nil {
		return err
	}
	update, end := v.progress("verify", unitRecords)
	opts.Progress = update
	var report audit.Report
	if v.isFile = len(args) == 1; v.isFile {
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
		return interrupted(cmd.Context(), err, "no result; the data is unchanged")
	}
	return v.printReport(v.found(report))
}

func (v *logVerify) options(cmd *cobra.Command) (opts audit.Options, err error) {
	if opts.Signers, err = parseSigners(v.signers); err != nil {
		return opts, usageError{cmd.CommandPath(), err}
	}
	if v.earlier != "" {
		if opts.Earlier, err = v.readCheckpoint("--since-checkpoint", v.earlier); err != nil {
			return opts, err
		}
	}
	if v.witnesses.notBefore, err = parsePast(v.notOlder, time.Now()); err != nil {
		return opts, usagef(cmd, "--not-older-than: %w", err)
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

// zstdMagic is the first four bytes of a backup (RFC 8878, section 3.1.1).
var zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}

// file audits a backup or an export.
func (v *logVerify) file(cmd *cobra.Command, name string, opts audit.Options) (report audit.Report, err error) {
	var verifier note.Verifier
	if v.verifierKey != "" {
		if verifier, err = journal.ParseVerifier(v.verifierKey); err != nil {
			return report, notVerifierKey(cmd)
		}
	}
	f, err := v.openInput(name)
	if err != nil && v.checkpoint == "" && v.verifierKey == "" {
		return report, usagef(cmd, "FILE, --checkpoint, and --verifier-key or --policy must be given together, unless FILE is a backup: %w", err)
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
		return report, usagef(cmd, "%s is a backup, which includes its checkpoint: omit --checkpoint", name)
	case isBackup && v.witnesses.policy != nil:
		return report, usagef(cmd, "%s is a backup, whose checkpoint has no cosignatures: omit --policy", name)
	case isBackup:
		return v.backup(cmd.Context(), in, verifier, opts)
	case v.checkpoint == "" || verifier == nil && v.witnesses.policy == nil:
		return report, usagef(cmd, "FILE, --checkpoint, and --verifier-key or --policy must be given together")
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
	return usagef(cmd, "--verifier-key: not a verifier key; GET /functions/v1/attestor shows the log's, name+hash+key")
}

func (v *logVerify) backup(ctx context.Context, in io.Reader, verifier note.Verifier,
	opts audit.Options) (audit.Report, error) {
	found, err := archive.Inspect(ctx, in, opts)
	if err != nil {
		return found.Report, err
	}
	name := journal.LogName(found.Key.Verifier)
	switch {
	case verifier == nil:
		v.say("The backup says that it belongs to the log %s; to check that, give --verifier-key.", name)
	case v.verifierKey != found.Key.VerifierText:
		return found.Report, fmt.Errorf("the backup belongs to another log, %s", name)
	}
	return found.Report, nil
}

// auditExport audits an NDJSON export of leaves.
func auditExport(ctx context.Context, in io.Reader, verifier note.Verifier, signed []byte,
	opts audit.Options) (report audit.Report, err error) {
	tree, err := journal.OpenCheckpoint(signed, verifier)
	if err != nil {
		return report, err
	}
	a, err := audit.New(verifier, opts.Earlier)
	if err != nil {
		return report, err
	}
	a.Expect(opts)
	err = a.Export(ctx, in, func(index int64, _ audit.Leaf) { opts.Progress(index+1, max(index+1, tree.N)) })
	if err != nil {
		return report, err
	}
	return a.Finish(signed), nil
}
