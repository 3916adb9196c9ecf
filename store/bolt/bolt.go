// Package bolt keeps an appliance's API keys and its journal in one bbolt file: it implements appliance.Keys and
// appliance.Journal. The journal is an RFC 6962 Merkle tree with C2SP tlog-checkpoint signatures.
//
// # Layout
//
// Schema version 3 (schema.go). Integers are 8 bytes, big-endian. A bucket holds:
//
//	meta         version     -> schema version
//	             log         -> origin+keyhash, the log key's name and hash as in a note's signature line
//	             checkpoint  -> the newest signed checkpoint
//	keys         API key id  -> SHA-256 of id and JSON, then the appliance.APIKey as JSON
//	records      index       -> leaf (appliance.EncodeLeaf)
//	hashes       tlog stored hash index -> 32 bytes
//	ids          16 bytes of the id of an attestation or event -> index
//	by_key       API key id, 0x00, index -> nothing
//	idempotency  SHA-256 of (length of API key id, API key id, idempotency key) -> index
//	by_hash      by the last 8 bytes of an attestation's hash: sorted runs (runs.go)
//	by_unspendable  by the last 8 bytes of its unspendable address's SHA-256: sorted runs
//	events       index of an event -> nothing
//
// A transaction writes leaves, their hashes, their lookup entries and the checkpoint of the tree that they make, so a file is at every
// moment a journal of exactly the size its checkpoint says. Entries are never changed or removed, but that runs are merged. Times need no lookup: they never decrease, so that a time is found by binary search.
//
// # The newest leaves
//
// A commit of bbolt is two syncs and costs as much as a hundred records. So the writer brings a batch to the disk as one frame of the
// write-ahead log beside the file (wal.go), one sync, and answers. The filer (filer.go) brings what it has into the file, many batches at
// once. Until then these leaves are also in memory (tail.go, head.go), where reads find them. API keys are written to the file
// at once. A start, and whoever opens the file for reading, takes over what the write-ahead log has (replay.go).
//
// The hash in a keys entry guards against a failing disk, not against whoever can write the file: such a person can
// also add keys of his own. What he cannot do unseen is to change the journal, for want of the log key.
package bolt

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/store/bolt/pages"
	"github.com/attestd/attestd/store/counts"
	"go.etcd.io/bbolt"
	"golang.org/x/mod/sumdb/note"
)

// Errors of Open, for errors.Is.
var (
	ErrInUse       = errors.New("in use by another process")
	ErrNewerSchema = errors.New("written by a newer attestd")
	ErrOlderSchema = errors.New("written by an older attestd")
	ErrOtherLog    = errors.New("belongs to another log key")
	ErrDamaged     = pages.ErrDamaged
)

const (
	bucketMeta        = "meta"
	bucketKeys        = "keys"
	bucketRecords     = "records"
	bucketHashes      = "hashes"
	bucketIDs         = "ids"
	bucketByKey       = "by_key"
	bucketIdempotency = "idempotency"

	bucketByHash        = "by_hash"
	bucketByUnspendable = "by_unspendable"
	bucketEvents        = "events"

	metaVersion    = "version"
	metaLog        = "log"
	metaCheckpoint = "checkpoint"

	defaultLockTimeout = time.Second
	settleTimeout      = 30 * time.Second // how long a copy waits until the file has all
	closeTimeout       = 30 * time.Second // how long Close waits for writes and reads to end
)

var buckets = [...]string{
	bucketMeta, bucketKeys, bucketRecords, bucketHashes,
	bucketIDs, bucketByKey, bucketIdempotency, bucketByHash, bucketByUnspendable, bucketEvents,
}

// addressSpace is how much of the address space the file is mapped into, from the start. bbolt can grow the mapping
// only while no read is under way, and makes reads that begin meanwhile wait: a long read would stop the appliance.
// What is mapped beyond the file's end costs nothing. 256 GiB are about 150 million records.
const addressSpace = (strconv.IntSize / 64) << 38

