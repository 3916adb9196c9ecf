// Package replica keeps an index in one bbolt file. The file is a copy of the upstream's data: it may be deleted at any
// time and filled again.
//
// # Layout
//
// Transfers and packets are the large collections. Each has a bucket of rows keyed by sort_order, and an inverted index
// with one bucket of postings per filter. A posting is a term of 5 bytes, taken from the hash of the filtered value,
// followed by the row's sort_order. Many postings share one value (see blocks.go), and generations of these values fill
// their pages (see generations.go). Postings that arrive in no order, such as hashes, have a second bucket for recent
// keys (see rewriting.stretch).
//
// A filter is thus a range of keys in page order, and a query with several filters intersects such ranges. Terms may
// collide, so each row found is checked against the query. The other types are small: each has one bucket, keyed by the
// row's key, and is held in memory. stats.go describes the counts, and unverified.go the quarantine of unverified rows.
//
// Each value ends in a checksum over its bucket's name, its key and itself (seal). The settings that decide how the
// file is opened have no checksum.
//
// Every batch is one bbolt transaction, synced to disk. After a crash, the file holds the last batch for which Write
// returned.
package replica

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.etcd.io/bbolt"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index"
)

// layoutVersion is the version of the buckets, their keys and the seal of values. The format of the rows has its own
// version, index.FormatVersion. Open refuses a file in which either version differs: the file is filled again, not
// migrated.
const layoutVersion = 9

// pageSize is the page size of a new file, in bytes. Packets take about 1 KB, so pages of 4 KB would stay a fifth
// empty. Eight blocks of postings fill a page.
const pageSize = 16 << 10

// growth is how many bytes beyond its need a file gets when it grows. bbolt's default of 16 MiB is as much as 12,000
// transfers take.
const growth = 4 << 20

// Store is an index.Index in one bbolt file. All methods are safe for concurrent use.
type Store struct {
	db      *bbolt.DB
	now     func() time.Time
	writing chan struct{} // holds a token while a batch is written; a channel, so that ctx can end the wait

	// tables is replaced after each commit that changed one of the small types or added a route. A reader that began
	// earlier may see tables newer than its rows, but never tables older than a Write that has returned.
	tables atomic.Pointer[tables]

	// dictionary is replaced before each commit that added to it, so a reader may have a newer dictionary than its rows
	// need.
	dictionary atomic.Pointer[index.Dictionary]
	packer     *index.Packer // owned by the goroutine that holds the token of writing

	recentKeys int
	largeBatch int

	serveUnverified bool
	minFree         int64

	file     *os.File // the file that bbolt opened; only read through this handle
	pageSize int64
	id       string                // see index.Status
	fault    atomic.Pointer[error] // the damage that ended all reads and writes; see broken
	gone     chan struct{}         // closed when fault is set
	begins   sync.Mutex            // held while a transaction begins; see begin
	onDamage func(error)           // called once, with the fault; nil means no call

	touched atomic.Uint64 // keys that queries have read; tests bound it
}

// Options say how to open a replica.
type Options struct {
	// Now is the clock for lateness and for the last days; nil means time.Now.
	Now func() time.Time
	// LockTimeout is how long to wait for another process to release the file's lock; zero means a second.
	LockTimeout time.Duration
	// ReadOnly opens an existing file for reading. Other processes may have it open for reading, too.
	ReadOnly bool
	// MaxBytes is how much address space to reserve, in bytes; zero means 64 GiB. It reserves no memory. As long as the
	// file is smaller, readers do not wait when it grows.
	MaxBytes int64
	// ServeUnverified serves quarantined rows, too, in place of verified rows with the same keys. If the file was last
	// opened with the other value, Open converts it, in one transaction per thousand quarantined rows. ReadOnly leaves
	// the file as it is.
	ServeUnverified bool

	// MinFree is how many bytes a write leaves free on the disk. The journal shares the disk, and nothing can be signed
	// without room for the journal.
	MinFree int64

	onDamage func(error) // called once, when an open file is found to be damaged

	recentKeys int // see rewriting.stretch; zero means minRecent and largeBatch, other values make all batches small
}

// ErrSchema is returned by Open for a file of another layout or row format. The remedy is the same as for ErrDamaged.
var ErrSchema = errors.New("the replica has another format version")

var (
	bucketMeta      = []byte("meta")
	bucketPositions = []byte("positions")
	bucketStats     = []byte("stats")

	keyLayout  = []byte("layout")
	keyFormat  = []byte("rows")
	keyID      = []byte("id")
	keyUpdated = []byte("updated") // nanoseconds since 1970
)

