package bolt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/attestd/attestd/appliance/journal"
	"go.etcd.io/bbolt"
)

// flushEvery is the maximum time for which leaves are in the write-ahead log only, on a healthy disk.
const flushEvery = time.Second

// checkpointer moves leaves from the write-ahead log into the file in the background.
type checkpointer struct {
	store  *Store
	writer *writer
	wake   chan struct{} // has an element if leaves may be waiting for a flush
	stop   chan struct{} // closed by close
	ended  chan struct{} // closed after run has returned

	// mu is held while a batch is written to the write-ahead log and published, and while a segment is passed to a
	// flush. It protects the fields below, and changes of Store.head and Store.recent.
	mu        sync.Mutex
	wal       *wal  // nil if none was needed yet, or if a write to it failed
	sealed    bool  // the first of the recent segments is complete, and a flush of it is running or due
	begun     int64 // number of flushes begun
	concluded int64 // number of flushes that have ended
	outcome   error // result of the last flush
	warned    time.Time
	changed   chan struct{} // closed when a flush ends
}

func newFiler(s *Store) *checkpointer {
	return &checkpointer{
		store: s, wake: make(chan struct{}, 1), stop: make(chan struct{}), ended: make(chan struct{}),
		changed: make(chan struct{}),
	}
}

func (f *checkpointer) run() {
	defer close(f.ended)
	for {
		select {
		case <-f.wake:
			f.flushFirst()
		case <-f.stop:
			return
		}
	}
}

func (f *checkpointer) signal() {
	select {
	case f.wake <- struct{}{}:
	default: // the checkpointer is awake already
	}
}

// persist writes leaves and their checkpoint to the disk and publishes them. The caller holds f.mu, which persist
// releases while it waits. After an error, the leaves are not in the journal, unless the process ends before the next
// write.
func (f *checkpointer) persist(next *segment) error {
	if f.wal == nil {
		if err := f.renew(); err != nil {
			return err
		}
	}
	frame := f.wal.encode(next)
	if !f.wal.fits(frame) {
		return f.pass(next)
	}
	if !f.wal.hasRoom(frame) {
		if err := f.await(context.Background(), func() bool { return !f.sealed || f.wal.hasRoom(frame) }); err != nil {
			return err
		}
		if !f.wal.hasRoom(frame) {
			f.seal()
		}
	}
	if err := f.wal.write(frame); err != nil {
		// An unknown part of the frame was written. It is never overwritten: a new write-ahead log replaces this one.
		_ = f.wal.file.Close()
		f.wal = nil
		return err
	}
	f.add(next)
	return nil
}

// add adds synced leaves to the last segment, or to a new one if that is sealed.
func (f *checkpointer) add(next *segment) {
	r := &f.store.recent
	own := len(r.segments) == 0 || f.sealed && len(r.segments) == 1
	r.add(next, own)
	switch {
	case f.wal != nil && f.wal.halfFull() && !f.sealed:
		f.seal()
	case own:
		time.AfterFunc(flushEvery, f.signal)
	}
}

// seal closes the first segment for its flush. Later frames go into the other half of the write-ahead log.
func (f *checkpointer) seal() {
	f.sealed = true
	if f.wal != nil {
		f.wal.switchHalf()
	}
	f.signal()
}

// renew creates a new write-ahead log after all leaves of the old one were flushed.
func (f *checkpointer) renew() error {
	if err := f.waitFlushed(context.Background()); err != nil {
		return err
	}
	w, err := createWAL(f.store.path, logMark(journal.LogName(f.store.opts.Verifier)), f.store.opts.walSize)
	if err != nil {
		err = fmt.Errorf("make %s: %w", WALPath(f.store.path), err)
		for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG, syscall.EROFS,
			syscall.EMFILE, syscall.ENFILE} {
			if errors.Is(err, errno) { // also from the sync: the file was empty
				return passing(err)
			}
		}
		return err
	}
	f.wal = w
	return nil
}

// pass writes a batch that is larger than half of the write-ahead log directly into the file.
func (f *checkpointer) pass(next *segment) error {
	if err := f.waitFlushed(context.Background()); err != nil {
		return err
	}
	return f.store.fileSegment(next)
}

