package bolt

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/counts"
	"github.com/attestd/attestd/store/queue"
	"github.com/google/uuid"
	"go.etcd.io/bbolt"
)

const (
	flushInterval = 30 * time.Second // between writes of last uses
	fullRetry     = time.Second      // how long after a failed write the disk counts as full
	warnInterval  = time.Minute      // between warnings that the newest record is ahead of the clock

	slowCommit = 5 * time.Second // Ready fails during a longer commit

	// The result of a free space check is used this long. MinFree is far more than is written during that time.
	roomyFor = 100 * time.Millisecond
)

// change is a record or an event to append, a new API key, or leaves to import. An empty change waits for the changed
// API keys to be written.
type change struct {
	record *appliance.Record
	admits []journal.Condition // conditions of the record
	event  *journal.Event
	newKey *appliance.APIKey
	leaves [][]byte
	first  int64 // index of leaves[0]

	// Set by the writer.
	entry    *journal.Entry
	replayed bool
}

type op = queue.Op[change]

// appends reports whether the change appends leaves.
func (c *change) appends() bool { return c.record != nil || c.event != nil || c.leaves != nil }

// writer writes the queue's batches: leaves to the write-ahead log, API keys to the file. Its checkpointer flushes the
// leaves into the file.
type writer struct {
	store        *Store
	queue        *queue.Queue[change]
	checkpointer *checkpointer

	failed chan error            // receives the fault once
	fault  atomic.Pointer[error] // the final error, after which all writes are refused; set by fail
	roomy  atomic.Int64          // time at which the disk last had space, in Unix nanoseconds
	// time of the last write that failed for want of space, in Unix nanoseconds; set by write
	full atomic.Int64
	// last time of the warning that the newest record is ahead of the clock, in Unix nanoseconds
	warned atomic.Int64

	// Owned by write. They describe the state on the disk. A batch works on copies, which replace them after a
	// successful write.
	frontier journal.Frontier
	flushed  time.Time // when the API keys' last uses were last written
}

func newWriter(s *Store, frontier journal.Frontier) *writer {
	w := &writer{store: s, frontier: frontier, checkpointer: newFiler(s), failed: make(chan error, 1)}
	w.checkpointer.writer, w.checkpointer.sealed = w, len(s.recent.segments) > 0
	go w.checkpointer.run()
	w.queue = queue.New(queue.Options[change]{Write: w.write, Every: flushInterval, Pending: s.opts.Pending})
	return w
}

// end writes the queued changes and flushes them into the file.
func (w *writer) end() {
	w.queue.Close()
	w.checkpointer.close()
}

// submit queues a change and waits for it until ctx ends.
func (s *Store) submit(ctx context.Context, o *op) error {
	if s.writer == nil {
		return errReadOnly()
	}
	return s.writer.queue.Do(ctx, o)
}

func errReadOnly() error { return unavailable(errors.New("the journal was opened read-only")) }

// write writes a batch of the queue.
func (w *writer) write(ops []*op, last bool) error {
	if err := w.refusal(); err != nil {
		return err
	}
	if err := w.checkFiles(); err != nil {
		return err
	}
	b := &batch{writer: w, ops: ops, last: last}
	w.store.commits.begin()
	defer w.store.commits.end()
	return w.finalOrRetry(b.write())
}

// refusal returns the final error, or nil.
func (w *writer) refusal() error {
	if fault := w.fault.Load(); fault != nil {
		return *fault
	}
	return nil
}

// finalOrRetry decides whether an error is final, and returns the error for the waiters.
//
// If the disk was full or read-only, the batch was not published, and the next write may succeed. Every other error is
// final. After a failed fsync, the kernel may have marked the lost pages as clean, so that reading them back or syncing
// again seems to succeed (Rebello et al., "Can Applications Recover from fsync Failures?", USENIX ATC 2020;
// PostgreSQL's "fsyncgate", 2018). Only a new process that reads the disk can be trusted: see forgetCached.
func (w *writer) finalOrRetry(err error) error {
	if err == nil {
		return nil
	}
	answer, judged := errors.AsType[*appliance.Error](err) // the checkpointer has judged it
	switch {
	case w.refusal() != nil:
		return w.refusal()
	case errors.Is(err, journal.ErrUnsigned): // before anything was written
		return &appliance.Error{Code: appliance.CodeJournalUnavailable, Detail: "the journal is not available",
			RetryAfter: time.Second, Cause: err}
	case !judged && !notWritten(err):
		return w.fail(err)
	case !judged:
		answer = passing(fmt.Errorf("the disk is not writable: %w", err))
	}
	w.full.Store(w.store.opts.Now().UnixNano())
	w.roomy.Store(0)
	w.store.opts.Logger.Error("journal: the disk is full or read-only; signing stops until it is writable again",
		"error", answer.Cause)
	return answer
}

