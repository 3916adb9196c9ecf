package bolt

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/store/bolt/pages"
	"github.com/google/uuid"
	"go.etcd.io/bbolt"
	"golang.org/x/mod/sumdb/tlog"
)

const (
	maxBatch      = 1024             // operations of one commit, and of those that wait for one
	flushInterval = 30 * time.Second // between writes of last uses
	fullRetry     = time.Second      // how long a full disk is believed to stay full

	roomyFor = 100 * time.Millisecond // how long one with space, whose MinFree is far more than is written meanwhile

	gatherBatch = 32                   // operations that are worth a commit, whatever is pending
	gatherTime  = 8 * time.Millisecond // how long a commit waits for pending ones
)

// op is one change that a caller waits for: a record to append, a new API key, or, with neither, that whatever
// changed in the API keys is written.
type op struct {
	ctx    context.Context
	record *appliance.Record
	newKey *appliance.APIKey

	// Set by the writer before it closes done.
	entry    appliance.Entry
	replayed bool
	err      error
	done     chan struct{}
}

// writer owns all writes to the file. One goroutine, run, takes whatever has queued up, writes it in one transaction and
// answers when that is synced; meanwhile the next batch queues up.
type writer struct {
	store *Store
	slots chan struct{} // bounds the queue: each op in it or being written holds one
	wake  chan struct{} // has one element when there may be something to do
	ended chan struct{} // closed when run has returned

	mu     sync.Mutex // protects queue, want and closed
	queue  []*op
	want   int  // length of the queue at which run is to be woken, beside 1
	closed bool // nothing is queued any more

	failed chan error            // has the fault, once
	fault  atomic.Pointer[error] // why nothing is written any more; set by run
	roomy  atomic.Int64          // when the disk was last seen to have space, in Unix nanoseconds
	full   atomic.Int64          // when a write last failed for want of space, in Unix nanoseconds; set by run

	// Owned by run. They describe what is committed: a batch works on copies, which replace them only when its
	// commit has succeeded.
	frontier appliance.Frontier
	flushed  time.Time // when the API keys' last uses were last written
}

func newWriter(s *Store, frontier appliance.Frontier) *writer {
	return &writer{
		store: s, frontier: frontier,
		slots: make(chan struct{}, maxBatch), wake: make(chan struct{}, 1), ended: make(chan struct{}),
		failed: make(chan error, 1),
	}
}

// submit has the writer do an op, and waits for it no longer than the context.
func (s *Store) submit(ctx context.Context, o *op) error {
	if s.writer == nil {
		return errReadOnly()
	}
	o.ctx, o.done = ctx, make(chan struct{})
	if err := s.writer.enqueue(ctx, o); err != nil {
		return err
	}
	select {
	case <-o.done:
		return o.err
	case <-ctx.Done():
		return timeout(ctx, "wait for the commit")
	}
}

func errReadOnly() error { return unavailable(errors.New("it was opened read-only")) }

func (w *writer) enqueue(ctx context.Context, o *op) error {
	if ctx.Err() != nil {
		return timeout(ctx, "wait for the queue")
	}
	select {
	case w.slots <- struct{}{}:
	case <-ctx.Done():
		return timeout(ctx, "wait for the queue")
	}
	w.mu.Lock()
	closed := w.closed
	if !closed {
		w.queue = append(w.queue, o)
	}
	n := len(w.queue)
	wake := n == 1 || n == w.want
	w.mu.Unlock()
	if closed {
		<-w.slots
		return appliance.Errorf(appliance.CodeShuttingDown, "the appliance is shutting down")
	}
	if wake {
		w.signal()
	}
	return nil
}

func (w *writer) signal() {
	select {
	case w.wake <- struct{}{}:
	default: // there is a signal already
	}
}

// close lets the queue be finished and returns when run has ended.
func (w *writer) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.signal()
	<-w.ended
}

