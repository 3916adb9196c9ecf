package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/journal"
)

// TestAnAPIKeyPlantedInABackupIsFound adds API keys to the attestd.db of a backup, and replaces the secret of one,
// without the log key.
func TestAnAPIKeyPlantedInABackupIsFound(t *testing.T) {
	t.Parallel()
	_, secret, err := journal.NewLogKey("example.com/attestd")
	if err != nil {
		t.Fatal(err)
	}
	h := newHouse(t, secret, newSigner(t))
	create := func(name string, told, replaced bool) appliance.APIKey {
		made, _, err := appliance.NewAPIKey(appliance.KeyRequest{Name: name}, time.Now())
		h.must(err)
		if told {
			_, err = h.store.Journal().AppendEvent(t.Context(),
				journal.Event{Kind: journal.EventKeyCreated, By: "root", Details: made.Details()})
			h.must(err)
		}
		if replaced {
			made.SecretHash[0]++
		}
		h.must(h.store.Keys().Create(t.Context(), made)) // writes the same bytes as an attacker
		return made
	}
	create("told", true, false)
	h.attest(3)
	sound := h.backup()
	planted := []appliance.APIKey{create("planted", false, false), create("another", false, false),
		create("another secret", true, true)}

	tampered := filepath.Join(t.TempDir(), "backup.tar.zst")
	write := func(w io.Writer) error { return archive.Write(w, h.store, h.key, "test", time.Now()) }
	_, _, err = archive.Make(t.Context(), tampered, write, archive.Sealing{}, archive.AuditOptions{SkipRecords: true})
	for _, p := range planted {
		if err == nil || !strings.Contains(err.Error(), p.ID) {
			t.Errorf("the backup's check does not name %q: %v", p.Name, err)
		}
	}
	f, err := os.Create(tampered)
	h.must(err)
	compressed, err := zstd.NewWriter(f)
	h.must(err)
	h.must(write(compressed))
	h.must(compressed.Close())
	h.must(f.Close())

	restore := func(name string) error {
		dir := t.TempDir()
		f, err := os.Open(name)
		h.must(err)
		defer f.Close()
		_, err = archive.Restore(t.Context(), f, dir, archive.RestoreOptions{NewLogKey: true})
		if _, missing := os.Stat(filepath.Join(dir, archive.StoreFile)); err != nil && missing == nil {
			t.Errorf("%s was put in place", name)
		}
		return err
	}
	if err := restore(sound); err != nil {
		t.Errorf("a sound backup: %v", err)
	}
	err = restore(tampered)
	for _, p := range planted {
		if err == nil || !strings.Contains(err.Error(), p.ID) {
			t.Errorf("%q is not named: %v", p.Name, err)
		}
	}
	report, err := h.store.Journal().Verify(t.Context(), audit.Options{AnySigner: true})
	h.must(err)
	if len(report.Damages) != len(planted) {
		t.Errorf("log verify finds %v", report.Damages)
	}
}