// Open opens the replica at path, or creates an empty one that only its owner can read.
//
// It returns ErrSchema, ErrDamaged, an error if another process holds the file's lock, or the file system's error.
func Open(path string, o Options) (*Store, error) {
	r, err := open(path, o)
	if err != nil {
		return nil, fmt.Errorf("open replica %s: %w", path, err)
	}
	return r, nil
}

func open(path string, o Options) (_ *Store, err error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.LockTimeout == 0 {
		o.LockTimeout = time.Second
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = 64 << 30
	}
	mapped := int(min(o.MaxBytes, int64(^uint(0)>>1)))
	if strconv.IntSize == 32 {
		mapped = 0
	}
	db, file, err := openFile(path, &bbolt.Options{
		Timeout: o.LockTimeout, ReadOnly: o.ReadOnly, FreelistType: bbolt.FreelistMapType, InitialMmapSize: mapped,
		PageSize: pageSize,
	})
	if err != nil {
		return nil, err
	}
	db.AllocSize = growth
	large := 0
	if o.recentKeys == 0 {
		o.recentKeys, large = minRecent, largeBatch
	}
	r := &Store{
		db: db, recentKeys: o.recentKeys, largeBatch: large, serveUnverified: o.ServeUnverified, minFree: o.MinFree,
		now: o.Now, writing: make(chan struct{}, 1), gone: make(chan struct{}), file: file,
		pageSize: int64(db.Info().PageSize),
	}
	if err := r.prepare(); err != nil {
		r.abandon()
		if cause := r.fault.Load(); cause != nil {
			err = *cause
		}
		return nil, err
	}
	r.onDamage = o.onDamage
	return r, nil
}

// abandon closes the file. bbolt may never finish closing a damaged file, so abandon releases the lock and closes in
// the background.
func (r *Store) abandon() {
	if r.fault.Load() == nil {
		_ = r.db.Close()
		return
	}
	if c, err := r.file.SyscallConn(); err == nil {
		_ = c.Control(func(fd uintptr) { _ = syscall.Flock(int(fd), syscall.LOCK_UN) })
	}
	go func() { _ = r.db.Close() }()
}

// Close waits for running views and writes. A second Close does nothing.
func (r *Store) Close() error { return r.db.Close() }

// prepare creates the buckets of a new file, checks the version of an existing file, applies ServeUnverified, and loads
// the tables.
func (r *Store) prepare() (err error) {
	defer r.survive(debug.SetPanicOnFault(true), &err)
	if err := checkWhole(r.db, r.file); err != nil {
		return err
	}
	if !r.db.IsReadOnly() {
		if err := r.db.Update(createBuckets); err != nil {
			return err
		}
	}
	if err := r.db.View(r.loadDictionary); err != nil {
		return err
	}
	if !r.db.IsReadOnly() {
		if err := r.settleServing(); err != nil {
			return err
		}
	}
	return r.db.View(func(tx *bbolt.Tx) error {
		if err := checkSchema(tx); err != nil {
			return err
		}
		loaded, err := loadTables(tx)
		if err != nil {
			return err
		}
		r.tables.Store(loaded)
		if r.id = string(get(tx, bucketMeta, keyID)); r.id == "" {
			panic(damage("the replica's id is missing"))
		}
		return checkSmall(tx, r.file)
	})
}

func checkSchema(tx *bbolt.Tx) error {
	meta := tx.Bucket(bucketMeta)
	if meta == nil || string(meta.Get(keyLayout)) != strconv.Itoa(layoutVersion) ||
		string(meta.Get(keyFormat)) != strconv.Itoa(index.FormatVersion) {
		return ErrSchema
	}
	return nil
}

func createBuckets(tx *bbolt.Tx) error {
	if tx.Bucket(bucketMeta) != nil {
		return checkSchema(tx)
	}
	if name, _ := tx.Cursor().First(); name != nil {
		return fmt.Errorf("bucket %q: %w", name, ErrSchema)
	}
	names := [][]byte{bucketMeta, bucketPositions, bucketStats, bucketUnverified, bucketTexts, bucketSamples}
	for _, c := range collections {
		names = append(names, c.rows)
		for _, x := range c.postings {
			names = append(names, x.bucket)
			if x.recent != nil {
				names = append(names, x.recent)
			}
		}
	}
	for _, t := range index.TableTypes {
		names = append(names, []byte(t.Name))
	}
	for _, name := range names {
		if _, err := tx.CreateBucket(name); err != nil {
			return err
		}
	}
	meta := tx.Bucket(bucketMeta)
	return errors.Join(
		put(tx, bucketMeta, keyID, []byte(rand.Text())),
		meta.Put(keyLayout, strconv.AppendInt(nil, layoutVersion, 10)),
		meta.Put(keyFormat, strconv.AppendInt(nil, index.FormatVersion, 10)),
	)
}