func (w *writer) run() {
	defer close(w.ended)
	tick := time.NewTicker(flushInterval)
	defer tick.Stop()
	for {
		select {
		case <-w.wake:
		case <-tick.C:
		}
		w.gather()
		w.mu.Lock()
		batch, closed := w.queue, w.closed
		w.queue = nil
		w.mu.Unlock()
		w.do(batch, closed)
		if closed {
			return // with an empty queue: nothing is queued after closed was set, and all before was taken
		}
	}
}

// gather waits while more are pending than are queued, so that under load a commit is shared by many and yet a lone
// caller, or the last of some, waits for nobody.
func (w *writer) gather() {
	if w.store.opts.Pending == nil {
		return
	}
	end := time.NewTimer(gatherTime)
	defer end.Stop()
	for {
		pending := w.store.opts.Pending()
		w.mu.Lock()
		n := len(w.queue)
		// Each op that is queued was pending before, so that half of both is where they meet.
		w.want = min(gatherBatch, (n+pending+1)/2)
		enough := n == 0 || n >= w.want || w.closed
		w.mu.Unlock()
		if enough {
			return
		}
		select {
		case <-w.wake:
		case <-end.C:
			return
		}
	}
}

// do writes a batch and answers those who wait for it.
func (w *writer) do(ops []*op, last bool) {
	b := &batch{writer: w, ops: ops, last: last}
	err := w.refusal()
	if err == nil {
		err = w.judge(b.write())
	}
	for _, o := range ops {
		if err != nil && o.err == nil {
			o.entry, o.replayed, o.err = appliance.Entry{}, false, err
		}
		<-w.slots
		close(o.done)
	}
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
// When the disk was full, bbolt has rolled back: nothing of the transaction was made visible, and the next one may
// succeed. Any other failure is final. After a failed fsync the kernel may have marked the lost pages as clean, so that
// reading them back or syncing again seems to succeed (Rebello et al., "Can Applications Recover from fsync Failures?",
// USENIX ATC 2020; PostgreSQL's "fsyncgate", 2018). With bbolt the new meta page may even be visible in the mapping
// and yet not be on the disk: a next transaction would build on records that are not there. Only a new process that
// reads what the disk really holds can be trusted.
func (w *writer) judge(err error) error {
	if err == nil {
		return nil
	}
	if diskFull(err) {
		w.full.Store(w.store.opts.Now().UnixNano())
		w.roomy.Store(0)
		w.store.opts.Logger.Error("journal: the disk is full; nothing is signed until there is space", "error", err)
		return noSpace(err)
	}
	answer := unavailable(fmt.Errorf("writing failed for good: %w", err))
	w.fault.Store(&answer)
	w.failed <- fmt.Errorf("write %s: %w", w.store.path, err)
	w.store.opts.Logger.Error("journal: writing failed; attestd must be started again", "error", err)
	return answer
}

func noSpace(cause error) error {
	return &appliance.Error{
		Code: appliance.CodeJournalUnavailable, Detail: "the journal is not available", RetryAfter: fullRetry,
		Cause: fmt.Errorf("no space left: %w", cause),
	}
}

// diskFull says whether a transaction failed before its sync because the file could not take more. A failed sync is
// never that, whatever its errno: it comes from bbolt as a bare errno, a failed write with its operation.
func diskFull(err error) bool {
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG} {
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

	meta, keys, records, hashes, ids, byKey, idempotency *bbolt.Bucket

	head     *head // as it was
	frontier appliance.Frontier
	now      time.Time // of all records of the batch
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
		due = due || o.record == nil && o.newKey == nil
	}
	if !due {
		return nil
	}
	w.flushed = now
	return w.store.keys.takeDirty()
}

