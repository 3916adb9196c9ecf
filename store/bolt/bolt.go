// Package bolt stores an appliance's API keys and its journal in one bbolt file. It implements appliance.Keys and
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
// One transaction writes leaves, their hashes, their lookup entries and the new checkpoint, so that the file always
// holds exactly the records of its checkpoint. Entries are neither changed nor removed, except that runs are merged.
// Times never decrease, so a binary search over the records replaces a lookup by time.
//
// # The newest leaves
//
// A bbolt commit takes two syncs and costs as much as a hundred records. The writer therefore appends each batch as one
// frame to a write-ahead log (wal.go), with one sync, and answers. The checkpointer (checkpointer.go) flushes the
// leaves of many batches into the file at once. Until then, reads find these leaves in memory (tail.go, head.go). API
// keys are written to the file directly. Every open replays the write-ahead log (replay.go).
//
// The hash in an entry of keys detects a failing disk. It does not stop an attacker with write access, since the hash
// has no secret: such an attacker can add API keys. An audit compares the keys with the journal's events, which cannot
// be changed without the log key.
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
	settleTimeout      = 30 * time.Second // how long a copy waits for the flush
	closeTimeout       = 30 * time.Second // how long Close waits for writes and reads
)

var buckets = [...]string{
	bucketMeta, bucketKeys, bucketRecords, bucketHashes,
	bucketIDs, bucketByKey, bucketIdempotency, bucketByHash, bucketByUnspendable, bucketEvents,
}

// addressSpace is the size of the memory mapping. bbolt can grow a mapping only between reads, and blocks new reads
// until then, so that a long read would stop the appliance. Mapping beyond the file's end takes no memory. 256 GiB hold
// about 150 million records.
const addressSpace = (strconv.IntSize / 64) << 38

// Options configure Open.
type Options struct {
	Signer      note.Signer      // signs checkpoints; required unless ReadOnly
	Verifier    note.Verifier    // its public half; required
	ReadOnly    bool             // share the file with other readers; a damaged file is opened if possible, for Verify
	Now         func() time.Time // nil means time.Now
	LockTimeout time.Duration    // how long to wait for another process's lock; zero means 1 s
	MinFree     int64            // bytes; Ready fails if the disk has less free space
	// how far the newest record may be ahead of the clock; beyond it, Append is refused; zero means no limit
	MaxAhead time.Duration
	Logger   *slog.Logger // nil means none
	// Copying allows API keys of one name, which an older attestd may have created in the store that is copied.
	Copying bool

	// Pending returns how many records are about to be appended, such as those being signed: see store/queue. Nil means
	// unknown.
	Pending func() int

	// Committed, if not nil, is called with the signed checkpoint after each commit of leaves, before their callers are
	// answered.
	Committed func(checkpoint []byte)

	schema  *schema // nil means currentSchema
	walSize int64   // zero means walSize
}

// Store is an open file. All methods are safe for concurrent use.
type Store struct {
	db      *bbolt.DB
	file    handle // the one that bbolt opened; used for reading only
	path    string
	opts    Options
	keys    *Keys
	journal *Journal
	writer  *writer              // nil when read-only
	head    atomic.Pointer[head] // the newest state on the disk; nil if the file is damaged
	damage  error                // why head is nil
	counts  counts.Counts        // of committed records
	closing sync.Once
	commits stopwatch   // of the writer
	flushes stopwatch   // transactions that write to the file
	stuck   atomic.Bool // bbolt panicked and may hold its locks

	recent recent
	// the checkpoint in the file; once the checkpointer runs, only the checkpointer accesses it
	flushedCheckpoint []byte

	updating sync.Mutex // held during writes to the file; protects the field below
	metas    []byte     // the file's meta pages after the last commit; nil before the writer runs
}

// Keys returns the API keys in the file.
func (s *Store) Keys() *Keys { return s.keys }

// Journal returns the journal in the file.
func (s *Store) Journal() *Journal { return s.journal }

// Failed receives once after a write failure that leaves the state on the disk unknown. The store then refuses all
// writes. The process should restart, to read the real state from the disk.
func (s *Store) Failed() <-chan error {
	if s.writer == nil {
		return nil
	}
	return s.writer.failed
}