// View implements index.Index.
func (r *Store) View(ctx context.Context, read func(index.Snapshot) error) (err error) {
	if err := ctx.Err(); err != nil {
		return timeoutError(err)
	}
	defer r.surviveView(debug.SetPanicOnFault(true), &err)
	return r.view(func(tx *bbolt.Tx) error {
		// The tables are loaded after the transaction has begun: see Store.tables.
		return read(
			guardedSnapshot{&snapshot{ctx: ctx, r: r, tx: tx, tables: r.tables.Load(),
				dictionary: r.dictionary.Load()}})
	})
}

// snapshot is a read transaction with the tables as of its beginning.
type snapshot struct {
	ctx    context.Context // of the View; used by lookups that have no context of their own
	r      *Store
	tables *tables

	dictionary *index.Dictionary

	mu      sync.Mutex // protects the fields below; bbolt's tx is not safe for concurrent use
	tx      *bbolt.Tx
	finders [2]*finder // by collection; see find
}

func unavailable(doing string, err error) error {
	return appliance.Errorf(appliance.CodeReplicaUnavailable, "the replica cannot be read or written").
		Because(fmt.Errorf("replica: %s: %w", doing, err))
}

func timeoutError(err error) error {
	return appliance.Errorf(appliance.CodeTimeout, "the query took too long").Because(err)
}

// Position implements index.Snapshot.
func (s *snapshot) Position(ctx context.Context, name string) (string, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := get(s.tx, bucketPositions, []byte(name))
	return string(v), v != nil, nil
}

// Status implements index.Snapshot.
func (s *snapshot) Status(ctx context.Context) (index.Status, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := index.Status{Rows: make(map[string]uint64), Bytes: s.tx.Size(), Schema: layoutVersion, ID: s.r.id}
	for _, c := range collections {
		status.Rows[c.t.Name] = s.count(c)
	}
	for _, t := range index.TableTypes {
		status.Rows[t.Name] = uint64(len(s.tables.of[t].sorted))
	}
	rows := s.tx.Bucket(packets.rows).Cursor()
	if k, v := rows.Last(); v != nil {
		status.Newest, _ = packets.found(s.dictionary, k, v).Time(packets.sent)
	}
	if k, v := rows.First(); v != nil {
		status.Oldest, _ = packets.found(s.dictionary, k, v).Time(packets.sent)
	}
	if v := get(s.tx, bucketMeta, keyUpdated); len(v) == 8 {
		status.Updated = time.Unix(0, int64(binary.BigEndian.Uint64(v))).UTC()
	}
	status.Unverified, status.ServesUnverified = s.tx.Bucket(bucketUnverified).Sequence(), s.r.serveUnverified
	return status, nil
}

// Each implements index.Snapshot.
func (s *snapshot) Each(ctx context.Context, t *index.Type, yield func(index.Row) error) error {
	if table, ok := s.tables.of[t]; ok {
		for n, row := range table.sorted {
			if n%askEvery == 0 && ctx.Err() != nil {
				return timeoutError(ctx.Err())
			}
			if err := yield(row); err != nil {
				return err
			}
		}
		return nil
	}
	c := collectionOf(t)
	if c == nil {
		return appliance.Errorf(appliance.CodeInvalidField, "%s rows are not stored separately", t.Name)
	}
	n := uint64(0)
	err := s.walk(ctx, c.rows, func(k, v []byte) error {
		n++
		return yield(c.found(s.dictionary, k, v))
	})
	if err != nil {
		return err
	}
	s.locked(func() {
		if counted := s.count(c); n != counted {
			panic(damage(fmt.Sprintf("%d rows were expected, %d were found", counted, n)))
		}
	})
	return nil
}

// locked runs f under s.mu. It releases s.mu even if f panics over a damaged file.
func (s *snapshot) locked(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// walk calls yield with each entry of a bucket, in key order, and stops at an error of yield. The caller does not hold
// s.mu, so yield may read from the snapshot.
func (s *snapshot) walk(ctx context.Context, bucket []byte, yield func(k, v []byte) error) error {
	var cursor *bbolt.Cursor
	var k, v []byte
	s.locked(func() {
		cursor = s.tx.Bucket(bucket).Cursor()
		k, v = cursor.First()
	})
	// This cursor needs no lock: it has no other user, and it only reads pages.
	for n := 0; k != nil; n++ {
		if n%askEvery == 0 && ctx.Err() != nil {
			return timeoutError(ctx.Err())
		}
		if err := yield(k, v); err != nil {
			return err
		}
		k, v = cursor.Next()
	}
	return nil
}
