// Package replica keeps an index in one bbolt file. The file is a copy: it may be deleted at any time and filled again.
//
// # Layout
//
// Transfers and packets are the large collections: each has a bucket of rows under their sort_order, and one
// bucket per filter whose keys (postings) are a term of 5 bytes (of the hash of what is filtered by) followed by the row's
// sort_order, many of them in one value (see blocks.go), in laps that fill pages (see laps.go); those by hash have a second bucket
// for the newest (see rewriting.stretch). A filter is
// thus a range of keys in the order of the page; several filters are a merge of such ranges. Terms may collide, so each row found
// is checked against the query itself. The other types are small: they live in one bucket each, under their key, and are
// held in memory. See stats.go for the counts, and unverified.go for what is kept apart.
// Each value has a checksum of its bucket's name, of its key and of itself behind it (seal); what settles how the file is opened has none.
//
// Every batch is one bbolt transaction, synced to disk, so a crash leaves the last batch that Write returned from.
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

// layoutVersion is the version of the buckets, their keys and how values are sealed; the rows in them have index.FormatVersion. A
// file in which either is another is refused: it is filled again, not migrated.
const layoutVersion = 9

// pageSize is the size of a new file's pages, in bytes. Packets take about 1 KB, so that pages of 4 KB would stay a fifth empty; of
// blocks of postings, eight fill one.
const pageSize = 16 << 10

// growth is how many bytes a file that has become too small gets beyond what it needs. bbolt's 16 MiB would be as much as 12,000
// transfers take.
const growth = 4 << 20

// Store is an index.Index in one bbolt file. All methods are safe for concurrent use.
type Store struct {
	db      *bbolt.DB
	now     func() time.Time
	writing chan struct{} // holds a token while a batch is written, so that waiting for one's turn can end with ctx

	// tables is replaced after each commit that changed one of the small types or added a route. A reader that began
	// before may see newer tables than rows, never older ones than Write has promised.
	tables atomic.Pointer[tables]

	// dictionary is replaced before each commit that has added to it: a reader may have a newer one than its rows need.
	dictionary atomic.Pointer[index.Dictionary]
	packer     *index.Packer // owned by who has the token of writing

	recentKeys int
	largeBatch int

	serveUnverified bool
	minFree         int64

	file     *os.File // the one that bbolt opened; only ever read from here
	pageSize int64
	id       string                // see index.Status
	fault    atomic.Pointer[error] // why nothing is read or written any more; see broken
	gone     chan struct{}         // closed when there is a fault
	begins   sync.Mutex            // held while a transaction begins; see begin
	onDamage func(error)           // called once, with it; nil means not at all

	touched atomic.Uint64 // keys that queries have looked at; tests bound it
}

// Options say how to open a replica.
type Options struct {
	// Now is the clock that lateness and the last days are judged by; nil means time.Now.
	Now func() time.Time
	// LockTimeout is how long to wait for another process that has the file open; zero means a second.
	LockTimeout time.Duration
	// ReadOnly opens an existing file for reading alone, beside others that do.
	ReadOnly bool
	// MaxBytes is how much address space to reserve, in bytes, not memory; zero means 64 GiB. While the file is smaller, no
	// reader waits while it grows.
	MaxBytes int64
	// ServeUnverified also serves the rows that are kept apart, instead of other rows with their keys. Open changes a file
	// that was last opened with the other value, in a transaction for each thousand of them; ReadOnly takes it as it is.
	ServeUnverified bool

	// MinFree is how many bytes a write leaves free on the disk, which it shares with the journal: without room for that,
	// nothing can be attested.
	MinFree int64

	onDamage func(error) // called once, when a file that was open is found to be damaged

	recentKeys int // see rewriting.stretch; zero means minRecent and largeBatch, else all batches are small
}

// ErrSchema is returned by Open for a file of another layout or with rows of another format. The remedy is that of ErrDamaged.
var ErrSchema = errors.New("the replica is of another version")

var (
	bucketMeta      = []byte("meta")
	bucketPositions = []byte("positions")
	bucketStats     = []byte("stats")

	keyLayout  = []byte("layout")
	keyFormat  = []byte("rows")
	keyID      = []byte("id")
	keyUpdated = []byte("updated") // nanoseconds since 1970
)

// Open opens the replica at path, or makes an empty one, readable by its owner alone.
//
// Errors: ErrSchema; ErrDamaged; the file is locked by another process; what the file system says.
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
		now: o.Now, writing: make(chan struct{}, 1), gone: make(chan struct{}), file: file, pageSize: int64(db.Info().PageSize),
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

// abandon closes a file of which bbolt may never let go, but for its lock.
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

// Close waits for views and writes that are under way. A second Close does nothing.
func (r *Store) Close() error { return r.db.Close() }

// prepare makes the buckets of a new file, checks the version of an old one, serves what is unverified or no longer does,
// and loads the tables.
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
			panic(damage("it has lost its id"))
		}
		return checkSmall(tx, r.file)
	})
}

func checkSchema(tx *bbolt.Tx) error {
	meta := tx.Bucket(bucketMeta)
	if meta == nil || string(meta.Get(keyLayout)) != strconv.Itoa(layoutVersion) || string(meta.Get(keyFormat)) != strconv.Itoa(index.FormatVersion) {
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
		// Loaded after the transaction has begun: see Store.tables.
		return read(guarded{&snapshot{ctx: ctx, r: r, tx: tx, tables: r.tables.Load(), dictionary: r.dictionary.Load()}})
	})
}

// snapshot is a read transaction with the tables of its time.
type snapshot struct {
	ctx    context.Context // of the View: of what is looked up without one
	r      *Store
	tables *tables

	dictionary *index.Dictionary

	mu      sync.Mutex // protects what follows; bbolt does not make tx safe for several goroutines
	tx      *bbolt.Tx
	finders [2]*finder // by collection; see find
}

func unavailable(doing string, err error) error {
	return appliance.Errorf(appliance.CodeReplicaUnavailable, "the replica cannot be read or written now").
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
	status.Unverified = s.tx.Bucket(bucketUnverified).Sequence()
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
		return appliance.Errorf(appliance.CodeInvalidField, "%s has no rows of its own", t.Name)
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
			panic(damage(fmt.Sprintf("of %d rows there are %d", counted, n)))
		}
	})
	return nil
}

// locked runs f under s.mu, which is free again even where f panics over a damaged file.
func (s *snapshot) locked(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// walk calls yield with all that a bucket has, in the order of its keys, until an error of yield's. The caller does
// not hold s.mu, so that yield may ask the snapshot more.
func (s *snapshot) walk(ctx context.Context, bucket []byte, yield func(k, v []byte) error) error {
	var cursor *bbolt.Cursor
	var k, v []byte
	s.locked(func() {
		cursor = s.tx.Bucket(bucket).Cursor()
		k, v = cursor.First()
	})
	// A cursor of its own may go on without the lock: it only reads pages.
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