func (b *batch) begin(tx *bbolt.Tx) error {
	w := b.writer
	into := [len(buckets)]**bbolt.Bucket{&b.meta, &b.keys, &b.records, &b.hashes, &b.ids, &b.byKey, &b.idempotency}
	for i, name := range buckets {
		if *into[i] = tx.Bucket([]byte(name)); *into[i] == nil {
			return fmt.Errorf("%w: bucket %s: %w", ErrDamaged, name, pages.ErrNoBucket)
		}
	}
	// These grow at their end only: full pages are never split again.
	b.records.FillPercent, b.hashes.FillPercent, b.ids.FillPercent = 1, 1, 1
	b.head = w.store.head.Load()
	if !bytes.Equal(b.meta.Get([]byte(metaCheckpoint)), b.head.checkpoint) {
		return errors.New("the file is not as the last commit left it")
	}
	b.frontier = w.frontier.Clone()
	b.now = w.store.opts.Now().UTC().Truncate(time.Millisecond)
	if b.now.Before(b.head.last) {
		b.now = b.head.last
	}
	size := b.head.tree.N
	b.stored = make([]tlog.Hash, 0, tlog.StoredHashCount(size+int64(len(b.ops)))-tlog.StoredHashCount(size))
	b.indexes = make([]byte, 0, 8*len(b.ops))
	return nil
}

func (b *batch) apply() error {
	for _, o := range b.ops {
		var err error
		switch {
		case o.ctx.Err() != nil:
			o.err = timeout(o.ctx, "wait for the queue") // its caller has gone: nobody would get what is appended
		case o.record != nil:
			err = b.append(o)
		case o.newKey != nil:
			err = b.createKey(o)
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
	r := *o.record
	if o.err = checkRecord(r); o.err != nil {
		return nil //nolint:nilerr // it is the op's, not the batch's
	}
	var idempotency []byte
	if r.IdempotencyKey != "" {
		idempotency = idempotencyName(r.KeyID, r.IdempotencyKey)
		// Finds what is earlier in this batch, too.
		if index := b.idempotency.Get(idempotency); index != nil {
			o.replayed = true
			o.entry, o.err = readEntry(b.records, index)
			return nil
		}
	}
	if b.ids.Get(r.ID[:]) != nil {
		o.err = appliance.Errorf(appliance.CodeInternal, "the attestation cannot be recorded").Because(fmt.Errorf("id %s is taken", r.ID))
		return nil
	}
	r.Time = b.now
	rand.Read(r.Salt[:]) // never fails (Go 1.24)
	leaf, err := appliance.EncodeLeaf(r)
	if err == nil {
		o.entry = appliance.Entry{Index: b.frontier.Size(), Record: r, Leaf: leaf}
		return b.put(o.entry, idempotency)
	}
	o.err = appliance.Errorf(appliance.CodeInternal, "the attestation cannot be recorded").Because(err)
	return nil
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

func (b *batch) put(e appliance.Entry, idempotency []byte) error {
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
	if err == nil {
		err = b.ids.Put(e.Record.ID[:], index)
	}
	if err == nil {
		err = b.byKey.Put(byKeyName(e.Record.KeyID, e.Index), nil)
	}
	if err == nil && idempotency != nil {
		err = b.idempotency.Put(idempotency, index)
	}
	return err
}

func (b *batch) createKey(o *op) error {
	if b.keys.Get([]byte(o.newKey.ID)) != nil {
		o.err = appliance.Errorf(appliance.CodeInternal, "the API key cannot be stored").Because(fmt.Errorf("id %q is taken", o.newKey.ID))
		return nil
	}
	b.created = append(b.created, *o.newKey)
	return putKey(b.keys, *o.newKey)
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

// byKeyName is an entry's name in by_key.
func byKeyName(keyID string, index int64) []byte {
	name := make([]byte, 0, len(keyID)+9)
	name = append(append(name, keyID...), 0)
	return binary.BigEndian.AppendUint64(name, uint64(index))
}

// idempotencyName is an entry's name in idempotency. The length makes the two strings distinguishable.
func idempotencyName(keyID, idempotencyKey string) []byte {
	h := sha256.New()
	h.Write(encodeIndex(int64(len(keyID))))
	h.Write([]byte(keyID))
	h.Write([]byte(idempotencyKey))
	return h.Sum(nil)
}
