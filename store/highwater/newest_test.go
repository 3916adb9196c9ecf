package highwater_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/attestd/attestd/store/bolt"
	"github.com/attestd/attestd/store/highwater"
)

// committing opens a store at journal/attestd.db with its mark next to it, as the daemon does.
func (r *rig) committing(dir string, every time.Duration) (*bolt.Store, *highwater.Journal) {
	r.t.Helper()
	var guard atomic.Pointer[highwater.Journal]
	s, err := bolt.Open(filepath.Join(dir, "attestd.db"), bolt.Options{
		Signer: r.key.Signer, Verifier: r.key.Verifier, Committed: func(c []byte) { guard.Load().Committed(c) },
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = s.Close() })
	g, err := highwater.Open(r.t.Context(), filepath.Join(dir, highwater.FileName), s.Journal(),
		highwater.Options{Key: r.key, Every: every})
	if err != nil {
		r.t.Fatal(err)
	}
	guard.Store(g)
	return s, g
}

func (r *rig) copyFiles(from, to string, names ...string) {
	r.t.Helper()
	for _, name := range names {
		content, err := os.ReadFile(filepath.Join(from, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(to, name), content, 0o600)
		}
		if err != nil {
			r.t.Fatal(err)
		}
	}
}

// After a kill, records of the last second are only in the write-ahead log. If that is removed, the next start reports
// the loss.
func TestTheMarkCoversTheWriteAheadLog(t *testing.T) {
	r := newRig(t)
	newest := highwater.NewestPath(highwater.FileName)
	dir, left := t.TempDir(), t.TempDir()
	s, g := r.committing(dir, time.Hour)
	r.append(g, 3)
	closeAll(t, g, s)
	s, g = r.committing(dir, time.Hour)
	r.copyFiles(dir, left, "attestd.db", highwater.FileName) // as they are before the first second has passed
	r.append(g, 4)
	r.copyFiles(dir, left, "attestd.db-wal", newest)
	closeAll(t, g, s)

	whole := t.TempDir()
	r.copyFiles(left, whole, "attestd.db", "attestd.db-wal", highwater.FileName, newest)
	s, g = r.committing(whole, time.Hour)
	if loss := g.Loss(); loss != nil || g.Mark().Tree.N != 7 {
		t.Errorf("after a kill alone: %v, a mark of %d", loss, g.Mark().Tree.N)
	}
	closeAll(t, g, s)

	if err := os.Remove(filepath.Join(left, "attestd.db-wal")); err != nil {
		t.Fatal(err)
	}
	s, g = r.committing(left, time.Hour)
	loss := g.Loss()
	if loss == nil || loss.High.N != 7 || loss.Low.N != 3 {
		t.Fatalf("without the write-ahead log: %v", loss)
	}
	for _, said := range []string{"the high-water mark has 7 records", "the journal has 3"} {
		if !strings.Contains(loss.Error(), said) {
			t.Errorf("the loss does not say that %s: %v", said, loss)
		}
	}
	closeAll(t, g, s)
	if _, err := os.Stat(filepath.Join(left, newest)); err != nil {
		t.Errorf("the newest commit is forgotten: %v", err)
	}
}

func TestTheNewestCommitIsForgottenOnceTheMarkCoversIt(t *testing.T) {
	r := newRig(t)
	dir := t.TempDir()
	mark := filepath.Join(dir, highwater.FileName)
	s, g := r.committing(dir, time.Hour)
	r.append(g, 3)
	signed, err := os.ReadFile(highwater.NewestPath(mark))
	if err != nil {
		t.Fatal(err)
	}
	if m, err := highwater.Read(mark, r.key.Verifier); err != nil || m.Tree.N != 3 {
		t.Errorf("while it runs: a mark of %d, %v", m.Tree.N, err)
	}
	closeAll(t, g, s)
	if _, err := os.Stat(highwater.NewestPath(mark)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after a clean stop: %v", err)
	}
	// A file torn by a power cut is ignored. A mark set by an operator replaces it.
	torn := append([]byte(nil), signed[:len(signed)/2]...)
	if err := os.WriteFile(highwater.NewestPath(mark), torn, 0o600); err != nil {
		t.Fatal(err)
	}
	if m, err := highwater.Read(mark, r.key.Verifier); err != nil || m.Tree.N != 3 {
		t.Errorf("torn: a mark of %d, %v", m.Tree.N, err)
	}
	if err := highwater.Write(mark, signed); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(highwater.NewestPath(mark)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after Write: %v", err)
	}
}
