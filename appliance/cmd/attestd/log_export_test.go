package main

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/bolt"
	"github.com/attestd/attestd/store/storetest"
)

// busyBackend is a journal that gets three records before each answer, as under load.
type busyBackend struct {
	backend // nil: an export needs no other method
	t       *testing.T
	store   *bolt.Store
}

func newBusyBackend(t *testing.T, name string) (busyBackend, journal.LogKey) {
	t.Helper()
	key, _, err := journal.NewLogKey(name)
	if err != nil {
		t.Fatal(err)
	}
	s, err := bolt.Open(filepath.Join(t.TempDir(), "journal"), bolt.Options{Signer: key.Signer, Verifier: key.Verifier})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return busyBackend{t: t, store: s}, key
}

func (b busyBackend) attest() {
	b.t.Helper()
	for range 3 {
		if _, _, err := b.store.Journal().Append(b.t.Context(), storetest.Record(b.t, "key")); err != nil {
			b.t.Fatal(err)
		}
	}
}

func (b busyBackend) Checkpoint(ctx context.Context) ([]byte, error) {
	b.attest()
	return b.store.Journal().Checkpoint(ctx)
}

func (b busyBackend) Entries(ctx context.Context, first int64, yield func(leaf []byte) error) error {
	b.attest()
	return b.store.Journal().Entries(ctx, first, func(e journal.Entry) error { return yield(e.Leaf) })
}

// export is the output of 'attestd log export'. until is the checkpoint of --checkpoint, or nil.
func (b busyBackend) export(until []byte) (journal []byte, err error) {
	var out bytes.Buffer
	x := &logExport{app: &app{terminal: terminal{out: &out, err: b.t.Output()}}, name: "-", format: exportLeaves}
	if until != nil {
		x.until = filepath.Join(b.t.TempDir(), "checkpoint")
		if err := os.WriteFile(x.until, until, 0o600); err != nil {
			b.t.Fatal(err)
		}
	}
	cmd := new(cobra.Command)
	cmd.SetContext(b.t.Context())
	err = x.run(cmd, b)
	return out.Bytes(), err
}

func TestAnExportOfAGrowingJournalIsExactlyACheckpoints(t *testing.T) {
	t.Parallel()
	b, key := newBusyBackend(t, "example.com/log")
	published, err := b.Checkpoint(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		journal, err := b.export(published)
		if err != nil {
			t.Fatal(err)
		}
		opts := audit.Options{Progress: func(int64, int64) {}}
		report, err := auditExport(t.Context(), bufio.NewReader(bytes.NewReader(journal)), key.Verifier, published,
			opts)
		if err != nil || !report.OK() || report.Size != 3 {
			t.Errorf("the export of 3 records has %d, and %v, %v", report.Size, report.Damages, err)
		}
	}
	journal, err := b.export(nil) // of the newest checkpoint at its beginning
	if n := bytes.Count(journal, []byte("\n")); err != nil || n != 24 {
		t.Errorf("%d records, %v, want the 24 of the newest checkpoint", n, err)
	}
}

func TestAnExportIsHeldAgainstItsCheckpoint(t *testing.T) {
	t.Parallel()
	b, _ := newBusyBackend(t, "example.com/log")
	other, _ := newBusyBackend(t, "example.com/log")
	for range 2 {
		b.attest()
	}
	changed, err := other.Checkpoint(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.export(changed); err == nil || !strings.Contains(err.Error(), "do not have the root hash") {
		t.Errorf("another journal's checkpoint of as many records: %v", err)
	}
	for range 20 {
		other.attest()
	}
	longer, err := other.Checkpoint(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.export(longer); err == nil || !strings.Contains(err.Error(), "has 66 records, the journal only 15") {
		t.Errorf("a checkpoint of more records than there are: %v", err)
	}
	if _, err := b.export([]byte("none\n")); err == nil || !strings.Contains(err.Error(), "checkpoint: ") {
		t.Errorf("no checkpoint: %v", err)
	}
}