// waitFlushed waits until the file has all published leaves.
func (f *checkpointer) waitFlushed(ctx context.Context) error {
	end := f.store.head.Load().tree.N
	return f.await(ctx, func() bool { return f.store.head.Load().inFile() >= end })
}

// await waits for a condition that a flush brings about. If a flush that began after the call fails, await returns its
// error. The caller holds f.mu, which await releases while it waits.
func (f *checkpointer) await(ctx context.Context, reached func() bool) error {
	before := f.begun
	for !reached() {
		switch {
		case f.writer.refusal() != nil:
			return f.writer.refusal()
		case f.outcome != nil && f.concluded > before:
			return f.outcome
		}
		f.signal()
		changed := f.changed
		f.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		f.mu.Lock()
		if ctx.Err() != nil {
			return timeout(ctx, "wait until the file has all records")
		}
	}
	return nil
}

// flushFirst flushes the first segment, if one exists.
func (f *checkpointer) flushFirst() {
	f.mu.Lock()
	defer f.mu.Unlock()
	segments := f.store.recent.segments
	if len(segments) == 0 || f.writer.refusal() != nil {
		f.conclude(f.begun, f.writer.refusal()) // wakes the waiters
		return
	}
	if !f.sealed {
		f.seal()
	}
	f.begun++
	n, first := f.begun, segments[0]
	f.mu.Unlock()
	err := f.store.fileSegment(first)
	f.mu.Lock()
	if err != nil {
		f.conclude(n, f.notFiled(err))
		return
	}
	f.sealed = false
	f.store.recent.drop()
	h := *f.store.head.Load()
	h.tail = f.store.recent.tail()
	f.store.head.Store(&h)
	if f.wal != nil && f.wal.halfFull() {
		f.seal()
	}
	f.conclude(n, nil)
}

func (f *checkpointer) conclude(n int64, outcome error) {
	f.concluded, f.outcome = n, outcome
	close(f.changed)
	f.changed = make(chan struct{})
}

// notFiled decides whether the failure of a flush is final, and returns the error for the waiters.
func (f *checkpointer) notFiled(err error) error {
	if !notWritten(err) {
		return f.writer.fail(err)
	}
	time.AfterFunc(fullRetry, f.signal)
	if now := time.Now(); now.Sub(f.warned) >= warnInterval {
		f.warned = now
		f.store.opts.Logger.Log(context.Background(), slog.LevelError, "journal: the disk is full or read-only; "+
			"records stay in the write-ahead log until it is full",
			"error", err, "records", f.store.head.Load().tree.N-f.store.head.Load().inFile())
	}
	return passing(fmt.Errorf("the disk is not writable: %w", err))
}

// close flushes the remaining leaves and then removes the write-ahead log. The writer has ended before.
func (f *checkpointer) close() {
	f.mu.Lock()
	err := f.waitFlushed(context.Background())
	f.mu.Unlock()
	close(f.stop)
	<-f.ended
	if f.wal != nil {
		_ = f.wal.file.Close() // all of its frames are synced
	}
	if err != nil {
		f.store.opts.Logger.Warn("journal: the newest records stay in the write-ahead log; the next start moves them "+
			"into the journal", "file", WALPath(f.store.path), "error", err)
		return
	}
	removeWAL(f.store.path)
}

// removeWAL removes an unneeded write-ahead log. A failure is harmless.
func removeWAL(journal string) {
	_ = os.Remove(WALPath(journal) + ".new")
	if os.Remove(WALPath(journal)) == nil {
		_ = syncDir(filepath.Dir(journal))
	}
}

// fileSegment writes a segment into the file and syncs it.
func (s *Store) fileSegment(next *segment) error {
	err := s.update(func(tx *bbolt.Tx) error {
		t, err := openTables(tx)
		if err != nil {
			return err
		}
		if !bytes.Equal(t.meta.Get([]byte(metaCheckpoint)), s.flushedCheckpoint) {
			return errors.New("the file changed since the last commit")
		}
		return errors.Join(t.put(&next.leaves), t.meta.Put([]byte(metaCheckpoint), next.checkpoint))
	})
	if err == nil {
		s.flushedCheckpoint = next.checkpoint // owned by the checkpointer once it runs
	}
	return err
}
