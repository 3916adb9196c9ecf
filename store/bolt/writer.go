package bolt

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/store/bolt/pages"
	"github.com/attestd/attestd/store/queue"
	"github.com/google/uuid"
	"go.etcd.io/bbolt"
	"golang.org/x/mod/sumdb/tlog"
)

const (
	flushInterval = 30 * time.Second // between writes of last uses
	fullRetry     = time.Second      // how long a full disk is believed to stay full
	warnInterval  = time.Minute      // between warnings that the newest record is ahead of the clock

	roomyFor = 100 * time.Millisecond // how long one with space, whose MinFree is far more than is written meanwhile
)

// change is what a caller waits for: a record or an event to append, a new API key, leaves to import, or, with none of these, that whatever
// changed in the API keys is written.
type change struct {
	record *appliance.Record
	event  *appliance.Event
	newKey *appliance.APIKey
	leaves [][]byte
	first  int64 // index of leaves[0]

	// Set by the writer.
	entry    appliance.Entry
	replayed bool
}

type op = queue.Op[change]

// writer owns all writes to the file: it writes the queue's batches, one transaction each.
type writer struct {
	store *Store
	queue *queue.Queue[change]

	failed chan error            // has the fault, once
	fault  atomic.Pointer[error] // why nothing is written any more; set by write
	roomy  atomic.Int64          // when the disk was last seen to have space, in Unix nanoseconds
	full   atomic.Int64          // when the disk last took no write, in Unix nanoseconds; set by write
	warned atomic.Int64          // when the log was last told that the newest record is ahead of the clock, in Unix nanoseconds

	// Owned by write. They describe what is committed: a batch works on copies, which replace them only when its
	// commit has succeeded.
	frontier appliance.Frontier
	flushed  time.Time // when the API keys' last uses were last written
}

func newWriter(s *Store, frontier appliance.Frontier) *writer {
	w := &writer{store: s, frontier: frontier, failed: make(chan error, 1)}
	w.queue = queue.New(queue.Options[change]{Write: w.write, Every: flushInterval, Pending: s.opts.Pending})
	return w
}

// submit has the writer make a change, and waits for it no longer than the context.
func (s *Store) submit(ctx context.Context, o *op) error {
	if s.writer == nil {
		return errReadOnly()
	}
	return s.writer.queue.Do(ctx, o)
}

func errReadOnly() error { return unavailable(errors.New("it was opened read-only")) }

// write writes a batch of the queue.
func (w *writer) write(ops []*op, last bool) error {
	if err := w.refusal(); err != nil {
		return err
	}
	b := &batch{writer: w, ops: ops, last: last}
	return w.judge(b.write())
}

// refusal returns why nothing can be written any more, or nil.
func (w *writer) refusal() error {
	if fault := w.fault.Load(); fault != nil {
		return *fault
	}
	return nil
}

// judge decides what the outcome of a write means for those to come, and returns what those who waited are told.
//
// When the disk was full or read-only, bbolt has rolled back: nothing of the transaction was made visible, and the next one
// may succeed. Any other failure is final. After a failed fsync the kernel may have marked the lost pages as clean, so that
// reading them back or syncing again seems to succeed (Rebello et al., "Can Applications Recover from fsync Failures?",
// USENIX ATC 2020; PostgreSQL's "fsyncgate", 2018). With bbolt the new meta page may even be visible in the mapping
// and yet not be on the disk: a next transaction would build on records that are not there. Only a new process that
// reads what the disk really holds can be trusted: see forgetCached.
func (w *writer) judge(err error) error {
	if err == nil {
		return nil
	}
	if notWritten(err) {
		w.full.Store(w.store.opts.Now().UnixNano())
		w.roomy.Store(0)
		w.store.opts.Logger.Error("journal: the disk is full or read-only; nothing is signed until it takes writes again", "error", err)
		return passing(fmt.Errorf("the disk takes no writes: %w", err))
	}
	answer := unavailable(fmt.Errorf("writing failed for good: %w", err))
	w.fault.Store(&answer)
	w.failed <- fmt.Errorf("write %s: %w", w.store.path, err)
	w.store.opts.Logger.Error("journal: writing failed; attestd must be started again", "error", err)
	return answer
}

// passing is the answer while the disk is full or read-only: attestd goes on by itself when it is not.
func passing(cause error) error {
	return &appliance.Error{Code: appliance.CodeJournalUnavailable, Detail: "the journal is not available", RetryAfter: fullRetry, Cause: cause}
}

// notWritten says whether a transaction failed before its sync because the file could not take it: the disk is full, or the
// kernel has made it read-only. A failed sync is never that, whatever its errno: it comes from bbolt as a bare errno, a failed
// write with its operation.
func notWritten(err error) bool {
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG, syscall.EROFS} {
		var path *fs.PathError
		if errors.As(err, &path) && path.Op == "write" && errors.Is(path.Err, errno) {
			return true
		}
		// bbolt gives the error of growing the file, which comes before any write, as text.
		if text := err.Error(); strings.HasPrefix(text, "file resize error: ") && strings.HasSuffix(text, errno.Error()) {
			return true
		}
	}
	return false
}

