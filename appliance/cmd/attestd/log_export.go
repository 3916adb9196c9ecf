package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/service"
	"github.com/attestd/attestd/appliance/sinks"
	"github.com/attestd/attestd/appliance/text"
)

// The formats of an export. exportLeaves writes the journal's leaves unchanged.
const (
	exportLeaves = "jsonl"
	exportCSV    = string(sinks.FormatCSV)
	exportCEF    = string(sinks.FormatCEF)
)

var exportFormats = []string{exportLeaves, exportCSV, exportCEF}

// logExport writes the journal to a file or to standard output.
type logExport struct {
	*app
	name   string // name of the file; - for standard output
	format string
	redact string
	follow bool
	until  string // file of a checkpoint, which bounds the export; empty means the newest checkpoint

	file  *os.File // nil for standard output
	out   *bufio.Writer
	form  sinks.Form
	next  int64 // index of the next record
	count int64 // records written

	tree   tlog.Tree        // bounds the records that are written
	hashed journal.Frontier // over the written records, if they begin with record 0
}

func newLogExport(a *app) *cobra.Command {
	x := &logExport{app: a}
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write the records as leaves of the tree, as CSV or as CEF",
		Long: `Write records and events, one per line. With --format jsonl, the default, each line has exactly the bytes of a
leaf: its hash in the tree is SHA-256(0x00 ‖ line without its newline). 'attestd log verify FILE' checks such
a file anywhere, without the appliance. --format csv (RFC 4180) is for spreadsheets, cef (ArcSight Common
Event Format) for a SIEM; the daemon sends records to the SIEMs of audit.sinks continuously. Records link
addresses to beneficiaries, unless --redact omits them: keep the file secret.

With --checkpoint FILE, exactly the records of that checkpoint are written, and compared with its root hash,
even while the journal grows. Without it, the export ends with the newest checkpoint at its start.

--follow continues with new records until it is interrupted. It needs the daemon, and waits while the daemon
restarts.`,
		Example: `  attestd log checkpoint > journal.checkpoint
  attestd log export --checkpoint journal.checkpoint --file journal.ndjson
  attestd log export | jq -r .beneficiary | sort | uniq -c
  attestd log export --format csv --redact addresses --file journal.csv
  attestd log export --follow --from 4711 | jq .`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := x.check(cmd); err != nil {
				return err
			}
			return a.withBackend(cmd, func(o backend) error { return x.run(cmd, o) })
		},
	}
	f := cmd.Flags()
	f.Int64Var(&x.next, "from", 0, "index of the first record")
	f.StringVarP(&x.name, "file", "f", "-", "file to write, created with mode 0600; - for standard output")
	f.StringVar(&x.format, "format", exportLeaves, strings.Join(exportFormats, ", "))
	f.StringVar(&x.redact, "redact", string(sinks.RedactNone),
		"for csv and cef, addresses to omit: addresses (both), unspendable, or none")
	f.StringVar(&x.until, "checkpoint", "",
		"file with a signed checkpoint: write exactly its records, which must have its root hash")
	f.BoolVar(&x.follow, "follow", false, "continue with new records")
	return cmd
}

func (x *logExport) check(cmd *cobra.Command) (err error) {
	if x.next < 0 {
		return usagef(cmd, "--from must not be negative")
	}
	if !slices.Contains(exportFormats, x.format) {
		return usagef(cmd, "--format must be %s, not %q", strings.Join(exportFormats, ", "), x.format)
	}
	if x.form.Redact, err = sinks.ParseRedaction(x.redact); err != nil {
		return usagef(cmd, "--redact: %w", err)
	}
	if x.format == exportLeaves && x.form.Redact != sinks.RedactNone {
		return usagef(cmd, "--redact needs --format csv or cef: leaves of the tree include their addresses")
	}
	if x.follow && x.until != "" {
		return usagef(cmd, "--checkpoint ends the export: omit --follow")
	}
	return nil
}