// Close finishes queued writes, refuses new ones, and closes the file after the reads have ended. If the disk or a read
// takes longer than 30 seconds, it returns an error and leaves the file open. No answered record is lost.
func (s *Store) Close() error {
	var err error
	s.closing.Do(func() {
		if s.writer != nil {
			if err = s.inTime("finish the writes", func() error { s.writer.end(); return nil }); err != nil {
				return
			}
			s.rescue()
			if err := s.inTime("store the counts", s.counts.Close); err != nil {
				s.opts.Logger.Warn(
					"the counts of attestations are not stored, so they are counted again after the start",
					"error", err)
			}
		}
		err = s.inTime("close the file", s.closeFile)
	})
	return err
}

// inTime returns an error if end takes longer than closeTimeout.
func (s *Store) inTime(doing string, end func() error) error {
	done := make(chan error, 1)
	go func() { done <- end() }()
	late := time.NewTimer(closeTimeout)
	defer late.Stop()
	select {
	case err := <-done:
		return err
	case <-late.C:
		return fmt.Errorf("%s: cannot %s within %s: the disk or a read hangs; answered attestations are safe", s.path,
			doing, closeTimeout)
	}
}

func (s *Store) closeFile() error {
	if s.stuck.Load() {
		return s.file.Close() // bbolt's Close would block
	}
	return s.db.Close()
}

// Snapshot writes a consistent copy of the file without stopping the store. The copy is as secret as the file.
func (s *Store) Snapshot(w io.Writer) error {
	return s.SnapshotTo(func(int64, []byte) (io.Writer, error) { return w, nil })
}

// SnapshotTo is Snapshot with a header: begin gets the size of the copy in bytes and its newest signed checkpoint, and
// returns the writer.
func (s *Store) SnapshotTo(begin func(size int64, checkpoint []byte) (io.Writer, error)) error {
	if err := s.waitFlushed(); err != nil {
		return fmt.Errorf("copy %s: cannot move the newest records from the write-ahead log into it: free space in "+
			"%s (df -h %s) or repair the disk, then try again: %w",
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

// waitFlushed waits until the file holds every answered record.
func (s *Store) waitFlushed() error {
	h := s.head.Load()
	if h == nil || len(h.tail) == 0 {
		return nil
	}
	if s.writer == nil {
		return fmt.Errorf("%d records are only in %s. To move them into the journal, run: systemctl restart attestd",
			h.tree.N-h.inFile(), WALPath(s.path))
	}
	ctx, cancel := context.WithTimeout(context.Background(), settleTimeout)
	defer cancel()
	f := s.writer.checkpointer
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.waitFlushed(ctx)
}

// Responds returns nil once the writer has answered, also with an error such as a full disk. If ctx ends first, the
// writer or the disk hangs, and Responds returns an error. It does not write to the disk.
func (s *Store) Responds(ctx context.Context) error {
	err := s.submit(ctx, &op{})
	if err != nil && ctx.Err() != nil {
		return err
	}
	return nil
}

// view runs fn in a read transaction. fn must not keep references to the file.
func (s *Store) view(fn func(tx *bbolt.Tx) error) (err error) {
	tx, err := s.begin(false)
	if err != nil {
		return err
	}
	defer survive(&err)()
	defer func() { _ = tx.Rollback() }()
	return fn(tx)
}

// pages is view with a reader that does not trust the file.
func (s *Store) pages(fn func(p *pages.Reader) error) error {
	return s.view(func(tx *bbolt.Tx) error { return fn(pages.New(s.file.File, tx)) })
}

// survive turns a panic of bbolt over a damaged file, or a fault (SIGBUS, SIGSEGV) in the mapping, into an error. Use
// it as defer survive(&err)(). bbolt's own deferred functions end the transaction first.
func survive(err *error) func() {
	before := debug.SetPanicOnFault(true) // for this goroutine only
	return func() {
		debug.SetPanicOnFault(before)
		if r := recover(); r != nil {
			*err = fmt.Errorf("%w: %v", ErrDamaged, r)
		}
	}
}

// unavailable is the error for clients if the file cannot be read or written.
func unavailable(cause error) error {
	return appliance.Errorf(appliance.CodeJournalUnavailable, "the journal is not available").Because(cause)
}

func timeout(ctx context.Context, doing string) error {
	return appliance.Errorf(appliance.CodeTimeout,
		"the journal did not answer in time").Because(fmt.Errorf("%s: %w", doing, context.Cause(ctx)))
}

func encodeIndex(i int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(i)) }

func decodeIndex(b []byte) (int64, error) {
	if len(b) != 8 {
		return 0, fmt.Errorf("an index has %d bytes, not 8", len(b))
	}
	i := int64(binary.BigEndian.Uint64(b))
	if i < 0 {
		return 0, fmt.Errorf("index %d", i)
	}
	return i, nil
}
