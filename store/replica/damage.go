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

// ErrDamaged is wrapped by the errors of Open, View and Write for a damaged file. The remedy is to set it aside and to fill a
// new one: see Keep.
var ErrDamaged = errors.New("the replica is damaged")

// damage is what our own code panics with over bytes that make no sense. bbolt panics with texts of its own.
type damage string

const errNoRow = damage("postings have a row that is not there")

const sealSize = 4

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// seal appends to a value the CRC-32C of its bucket's name, of its key and of it. bbolt has no checksums but for its meta pages: without
// ours, a flipped bit in a row would be served, or one in a key would make a value another's. A page that the disk has not written has
// what was there before: perhaps rows of another type, under the same sort_orders. The bucket is given as sumOf its name.
func seal(bucket uint32, key, value []byte) []byte {
	return binary.BigEndian.AppendUint32(value, checksum(bucket, key, value))
}

// sumOf returns the checksum of a bucket's name, which those of its values go on from.
func sumOf(bucket []byte) uint32 { return crc32.Checksum(bucket, castagnoli) }

func checksum(bucket uint32, key, value []byte) uint32 {
	return crc32.Update(crc32.Update(bucket, castagnoli, key), castagnoli, value)
}

// anyPostings stands for the names of the buckets of postings. What these lead to is held against the query anyway.
const anyPostings = 0

// unseal returns what was sealed, as a part of it. It has touched every byte of the value then: the disk gives it. A key that a cursor has
// found has a value: bbolt has none for a bucket in a bucket, and a flipped bit makes one.
func unseal(bucket uint32, key, sealed []byte) []byte {
	n := len(sealed) - sealSize
	if n < 0 || binary.BigEndian.Uint32(sealed[n:]) != checksum(bucket, key, sealed[:n]) {
		panic(damage(fmt.Sprintf("a value of %d bytes does not have its checksum", len(sealed))))
	}
	return sealed[:n:n]
}

// put seals a value, which it copies, and puts it into a bucket.
func put(tx *bbolt.Tx, bucket, key, value []byte) error {
	return tx.Bucket(bucket).Put(key, seal(sumOf(bucket), key, slices.Clip(value)))
}

// get returns what put has put under a key; nil where there is nothing.
func get(tx *bbolt.Tx, bucket, key []byte) []byte {
	sealed := tx.Bucket(bucket).Get(key)
	if sealed == nil {
		return nil
	}
	return unseal(sumOf(bucket), key, sealed)
}

// checkSmall reads all of the buckets that are small, so that a damaged key, or a page that has lost entries, is found: who looks for one
// would only find nothing.
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