func (x *logExport) run(cmd *cobra.Command, o backend) error {
	var tail *tail
	if x.follow {
		var err error
		if tail, err = x.newTail(cmd.Context(), o); err != nil {
			return err
		}
	}
	checkpoint, err := o.Checkpoint(cmd.Context())
	if err != nil {
		return err
	}
	x.form.Log, x.form.Version = journal.SignerOf(checkpoint), version()
	if err := x.bound(checkpoint); err != nil {
		return err
	}
	if err := x.open(); err != nil {
		return err
	}
	if x.file != nil {
		defer x.file.Close()
	}
	if x.format == exportCSV {
		fmt.Fprint(x.out, sinks.CSVHeader()+sinks.CSVEnd)
	}
	err = x.write(cmd, o)
	switch {
	case err == nil && x.follow:
		err = tail.follow(cmd.Context(), func() error { return x.write(cmd, o) })
	case err == nil:
		err = x.complete()
	}
	switch {
	case cmd.Context().Err() != nil:
		return interruptedError{fmt.Errorf("interrupted after %d records; to continue, give --from %d", x.count,
			x.next)}
	case err != nil:
		return fmt.Errorf("after %d records: %w", x.count, err)
	case x.file != nil:
		x.say("%s records written to %s.", text.Count(x.count), x.name)
	}
	return nil
}

// bound sets the tree of the export: from --checkpoint, or from the newest checkpoint.
func (x *logExport) bound(newest []byte) (err error) {
	if _, x.tree, err = journal.ReadCheckpoint(newest); err != nil || x.until == "" {
		return err
	}
	size := x.tree.N
	signed, err := x.readCheckpoint("--checkpoint", x.until)
	if err != nil {
		return err
	}
	if _, x.tree, err = journal.ReadCheckpoint(signed); err != nil {
		return fmt.Errorf("--checkpoint: %s: %w", x.until, err)
	}
	if x.tree.N > size {
		return fmt.Errorf(
			"--checkpoint: %s has %d records, the journal only %d: the checkpoint belongs to another log, or the journal lost records; "+
				"to find out: attestd log verify --since-checkpoint %s", x.until, x.tree.N, size, x.until)
	}
	return nil
}

// errExported ends the reading after the last record of the export.
var errExported = errors.New("the export is complete")

// complete checks that the export has all records of the tree and, with --checkpoint, its root hash.
func (x *logExport) complete() error {
	switch {
	case x.next < x.tree.N:
		return fmt.Errorf("the journal ended at record %d of %d", x.next, x.tree.N)
	case x.until != "" && x.hashed.Size() == x.tree.N && x.hashed.Tree() != x.tree:
		return fmt.Errorf(
			"the journal's first %d records do not have the root hash of %s: the checkpoint belongs to another log, or records were changed; "+
				"to find out: attestd log verify --since-checkpoint %s", x.tree.N, x.until, x.until)
	}
	return nil
}

func (x *logExport) open() (err error) {
	x.out = bufio.NewWriterSize(x.app.out, 1<<16)
	if x.name == "-" {
		return nil
	}
	if x.file, err = x.create(x.name); err == nil {
		x.out = bufio.NewWriterSize(x.file, 1<<16)
	}
	return err
}

// write writes the records of the tree. With --follow, it writes all records that the journal has.
func (x *logExport) write(cmd *cobra.Command, o backend) error {
	err := o.Entries(cmd.Context(), x.next, func(leaf []byte) error {
		if !x.follow && x.next >= x.tree.N {
			return errExported
		}
		if x.hashed.Size() == x.next {
			x.hashed.Add(nil, tlog.RecordHash(leaf))
		}
		line, err := x.line(leaf)
		if err == nil {
			_, err = x.out.Write(line)
		}
		if err != nil {
			return unwritten{err}
		}
		x.count++
		x.next++
		return nil
	})
	if failed := x.flush(); failed != nil {
		return unwritten{failed}
	}
	if errors.Is(err, errExported) {
		return nil
	}
	return err
}

func (x *logExport) flush() error {
	err := x.out.Flush()
	if err == nil && x.file != nil {
		err = x.file.Sync()
	}
	return err
}

func (x *logExport) line(leaf []byte) ([]byte, error) {
	if x.format == exportLeaves {
		return append(leaf, '\n'), nil
	}
	e, err := journal.DecodeEntry(x.next, leaf)
	if err != nil {
		return nil, fmt.Errorf("record %d: %w", x.next, err)
	}
	line, err := x.form.Line(sinks.Format(x.format), e)
	if x.format == exportCSV {
		return append(line, sinks.CSVEnd...), err
	}
	return append(line, '\n'), err
}

// create creates a file. If the folder belongs to the daemon's user, root does so as that user, so that a link planted
// there gains nothing.
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
