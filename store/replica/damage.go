package replica

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"runtime/debug"
	"slices"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"

	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/store/bolt/pages"
)

// ErrDamaged is wrapped by the errors of Open, View and Write for a damaged file. The remedy is to set the file aside
// and fill a new one: see Keep.
var ErrDamaged = errors.New("the replica is damaged")

// damage is the type of this package's own panics over invalid bytes. bbolt panics with other values.
type damage string

const errNoRow = damage("an index refers to a missing row")

const sealSize = 4

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// seal appends a CRC-32C over the bucket's name, the key and the value. bbolt has checksums only for its meta pages, so
// a flipped bit in a row would be served, and a flipped bit in a key would assign a value to another key. If the disk
// loses the write of a page, the page keeps its old contents, perhaps rows of another type under the same sort_orders.
// bucket is sumOf the bucket's name.
func seal(bucket uint32, key, value []byte) []byte {
	return binary.BigEndian.AppendUint32(value, checksum(bucket, key, value))
}

// sumOf returns the checksum of a bucket's name, which the checksums of its values extend.
func sumOf(bucket []byte) uint32 { return crc32.Checksum(bucket, castagnoli) }

func checksum(bucket uint32, key, value []byte) uint32 {
	return crc32.Update(crc32.Update(bucket, castagnoli, key), castagnoli, value)
}

// anyPostings replaces the checksum of the name for all buckets of postings. The rows that postings lead to are checked
// against the query in any case.
const anyPostings = 0

// unseal verifies the checksum of a stored value and returns the payload as a subslice. Verifying reads every byte, so
// a failing disk shows up here. A nil value is damage, too: bbolt returns one for a nested bucket, and a flipped bit
// can make a value look like one.
func unseal(bucket uint32, key, sealed []byte) []byte {
	n := len(sealed) - sealSize
	if n < 0 || binary.BigEndian.Uint32(sealed[n:]) != checksum(bucket, key, sealed[:n]) {
		panic(damage(fmt.Sprintf("a value of %d bytes has a wrong checksum", len(sealed))))
	}
	return sealed[:n:n]
}

// put seals a copy of a value and stores it in a bucket.
func put(tx *bbolt.Tx, bucket, key, value []byte) error {
	return tx.Bucket(bucket).Put(key, seal(sumOf(bucket), key, slices.Clip(value)))
}

// get returns the payload of a value stored by put, or nil if the key does not exist.
func get(tx *bbolt.Tx, bucket, key []byte) []byte {
	sealed := tx.Bucket(bucket).Get(key)
	if sealed == nil {
		return nil
	}
	return unseal(sumOf(bucket), key, sealed)
}

// checkSmall reads all small buckets, to find a damaged key or a page that has lost entries. A lookup would only miss
// such a key.
func checkSmall(tx *bbolt.Tx, file *os.File) error {
	r := pages.New(file, tx)
	if err := r.Walk(string(bucketMeta), nil, func([]byte, []byte) error { return nil }, nil); err != nil {
		return damaged(err)
	}
	names := []string{string(bucketPositions), string(bucketStats), string(bucketTexts), string(bucketSamples)}
	for _, t := range index.TableTypes {
		names = append(names, t.Name)
	}
	for _, name := range names {
		err := r.Walk(name, nil, func(key, sealed []byte) error {
			unseal(sumOf([]byte(name)), key, sealed)
			return nil
		}, nil)
		if err != nil {
			return damaged(err)
		}
	}
	return nil
}