// Options are how a Store is opened.
type Options struct {
	Signer      note.Signer      // signs checkpoints; required unless ReadOnly
	Verifier    note.Verifier    // its public half; required
	ReadOnly    bool             // open beside other readers; a damaged file opens where possible, so that Verify can say what is damaged
	Now         func() time.Time // nil means time.Now
	LockTimeout time.Duration    // how long to wait for another process's lock; zero means 1 s
	MinFree     int64            // bytes; Ready fails when the disk has less free
	MaxAhead    time.Duration    // nothing is appended while the newest record is further ahead of the clock; zero means however far
	Logger      *slog.Logger     // nil means none

	// Pending tells how many records are about to be appended, such as those being signed: see store/queue. Nil means that nothing is
	// known of them.
	Pending func() int

	// Committed is called after each commit of leaves and before their callers are answered, with the signed checkpoint that covers them. Nil
	// means that nothing needs to know.
	Committed func(checkpoint []byte)

	schema  *schema // nil means currentSchema
	walSize int64   // zero means walSize
}

// Store is an open file. All methods are safe for concurrent use.
type Store struct {
	db      *bbolt.DB
	file    handle // the one that bbolt opened; only ever read from here
	path    string
	opts    Options
	keys    *Keys
	journal *Journal
	writer  *writer              // nil when read-only
	head    atomic.Pointer[head] // the newest state that is on the disk. Nil when the file is damaged
	damage  error                // why head is nil
	counts  counts.Counts        // of what is committed
	closing sync.Once
	commits stopwatch   // of the writer
	filings stopwatch   // of transactions that write to the file
	stuck   atomic.Bool // bbolt panicked and may hold its locks for ever

	recent recent
	filed  []byte // the checkpoint that the file has; of the filer, once it runs

	updating sync.Mutex // held while the file is written to; protects what follows
	metas    []byte     // the file's meta pages after the last commit; nil before the writer runs
}

// Keys returns the API keys in the file.
func (s *Store) Keys() *Keys { return s.keys }

// Journal returns the journal in the file.
func (s *Store) Journal() *Journal { return s.journal }

// Failed receives once when a write failed in a way after which neither the file in memory nor a second try can be
// trusted. The store refuses all writes from then on; the process should end and be started again, to read from the
// disk what is really there.
func (s *Store) Failed() <-chan error {
	if s.writer == nil {
		return nil
	}
	return s.writer.failed
}

// Close finishes the writes that were queued, refuses others and closes the file when reads have ended. It returns an error, and leaves the
// file open, where the disk or a read takes longer than 30 seconds: nothing that was answered is lost then.
func (s *Store) Close() error {
	var err error
	s.closing.Do(func() {
		if s.writer != nil {
			if err = s.inTime("finish the writes", func() error { s.writer.end(); return nil }); err != nil {
				return
			}
			s.rescue()
		}
		err = s.inTime("close the file", s.closeFile)
	})
	return err
}

// inTime returns an error where end has not returned within closeTimeout.
func (s *Store) inTime(doing string, end func() error) error {
	done := make(chan error, 1)
	go func() { done <- end() }()
	late := time.NewTimer(closeTimeout)
	defer late.Stop()
	select {
	case err := <-done:
		return err
	case <-late.C:
		return fmt.Errorf("%s: cannot %s within %s: the disk hangs, or a read does; what was answered is safe", s.path, doing, closeTimeout)
	}
}

func (s *Store) closeFile() error {
	if s.stuck.Load() {
		return s.file.Close() // bbolt's Close would wait for ever
	}
	return s.db.Close()
}

// Snapshot writes a consistent copy of the file as it is now, while the store goes on. The copy is as secret as
// the file.
func (s *Store) Snapshot(w io.Writer) error {
	return s.SnapshotTo(func(int64, []byte) (io.Writer, error) { return w, nil })
}