// openFile opens the file by bbolt, which panics over pages that make no sense.
func openFile(path string, o *bbolt.Options) (db *bbolt.DB, file *os.File, err error) {
	o.OpenFile = func(name string, flag int, mode os.FileMode) (*os.File, error) {
		f, err := os.OpenFile(name, flag, mode)
		file = f
		return f, err
	}
	defer func() {
		if err != nil && file != nil {
			_ = file.Close() // bbolt has, unless it panicked. The lock goes with it
		}
	}()
	if stat, err := os.Stat(path); err == nil && stat.Mode().IsRegular() && stat.Size() == 0 {
		return nil, nil, fmt.Errorf("%w: it is empty", ErrDamaged) // bbolt would take it for a new one, and nobody would know
	}
	defer surviveFile(&err)()
	db, err = bbolt.Open(path, 0o600, o)
	switch {
	case errors.Is(err, bbolterrors.ErrTimeout):
		return nil, file, errInUse
	case errors.Is(err, bbolterrors.ErrInvalid), errors.Is(err, bbolterrors.ErrChecksum), errors.Is(err, bbolterrors.ErrVersionMismatch):
		return nil, file, fmt.Errorf("%w, or no replica: %w", ErrDamaged, err)
	case err != nil && err.Error() == "file size too small": // as bbolt has it
		return nil, file, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return db, file, err
}

var errInUse = errors.New("another process has it open")

// surviveFile is survive for all that is done with a replica alone.
func surviveFile(err *error) func() {
	before := debug.SetPanicOnFault(true) // of this goroutine only
	return func() {
		debug.SetPanicOnFault(before)
		if cause := recover(); cause != nil {
			*err = damaged(cause)
		}
	}
}

func damaged(cause any) error { return fmt.Errorf("%w: %v", ErrDamaged, cause) }

// checkWhole finds a file that ends before its last page, and trees that go in a circle, in which bbolt would walk for ever or
// until the process has no stack.
func checkWhole(db *bbolt.DB, file *os.File) error {
	return db.View(func(tx *bbolt.Tx) error {
		stat, err := file.Stat()
		switch {
		case err != nil:
			return err
		case stat.Size() < tx.Size():
			return fmt.Errorf("%w: it has %d bytes of %d", ErrDamaged, stat.Size(), tx.Size())
		}
		if err := pages.New(file, tx).CheckBranches(); err != nil {
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		return nil
	})
}

// broken notes that the file is damaged: nothing is read from it or written to it any more, for bbolt may have left its locks
// behind. It returns what callers are told.
func (r *Store) broken(cause error) error {
	if r.fault.CompareAndSwap(nil, &cause) {
		close(r.gone)
		if r.onDamage != nil {
			r.onDamage(cause)
		}
	}
	return r.refusal()
}

// refusal is why nothing can be read or written any more, or nil.
func (r *Store) refusal() error {
	if cause := r.fault.Load(); cause != nil {
		return unavailable("use it", *cause)
	}
	return nil
}

// survive, deferred, is for a function that does nothing but what a replica does: whatever it panics over is damage. before is what
// debug.SetPanicOnFault(true) has returned. It is no closure: each of them is some allocations, for each row of some pages.
func (r *Store) survive(before bool, err *error) {
	debug.SetPanicOnFault(before)
	switch cause := recover().(type) {
	case nil:
	case theirs:
		panic(cause.cause)
	default:
		*err = r.broken(damaged(cause))
	}
}

// surviveView is survive for a function in which others use what a replica gave them. Their own panics go on: only a fault where
// the mapped file cannot be read, and what guarded has found, are damage.
func (r *Store) surviveView(before bool, err *error) {
	debug.SetPanicOnFault(before)
	switch cause := recover().(type) {
	case nil:
	case damage, interface{ Addr() uintptr }: // the second is a fault, by runtime.Error; of nil it has no address
		*err = r.broken(damaged(cause))
	default:
		panic(cause)
	}
}

// begin begins a transaction. bbolt reads a meta page then, and where that is damaged, or cut off, it panics with its locks held: who
// comes later would wait for ever. So the page is looked at before, and who comes later looks whether it went well.
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

// end ends a read transaction, for which bbolt needs a lock that begin may just be leaving behind. Where nobody begins that cannot be;
// else it does not wait for more than the fault.
func (r *Store) end(tx *bbolt.Tx) {
	if r.begins.TryLock() {
		defer r.begins.Unlock()
		if r.fault.Load() == nil {
			_ = tx.Rollback() // fails only where it has ended
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

// guarded is a snapshot of a file that may be damaged: what bbolt and what we panic over becomes an error, and the end of the
// replica. What its callers panic over, inside yield, stays theirs.
type guarded struct{ s *snapshot }

var _ index.Snapshot = guarded{}

// guard runs read, unless ctx has ended.
func guard[T any](ctx context.Context, g guarded, read func(s *snapshot) (T, error)) (result T, err error) {
	if err := ctx.Err(); err != nil {
		return result, timeoutError(err)
	}
	if err := g.s.r.refusal(); err != nil {
		return result, err
	}
	defer g.s.r.survive(debug.SetPanicOnFault(true), &err)
	return read(g.s)
}

// theirs is a panic of a yield, on its way through what survives damage.
type theirs struct{ cause any }

// guardEach runs read with a yield whose panics go on.
func guardEach[T any](ctx context.Context, g guarded, yield func(T) error, read func(s *snapshot, yield func(T) error) error) error {
	_, err := guard(ctx, g, func(s *snapshot) (struct{}, error) {
		return struct{}{}, read(s, func(v T) error {
			defer func() {
				if cause := recover(); cause != nil {
					panic(theirs{cause})
				}
			}()
			return yield(v)
		})
	})
	return err
}