// fail stops all writes.
func (w *writer) fail(err error) error {
	answer := unavailable(fmt.Errorf("writing failed permanently: %w", err))
	if !w.fault.CompareAndSwap(nil, &answer) {
		return w.refusal()
	}
	if !errors.Is(err, ErrReplaced) {
		err = fmt.Errorf("write %s: %w", w.store.path, err)
	}
	w.failed <- err
	w.store.opts.Logger.Error(
		"journal: writing failed permanently; check the disk, then run: systemctl restart attestd", "error", err)
	return answer
}

// passing is the error while the disk is full or read-only. attestd recovers without a restart.
func passing(cause error) *appliance.Error {
	return &appliance.Error{Code: appliance.CodeJournalUnavailable, Detail: "the journal is not available",
		RetryAfter: fullRetry, Cause: cause}
}

// notWritten reports whether a transaction failed before its sync because the disk is full or read-only. A failed sync
// never counts, regardless of its errno: bbolt returns a bare errno for a failed sync, and an error with the operation
// for a failed write.
func notWritten(err error) bool {
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG, syscall.EROFS} {
		var path *fs.PathError
		if errors.As(err, &path) && path.Op == "write" && errors.Is(path.Err, errno) {
			return true
		}
		// bbolt returns the error of growing the file, which precedes all writes, as text.
		if text := err.Error(); strings.HasPrefix(text, "file resize error: ") &&
			strings.HasSuffix(text, errno.Error()) {
			return true
		}
	}
	return false
}

// batch is a group of changes that is written at once.
type batch struct {
	writer *writer
	ops    []*op
	last   bool // the last batch, which also writes the last uses

	tx       *bbolt.Tx // read transaction for lookups; nil before the first
	frontier journal.Frontier
	now      time.Time // time of all records of the batch
	ahead    error     // the reason to refuse appends, or nil
	next     *segment  // the leaves to append
	counted  map[counts.Name]counts.Count
}

// write writes the batch. Its error concerns all ops; the error of a single op is in the op.
func (b *batch) write() error {
	if err := b.writeKeys(); err != nil {
		return err
	}
	for _, o := range b.ops {
		if o.Value.appends() {
			return b.writeLeaves()
		}
	}
	return nil
}

// writeLeaves appends the leaves, syncs and publishes them.
func (b *batch) writeLeaves() error {
	w := b.writer
	w.checkpointer.mu.Lock()
	defer w.checkpointer.mu.Unlock()
	if err := b.append(); err != nil || len(b.next.entries) == 0 {
		return err
	}
	h := &head{tree: b.frontier.Tree(), last: b.next.last}
	var err error
	if h.checkpoint, err = journal.SignCheckpoint(h.tree, w.store.opts.Signer); err != nil {
		return fmt.Errorf("sign checkpoint: %w", err)
	}
	b.next.checkpoint = h.checkpoint
	if err := w.checkpointer.persist(b.next); err != nil {
		return err
	}
	// The head is published before the callers are answered, so that Checkpoint covers every entry that Append has
	// returned.
	w.frontier = b.frontier
	h.tail = w.store.recent.tail()
	w.store.head.Store(h)
	if w.store.opts.Committed != nil {
		w.store.opts.Committed(h.checkpoint)
	}
	for name, count := range b.counted {
		w.store.counts.Keep(name, count)
	}
	return nil
}

// append encodes the leaves of the ops.
func (b *batch) append() (err error) {
	defer survive(&err)()
	defer func() {
		if b.tx != nil {
			err = errors.Join(err, b.tx.Rollback())
		}
	}()
	s, h := b.writer.store, b.writer.store.head.Load()
	b.frontier = b.writer.frontier.Clone()
	b.next = newSegment(h.tree.N)
	b.ahead = s.checkClock()
	b.now = s.opts.Now().UTC().Truncate(time.Millisecond)
	if b.now.Before(h.last) {
		b.now = h.last
	}
	for _, o := range b.ops {
		switch {
		case o.Value.record != nil:
			o.Err = b.appendRecord(o)
		case o.Value.event != nil:
			o.Err = b.appendEvent(o)
		case o.Value.leaves != nil:
			o.Err = b.appendLeaves(o)
		}
	}
	return nil
}