// openFile opens the file with bbolt, and turns bbolt's panics over invalid pages into errors.
func openFile(path string, o *bbolt.Options) (db *bbolt.DB, file *os.File, err error) {
	o.OpenFile = func(name string, flag int, mode os.FileMode) (*os.File, error) {
		f, err := os.OpenFile(name, flag, mode)
		file = f
		return f, err
	}
	defer func() {
		if err != nil && file != nil {
			_ = file.Close() // bbolt has closed it, unless it panicked; the lock is released with it
		}
	}()
	if stat, err := os.Stat(path); err == nil && stat.Mode().IsRegular() && stat.Size() == 0 {
		return nil, nil, fmt.Errorf("%w: the file is empty", ErrDamaged) // bbolt would silently initialize it
	}
	defer surviveFile(&err)()
	db, err = bbolt.Open(path, 0o600, o)
	switch {
	case errors.Is(err, bbolterrors.ErrTimeout):
		return nil, file, errInUse
	case errors.Is(err, bbolterrors.ErrInvalid), errors.Is(err, bbolterrors.ErrChecksum),
		errors.Is(err, bbolterrors.ErrVersionMismatch):
		return nil, file, fmt.Errorf("%w, or not a replica: %w", ErrDamaged, err)
	case err != nil && err.Error() == "file size too small": // bbolt's text for a file that is too short
		return nil, file, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return db, file, err
}

var errInUse = errors.New("in use by another process")

// surviveFile is survive for code that runs before a Store exists.
func surviveFile(err *error) func() {
	before := debug.SetPanicOnFault(true) // applies to this goroutine only
	return func() {
		debug.SetPanicOnFault(before)
		if cause := recover(); cause != nil {
			*err = damaged(cause)
		}
	}
}

func damaged(cause any) error { return fmt.Errorf("%w: %v", ErrDamaged, cause) }

// checkWhole finds a file that ends before its last page, and trees with a cycle, in which bbolt would loop forever or
// overflow the stack.
func checkWhole(db *bbolt.DB, file *os.File) error {
	return db.View(func(tx *bbolt.Tx) error {
		stat, err := file.Stat()
		switch {
		case err != nil:
			return err
		case stat.Size() < tx.Size():
			return fmt.Errorf("%w: the file has %d bytes instead of %d", ErrDamaged, stat.Size(), tx.Size())
		}
		if err := pages.New(file, tx).CheckBranches(); err != nil {
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		return nil
	})
}

// broken records that the file is damaged. It is not read or written any more, because bbolt may have left its locks
// held. It returns the error for callers.
func (r *Store) broken(cause error) error {
	if r.fault.CompareAndSwap(nil, &cause) {
		close(r.gone)
		if r.onDamage != nil {
			r.onDamage(cause)
		}
	}
	return r.refusal()
}

// refusal returns the error for callers if the file is damaged, otherwise nil.
func (r *Store) refusal() error {
	if cause := r.fault.Load(); cause != nil {
		return unavailable("use it", *cause)
	}
	return nil
}

// survive, when deferred, turns any panic into damage. It is for functions that run only this package's code. before is
// the result of debug.SetPanicOnFault(true). It is not a closure, which would allocate for each row of some pages.
func (r *Store) survive(before bool, err *error) {
	debug.SetPanicOnFault(before)
	switch cause := recover().(type) {
	case nil:
	case callerPanic:
		panic(cause.cause)
	default:
		*err = r.broken(damaged(cause))
	}
}

// surviveView is survive for functions that run callers' code on a replica. It passes on their panics. Only a fault in
// the mapped file, or a panic of type damage, is damage.
func (r *Store) surviveView(before bool, err *error) {
	debug.SetPanicOnFault(before)
	switch cause := recover().(type) {
	case nil:
	// A runtime.Error with an Addr method is a memory fault. A nil dereference has no address.
	case damage, interface{ Addr() uintptr }:
		*err = r.broken(damaged(cause))
	default:
		panic(cause)
	}
}

// begin begins a transaction. bbolt reads a meta page, and if that page is damaged or cut off, bbolt panics with its
// locks held, so that later callers would wait forever. So begin checks the page first, and checks that no earlier
// begin has failed.
func (r *Store) begin(writable bool) (tx *bbolt.Tx, err error) {
	r.begins.Lock()
	defer r.begins.Unlock()
	defer r.survive(debug.SetPanicOnFault(true), &err)
	if err := r.refusal(); err != nil {
		return nil, err
	}
	switch err := pages.CheckMeta(r.file, r.pageSize); {
	case errors.Is(err, os.ErrClosed):
		return nil, unavailable("begin", err)
	case err != nil:
		return nil, r.broken(damaged(err))
	}
	if tx, err = r.db.Begin(writable); err != nil {
		return nil, unavailable("begin", err)
	}
	return tx, nil
}

// view runs fn in a read transaction.
func (r *Store) view(fn func(tx *bbolt.Tx) error) error {
	tx, err := r.begin(false)
	if err != nil {
		return err
	}
	defer r.end(tx)
	return fn(tx)
}

// end ends a read transaction, for which bbolt needs a lock that a concurrent begin may leave held. If no begin is
// running, end rolls back directly. Otherwise it waits for the rollback or for the fault.
func (r *Store) end(tx *bbolt.Tx) {
	if r.begins.TryLock() {
		defer r.begins.Unlock()
		if r.fault.Load() == nil {
			_ = tx.Rollback() // fails only if the transaction has ended
			return
		}
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = tx.Rollback()
	}()
	select {
	case <-ended:
	case <-r.gone:
	}
}

// guardedSnapshot is a snapshot of a file that may be damaged. A panic of bbolt or of this package becomes an error,
// and ends the use of the replica. A panic of the caller's code inside yield is passed on.
type guardedSnapshot struct{ s *snapshot }

var _ index.Snapshot = guardedSnapshot{}

// guard runs read, unless ctx has ended or the replica is damaged.
func guard[T any](ctx context.Context, g guardedSnapshot, read func(s *snapshot) (T, error)) (result T, err error) {
	if err := ctx.Err(); err != nil {
		return result, timeoutError(err)
	}
	if err := g.s.r.refusal(); err != nil {
		return result, err
	}
	defer g.s.r.survive(debug.SetPanicOnFault(true), &err)
	return read(g.s)
}

// callerPanic wraps a panic of yield, so that survive passes it on.
type callerPanic struct{ cause any }

// guardEach runs read and passes on the panics of yield.
func guardEach[T any](ctx context.Context, g guardedSnapshot, yield func(T) error,
	read func(s *snapshot, yield func(T) error) error) error {
	_, err := guard(ctx, g, func(s *snapshot) (struct{}, error) {
		return struct{}{}, read(s, func(v T) error {
			defer func() {
				if cause := recover(); cause != nil {
					panic(callerPanic{cause})
				}
			}()
			return yield(v)
		})
	})
	return err
}