// SnapshotTo is Snapshot for those who must know what comes: begin gets the copy's size in bytes and its newest signed
// checkpoint, and returns where the copy goes.
func (s *Store) SnapshotTo(begin func(size int64, checkpoint []byte) (io.Writer, error)) error {
	if err := s.settle(); err != nil {
		return fmt.Errorf("copy %s: its newest records cannot be brought into it: make room on the disk of %s (df -h %s) or mend it, and try again: %w",
			s.path, filepath.Dir(s.path), filepath.Dir(s.path), err)
	}
	err := s.view(func(tx *bbolt.Tx) error {
		meta := tx.Bucket([]byte(bucketMeta))
		if meta == nil {
			return fmt.Errorf("%w: bucket %s: %w", ErrDamaged, bucketMeta, pages.ErrNoBucket)
		}
		w, err := begin(tx.Size(), bytes.Clone(meta.Get([]byte(metaCheckpoint))))
		if err != nil {
			return err
		}
		_, err = tx.WriteTo(w)
		return err
	})
	if err != nil {
		return fmt.Errorf("copy %s: %w", s.path, err)
	}
	return nil
}

// settle returns when the file has all that was answered before.
func (s *Store) settle() error {
	h := s.head.Load()
	if h == nil || len(h.tail) == 0 {
		return nil
	}
	if s.writer == nil {
		return fmt.Errorf("%d records are in %s only: start attestd once, or see bolt.Settle", h.tree.N-h.inFile(), WALPath(s.path))
	}
	ctx, cancel := context.WithTimeout(context.Background(), settleTimeout)
	defer cancel()
	f := s.writer.filer
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.settle(ctx)
}

// Responds returns when the writer has answered, be it with an error, such as that the disk is full; then it returns
// nil. It returns an error when ctx ended first: the writer, or the disk under it, is stuck. It writes nothing.
func (s *Store) Responds(ctx context.Context) error {
	err := s.submit(ctx, &op{})
	if err != nil && ctx.Err() != nil {
		return err
	}
	return nil
}

// view runs fn on a state of the file that does not change meanwhile. What fn returns must not refer to the file.
func (s *Store) view(fn func(tx *bbolt.Tx) error) (err error) {
	tx, err := s.begin(false)
	if err != nil {
		return err
	}
	defer survive(&err)()
	defer func() { _ = tx.Rollback() }()
	return fn(tx)
}

// pages is view for those who do not trust the file.
func (s *Store) pages(fn func(p *pages.Reader) error) error {
	return s.view(func(tx *bbolt.Tx) error { return fn(pages.New(s.file.File, tx)) })
}

// survive, deferred and called, turns into an error what a damaged file or disk does to bbolt: a panic over bytes
// that make no sense, or a fault (SIGBUS, SIGSEGV) where the mapped file cannot be read. bbolt's own deferred
// functions have ended the transaction by then.
func survive(err *error) func() {
	before := debug.SetPanicOnFault(true) // of this goroutine only
	return func() {
		debug.SetPanicOnFault(before)
		if r := recover(); r != nil {
			*err = fmt.Errorf("%w: %v", ErrDamaged, r)
		}
	}
}

// unavailable is the answer to a client when the file cannot be read or written.
func unavailable(cause error) error {
	return appliance.Errorf(appliance.CodeJournalUnavailable, "the journal is not available").Because(cause)
}

func timeout(ctx context.Context, doing string) error {
	return appliance.Errorf(appliance.CodeTimeout, "the journal did not answer in time").Because(fmt.Errorf("%s: %w", doing, context.Cause(ctx)))
}

func encodeIndex(i int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(i)) }

func decodeIndex(b []byte) (int64, error) {
	if len(b) != 8 {
		return 0, fmt.Errorf("an index of %d bytes", len(b))
	}
	i := int64(binary.BigEndian.Uint64(b))
	if i < 0 {
		return 0, fmt.Errorf("index %d", i)
	}
	return i, nil
}