// batch is one transaction of the writer.
type batch struct {
	writer *writer
	ops    []*op
	last   bool // it is the writer's last: last uses are written too

	meta, keys, records, hashes *bbolt.Bucket
	lookups                     map[string]*bbolt.Bucket

	head     *head // as it was
	frontier appliance.Frontier
	now      time.Time // of all records of the batch
	ahead    error     // why none may be appended; nil where they may
	appended int
	name     [8]byte     // scratch for a key; bbolt copies keys
	stored   []tlog.Hash // what is put into hashes must stay where it is until the commit
	indexes  []byte      // likewise for the values of ids and idempotency
	flush    []appliance.APIKey
	created  []appliance.APIKey
}

// write does the ops and commits. An error concerns all of them; one that is an op's own is in the op.
func (b *batch) write() (err error) {
	w := b.writer
	b.flush = b.dueKeys()
	if len(b.ops) == 0 && len(b.flush) == 0 {
		return nil
	}
	defer func() {
		if err != nil {
			w.store.keys.setDirty(b.flush)
		}
	}()
	defer survive(&err)()
	tx, err := w.store.db.Begin(true)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit
	if err := b.begin(tx); err != nil {
		return err
	}
	if err := b.apply(); err != nil {
		return err
	}
	if b.appended == 0 && len(b.created) == 0 && len(b.flush) == 0 {
		return nil
	}
	next, err := b.seal()
	if err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	// Only now is anything true that memory says. The head comes before the answers, so that Checkpoint covers every
	// entry that Append has returned.
	w.frontier = b.frontier
	w.store.head.Store(next)
	for _, key := range b.created {
		w.store.keys.created(key)
	}
	return nil
}

// dueKeys returns the API keys to be written now: with whatever else is written at most every flushInterval, and at
// once when somebody waits for it.
func (b *batch) dueKeys() []appliance.APIKey {
	w := b.writer
	now := time.Now()
	due := b.last || now.Sub(w.flushed) >= flushInterval
	for _, o := range b.ops {
		due = due || o.Value.record == nil && o.Value.event == nil && o.Value.newKey == nil
	}
	if !due {
		return nil
	}
	w.flushed = now
	return w.store.keys.takeDirty()
}

// buckets opens the buckets of a transaction.
func (b *batch) buckets(tx *bbolt.Tx) error {
	all := make(map[string]*bbolt.Bucket, len(buckets))
	for _, name := range buckets {
		if all[name] = tx.Bucket([]byte(name)); all[name] == nil {
			return fmt.Errorf("%w: bucket %s: %w", ErrDamaged, name, pages.ErrNoBucket)
		}
	}
	b.meta, b.keys, b.records, b.hashes, b.lookups = all[bucketMeta], all[bucketKeys], all[bucketRecords], all[bucketHashes], all
	// These grow at their end only: full pages are never split again.
	for _, name := range []string{bucketRecords, bucketHashes, bucketIDs, bucketEvents} {
		all[name].FillPercent = 1
	}
	return nil
}

// room makes room for so many records behind those of a size: what is put must stay where it is until the commit.
func (b *batch) room(size int64, records int) {
	b.stored = make([]tlog.Hash, 0, tlog.StoredHashCount(size+int64(records))-tlog.StoredHashCount(size))
	b.indexes = make([]byte, 0, 8*records)
}

func (b *batch) begin(tx *bbolt.Tx) error {
	w := b.writer
	if err := b.buckets(tx); err != nil {
		return err
	}
	b.head = w.store.head.Load()
	if !bytes.Equal(b.meta.Get([]byte(metaCheckpoint)), b.head.checkpoint) {
		return errors.New("the file is not as the last commit left it")
	}
	b.frontier = w.frontier.Clone()
	b.ahead = w.store.checkClock()
	b.now = w.store.opts.Now().UTC().Truncate(time.Millisecond)
	if b.now.Before(b.head.last) {
		b.now = b.head.last
	}
	b.room(b.head.tree.N, len(b.ops))
	return nil
}

func (b *batch) apply() error {
	for _, o := range b.ops {
		var err error
		switch {
		case o.Value.record != nil:
			err = b.append(o)
		case o.Value.event != nil:
			err = b.appendEvent(o)
		case o.Value.newKey != nil:
			err = b.createKey(o)
		case o.Value.leaves != nil:
			err = b.importLeaves(o)
		}
		if err != nil {
			return err
		}
	}
	for _, key := range b.flush {
		if err := putKey(b.keys, key); err != nil {
			return err
		}
	}
	return nil
}

