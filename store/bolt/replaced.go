package bolt

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// ErrReplaced means that another program moved, removed, replaced or overwrote an open file of the journal. It is
// final, because later writes would be lost at the next start.
var ErrReplaced = errors.New("another program changed a file of the running journal")

// removedSuffix and a time end the name of the copy that Close makes of a removed file.
const removedSuffix = ".removed-"

// handle is an open file with its name and identity at the time of opening.
type handle struct {
	*os.File
	path string
	is   unix.Stat_t
}

func newHandle(f *os.File, path string) (handle, error) {
	h := handle{File: f, path: path}
	if err := unix.Fstat(int(f.Fd()), &h.is); err != nil {
		return h, fmt.Errorf("look at %s: %w", path, err)
	}
	return h, nil
}

// check returns ErrReplaced unless the name still leads to the file. Further hard links, such as a backup makes, are
// allowed.
func (h *handle) check() error {
	var named unix.Stat_t
	err := unix.Stat(h.path, &named)
	absent := errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR)
	switch {
	case absent && h.links() == 0:
		return fmt.Errorf("%w: %s was removed", ErrReplaced, h.path)
	case absent:
		return fmt.Errorf("%w: %s was moved. Stop attestd and move the file back", ErrReplaced, h.path)
	case err != nil:
		return fmt.Errorf("look at %s: %w", h.path, err)
	case h.is.Dev != named.Dev || h.is.Ino != named.Ino:
		return fmt.Errorf("%w: %s was replaced by another file", ErrReplaced, h.path)
	}
	return nil
}

// links returns the number of hard links; -1 if unknown.
func (h *handle) links() int {
	var now unix.Stat_t
	if unix.Fstat(int(h.Fd()), &now) != nil {
		return -1
	}
	return int(now.Nlink)
}

// checkFiles is called before each batch. It stops the writer if a file was replaced.
func (w *writer) checkFiles() error {
	f := w.checkpointer
	f.mu.Lock()
	defer f.mu.Unlock()
	err := w.store.checkFile()
	if err == nil && f.wal != nil {
		if err = f.wal.check(); errors.Is(err, ErrReplaced) {
			err = f.fileFromMemory(err)
		}
	}
	if errors.Is(err, ErrReplaced) {
		return w.fail(err)
	}
	if err != nil {
		return passing(err)
	}
	return nil
}

// fileFromMemory flushes the leaves of a removed write-ahead log from memory into the file.
func (f *checkpointer) fileFromMemory(lost error) error {
	ctx, cancel := context.WithTimeout(context.Background(), settleTimeout)
	defer cancel()
	records := f.store.head.Load().tree.N
	if err := f.waitFlushed(ctx); err != nil {
		return fmt.Errorf("%w; cannot move the newest records into %s. Restore the newest backup with: attestd "+
			"restore FILE (%w)", lost, f.store.path, err)
	}
	return fmt.Errorf("%w; all %d records are in %s. Run: systemctl restart attestd", lost, records, f.store.path)
}

// checkFile checks the journal's file. Unless a transaction is writing, it also compares the meta pages: each commit
// changes one of them.
func (s *Store) checkFile() error {
	if err := s.file.check(); err != nil {
		return err
	}
	if !s.updating.TryLock() {
		return nil // the transaction compares them
	}
	defer s.updating.Unlock()
	if err := s.checkMetas(); errors.Is(err, ErrReplaced) {
		return err
	}
	return nil // the next transaction repeats a failed read
}

// checkMetas returns ErrReplaced unless the meta pages are the same as after the last commit. The caller holds
// s.updating.
func (s *Store) checkMetas() error {
	if s.metas == nil {
		return nil // the file was just opened
	}
	now, err := s.readMetas(len(s.metas))
	if err == nil && !bytes.Equal(now, s.metas) {
		return s.overwritten()
	}
	return err
}

// readMetas reads the two meta pages at the start of the file. A short file is padded with zeros.
func (s *Store) readMetas(size int) ([]byte, error) {
	metas := make([]byte, size)
	if _, err := s.file.ReadAt(metas, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("look at %s: %w", s.path, err)
	}
	return metas, nil
}