// find returns the entry for a name, including entries of this batch, or nil.
func (b *batch) find(l lookup) (*journal.Entry, error) {
	if e := b.next.find(l); e != nil {
		return e, nil
	}
	if e := b.writer.store.recent.find(l); e != nil {
		return e, nil
	}
	if err := b.begin(); err != nil {
		return nil, err
	}
	index := b.tx.Bucket([]byte(l.bucket)).Get(l.name)
	if index == nil {
		return nil, nil
	}
	e, err := readEntry(b.tx.Bucket([]byte(bucketRecords)), index)
	return &e, err
}

// appendRecord adds one record. Its error concerns that record only.
func (b *batch) appendRecord(o *op) error {
	r := *o.Value.record
	if err := checkRecord(r); err != nil {
		return err
	}
	// The writer checks the key here: a revocation takes effect in memory at once, and Revoke returns after a later
	// batch.
	if key, err := b.writer.store.keys.Key(context.Background(), r.KeyID); err == nil {
		if err := key.Usable(b.now); err != nil {
			return err
		}
	}
	if r.IdempotencyKey != "" {
		earlier, err := b.find(lookup{bucketIdempotency, idempotencyName(r.KeyID, r.IdempotencyKey)})
		if earlier != nil || err != nil {
			return o.Value.replay(earlier, err)
		}
	}
	switch taken, err := b.find(lookup{bucketIDs, r.ID[:]}); {
	case err != nil:
		return err
	case taken != nil:
		return appliance.Errorf(appliance.CodeInternal,
			"the attestation cannot be recorded").Because(fmt.Errorf("id %s exists already", r.ID))
	case b.ahead != nil:
		return b.ahead
	}
	r.Time = b.now
	if err := b.admit(r, o.Value.admits); err != nil {
		return err
	}
	rand.Read(r.Salt[:]) // never fails (Go 1.24)
	leaf, err := journal.EncodeLeaf(r)
	if err != nil {
		return appliance.Errorf(appliance.CodeInternal, "the attestation cannot be recorded").Because(err)
	}
	o.Value.entry = &journal.Entry{Index: b.frontier.Size(), Record: r, Leaf: leaf}
	b.next.add(&b.frontier, o.Value.entry)
	return nil
}

// appendEvent adds one event unless the journal has it.
func (b *batch) appendEvent(o *op) error {
	e := *o.Value.event
	earlier, err := b.find(lookup{bucketIDs, e.ID[:]})
	switch {
	case earlier != nil || err != nil:
		return o.Value.replay(earlier, err)
	case b.ahead != nil:
		return b.ahead
	}
	leaf, err := e.At(b.now)
	if err != nil {
		return err
	}
	o.Value.entry = &journal.Entry{Index: b.frontier.Size(), Event: &e, Leaf: leaf}
	b.next.add(&b.frontier, o.Value.entry)
	return nil
}

// replay answers an op with an existing entry.
func (c *change) replay(earlier *journal.Entry, err error) error {
	c.entry, c.replayed = earlier, true
	return err
}

// checkRecord refuses values that bbolt or JSON would not return unchanged.
func checkRecord(r appliance.Record) error {
	refuse := func(reason string) error {
		return appliance.Errorf(appliance.CodeInternal,
			"the attestation cannot be recorded").Because(errors.New(reason))
	}
	switch {
	case r.ID == uuid.Nil:
		return refuse("the record has no id")
	case r.KeyID == "" || len(r.KeyID) > 255 || strings.Contains(r.KeyID, "\x00") || !utf8.ValidString(r.KeyID):
		return refuse("the record's API key id is malformed")
	case !utf8.ValidString(r.IdempotencyKey) || !utf8.ValidString(r.Scheme),
		r.Domain != nil && (!utf8.ValidString(r.Domain.Name) || !utf8.ValidString(r.Domain.Version)):
		return refuse("the record has text that is not UTF-8")
	}
	return nil
}