// append adds one record. What is wrong with the record alone is found before anything is put, and is the op's error.
func (b *batch) append(o *op) error {
	r := *o.Value.record
	if o.Err = checkRecord(r); o.Err != nil {
		return nil //nolint:nilerr // it is the op's, not the batch's
	}
	// Here, in the transaction: a revocation is in memory at once, and returns after a later one.
	if key, err := b.writer.store.keys.Key(context.Background(), r.KeyID); err == nil {
		if o.Err = key.Usable(b.now); o.Err != nil {
			return nil //nolint:nilerr // as above
		}
	}
	if r.IdempotencyKey != "" {
		// Finds what is earlier in this batch, too.
		if index := b.lookups[bucketIdempotency].Get(idempotencyName(r.KeyID, r.IdempotencyKey)); index != nil {
			o.Value.replayed = true
			o.Value.entry, o.Err = readEntry(b.records, index)
			return nil
		}
	}
	if b.lookups[bucketIDs].Get(r.ID[:]) != nil {
		o.Err = appliance.Errorf(appliance.CodeInternal, "the attestation cannot be recorded").Because(fmt.Errorf("id %s is taken", r.ID))
		return nil
	}
	if o.Err = b.ahead; o.Err != nil {
		return nil //nolint:nilerr // it is the op's, not the batch's
	}
	r.Time = b.now
	rand.Read(r.Salt[:]) // never fails (Go 1.24)
	leaf, err := appliance.EncodeLeaf(r)
	if err == nil {
		o.Value.entry = appliance.Entry{Index: b.frontier.Size(), Record: r, Leaf: leaf}
		return b.put(o.Value.entry)
	}
	o.Err = appliance.Errorf(appliance.CodeInternal, "the attestation cannot be recorded").Because(err)
	return nil
}

// appendEvent adds one event, unless it is there.
func (b *batch) appendEvent(o *op) error {
	e := *o.Value.event
	if index := b.lookups[bucketIDs].Get(e.ID[:]); index != nil {
		o.Value.replayed = true
		o.Value.entry, o.Err = readEntry(b.records, index)
		return nil
	}
	if o.Err = b.ahead; o.Err != nil {
		return nil //nolint:nilerr // it is the op's, not the batch's
	}
	leaf, err := e.At(b.now)
	if o.Err = err; err != nil {
		return nil //nolint:nilerr // as above
	}
	o.Value.entry = appliance.Entry{Index: b.frontier.Size(), Event: &e, Leaf: leaf}
	return b.put(o.Value.entry)
}

// checkRecord refuses what could not be found again, or would not be read as it was written.
func checkRecord(r appliance.Record) error {
	refuse := func(reason string) error {
		return appliance.Errorf(appliance.CodeInternal, "the attestation cannot be recorded").Because(errors.New(reason))
	}
	switch {
	case r.ID == uuid.Nil:
		return refuse("it has no id")
	case r.KeyID == "" || len(r.KeyID) > 255 || strings.Contains(r.KeyID, "\x00") || !utf8.ValidString(r.KeyID):
		return refuse("its API key's id is malformed")
	case !utf8.ValidString(r.IdempotencyKey) || !utf8.ValidString(r.Scheme),
		r.Domain != nil && (!utf8.ValidString(r.Domain.Name) || !utf8.ValidString(r.Domain.Version)):
		return refuse("it has text that is not UTF-8")
	}
	return nil
}

func (b *batch) put(e appliance.Entry) error {
	b.indexes = binary.BigEndian.AppendUint64(b.indexes, uint64(e.Index))
	index := b.indexes[len(b.indexes)-8:]
	first, at := len(b.stored), tlog.StoredHashIndex(0, e.Index)
	b.stored = b.frontier.Add(b.stored, tlog.RecordHash(e.Leaf))
	b.appended++

	err := b.records.Put(index, e.Leaf)
	for i := first; err == nil && i < len(b.stored); i++ {
		binary.BigEndian.PutUint64(b.name[:], uint64(at+int64(i-first)))
		err = b.hashes.Put(b.name[:], b.stored[i][:])
	}
	if err != nil {
		return err
	}
	return eachLookup(e, index, func(bucket string, name, value []byte) error { return b.lookups[bucket].Put(name, value) })
}

func (b *batch) createKey(o *op) error {
	if b.keys.Get([]byte(o.Value.newKey.ID)) != nil {
		o.Err = appliance.Errorf(appliance.CodeInternal, "the API key cannot be stored").Because(fmt.Errorf("id %q is taken", o.Value.newKey.ID))
		return nil
	}
	b.created = append(b.created, *o.Value.newKey)
	return putKey(b.keys, *o.Value.newKey)
}

// seal signs the tree and puts its checkpoint into the transaction that makes it.
func (b *batch) seal() (*head, error) {
	if b.appended == 0 {
		return b.head, nil
	}
	next := &head{tree: b.frontier.Tree(), last: b.now}
	var err error
	if next.checkpoint, err = appliance.SignCheckpoint(next.tree, b.writer.store.opts.Signer); err != nil {
		return nil, fmt.Errorf("sign checkpoint: %w", err)
	}
	return next, b.meta.Put([]byte(metaCheckpoint), next.checkpoint)
}