// keepMetas stores the meta pages after a commit. The caller holds s.updating.
func (s *Store) keepMetas() error {
	now, err := s.readMetas(len(s.metas))
	if err != nil {
		return err
	}
	half := len(now) / 2
	if bytes.Equal(now[:half], s.metas[:half]) == bytes.Equal(now[half:], s.metas[half:]) {
		return s.overwritten()
	}
	s.metas = now
	return nil
}

func (s *Store) overwritten() error {
	return fmt.Errorf("%w: %s was overwritten. Stop attestd and restore the newest backup with: attestd restore FILE",
		ErrReplaced, s.path)
}

// update runs fn in a write transaction.
func (s *Store) update(fn func(tx *bbolt.Tx) error) (err error) {
	s.updating.Lock()
	defer s.updating.Unlock()
	if err := s.checkMetas(); err != nil {
		return err
	}
	s.flushes.begin()
	defer s.flushes.end()
	defer func() {
		if errors.Is(err, ErrDamaged) { // perhaps overwritten after the first check
			err = cmp.Or(s.checkMetas(), err)
		}
	}()
	tx, err := s.begin(true)
	if err != nil {
		return err
	}
	defer survive(&err)()
	rolledBack := false
	defer func() {
		if !rolledBack { // fn panicked, and bbolt keeps its lock
			s.stuck.Store(true)
		}
	}()
	defer func() {
		_ = tx.Rollback() // no effect after a commit
		rolledBack = true
	}()
	if err := fn(tx); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	if s.metas == nil {
		return nil
	}
	return s.keepMetas()
}

// begin begins a transaction. If bbolt's Begin panics over damaged meta pages, it keeps its locks, and every later
// caller would block. The store is then marked as stuck.
func (s *Store) begin(writable bool) (tx *bbolt.Tx, err error) {
	if s.stuck.Load() {
		return nil, fmt.Errorf("%w: the file's meta pages are damaged, so it cannot be read", ErrDamaged)
	}
	defer func() {
		if errors.Is(err, ErrDamaged) {
			s.stuck.Store(true)
			if !writable && s.writer != nil {
				err = s.writer.fail(cmp.Or(s.checkFile(), err))
			}
		}
	}()
	defer survive(&err)()
	return s.db.Begin(writable)
}

// rescue copies a removed file of the journal. Without a copy, its content would be lost when the process ends.
func (s *Store) rescue() {
	if !errors.Is(s.writer.refusal(), ErrReplaced) || s.stuck.Load() || s.file.links() != 0 {
		return
	}
	to := s.path + removedSuffix + time.Now().UTC().Format("20060102T150405.000Z")
	log := s.opts.Logger.With("removed", s.path, "copy", to)
	log.Error("journal: its file was removed; copying the open file before attestd exits")
	err := s.copyRemoved(to)
	if err != nil {
		_ = os.Remove(to)
		log.Error("journal: its removed file cannot be copied and is lost; restore the newest backup with: attestd "+
			"restore FILE", "error", err)
		return
	}
	log.Error("journal: its removed file was copied with all records; to use the copy: mv " + to + " " + s.path)
}

func (s *Store) copyRemoved(to string) (err error) {
	for _, segment := range s.recent.segments { // the checkpointer has ended by now
		if err := s.fileSegment(segment); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	err = s.view(func(tx *bbolt.Tx) error {
		_, err := tx.WriteTo(f)
		return err
	})
	return errors.Join(err, f.Sync(), syncDir(filepath.Dir(to)))
}

// checkRemoved refuses to create a journal next to the copy of a removed one.
func checkRemoved(path string) error {
	copies, err := filepath.Glob(path + removedSuffix + "*")
	if err != nil || len(copies) == 0 {
		return err
	}
	last := copies[len(copies)-1]
	return fmt.Errorf(
		"the journal was removed while attestd ran, and attestd kept a copy. Put the copy back with: mv %s %s", last,
		path)
}
