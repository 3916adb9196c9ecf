package main

import (
	"encoding/binary"
	"os/exec"
	"path/filepath"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/attestd/attestd/appliance/archive"
)

// A backup replaces a journal with an unreadable leaf, by the command that doctor names, if the backup has all of the
// journal.
func TestABackupReplacesAJournalWhoseLeavesCannotBeRead(t *testing.T) {
	t.Parallel()
	for name, index := range map[string]uint64{
		"the event with which the log goes on": 0, "a record": 7, "the newest record": keptRecords,
		"the newest leaf": keptRecords + 1,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, filepath.Join(dir, "attestd.yaml"), nil)
			lostJournal(t, dir)
			backup := filepath.Join(t.TempDir(), "backup.tar.zst")
			for _, cmd := range []*exec.Cmd{acceptLoss(dir), inFolder(dir, "backup", backup)} {
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("%v: %v: %s", cmd.Args, err, out)
				}
			}
			makeUnreadable(t, filepath.Join(dir, archive.StoreFile), index)
			if out, err := inFolder(dir, "restore", "--force", backup).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if out, err := inFolder(dir, "log", "verify").CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}

// makeUnreadable gives a leaf an invalid salt.
func makeUnreadable(t *testing.T, path string, index uint64) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	name := binary.BigEndian.AppendUint64(nil, index)
	if err := db.Update(func(tx *bbolt.Tx) error {
		records := tx.Bucket([]byte("records"))
		leaf := append([]byte(nil), records.Get(name)...)
		leaf[len(leaf)-3] = 'g'
		return records.Put(name, leaf)
	}); err != nil {
		t.Fatal(err)
	}
}
