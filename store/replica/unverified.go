package replica

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"strconv"
	"time"

	"go.etcd.io/bbolt"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index"
)

// The bucket of what is kept apart, by the name of the type, NUL and the row's key. Its sequence is how many there are.
// What it has of a row is
//
//	since                   when the row was first kept apart, nanoseconds since 1970, 8 bytes big-endian
//	served                  1 while the row is among the others, else 0
//	reason, row, verified   each its length as a varint and its bytes; see apart
var (
	bucketUnverified = []byte("unverified")
	// keyServing, in meta, is how a file's unverified rows are served: true or false, or nothing while that changes.
	keyServing = []byte("serve unverified")
)

// apart is a row that is kept apart.
type apart struct {
	since  int64
	served bool
	reason []byte
	row    []byte
	// verified is what Rows has said of the key, while this row is served in its place; empty where it has said nothing.
	verified []byte
}

func (a apart) encode() []byte {
	v := binary.BigEndian.AppendUint64(make([]byte, 0, 32+len(a.reason)+len(a.row)+len(a.verified)), uint64(a.since))
	served := byte(0)
	if a.served {
		served = 1
	}
	v = append(v, served)
	for _, part := range [][]byte{a.reason, a.row, a.verified} {
		v = append(binary.AppendUvarint(v, uint64(len(part))), part...)
	}
	return v
}

// readApart returns what was encoded, as parts of it.
func readApart(v []byte) apart {
	a := apart{since: int64(binary.BigEndian.Uint64(v)), served: v[8] == 1}
	v = v[9:]
	for _, part := range []*[]byte{&a.reason, &a.row, &a.verified} {
		length, n := binary.Uvarint(v)
		v = v[n:]
		*part, v = v[:length], v[length:]
	}
	return a
}

// maxApartKey is where keys in the bucket are cut, in bytes, for an upstream may send any text for a hash and bbolt bounds keys.
const maxApartKey = 1024

// apartKey returns a row's key in the bucket. One that is too long ends in its SHA-256.
func apartKey(id index.RowID) []byte {
	key := append(make([]byte, 0, 96), id.Type.Name...)
	key = append(append(key, 0), id.Key...)
	if len(key) > maxApartKey {
		sum := sha256.Sum256(key)
		key = append(key[:maxApartKey-len(sum)], sum[:]...)
	}
	return key
}

// collectionOfApart returns which collection a key in the bucket is of.
func collectionOfApart(key []byte) *collection {
	for _, c := range collections {
		if bytes.HasPrefix(key, append([]byte(c.t.Name), 0)) {
			return c
		}
	}
	return nil
}

// keepApart writes an unverified row.
func (w *batchWriter) keepApart(u index.Unverified) error {
	if u.Row.IsZero() {
		return errEmptyRow
	}
	c := collectionOf(u.Row.Type())
	if c == nil {
		return appliance.Errorf(appliance.CodeInvalidField, "a %s cannot be kept apart, only a packet or a transfer", u.Row.Type().Name)
	}
	key := apartKey(u.Row.ID())
	a := apart{since: w.r.now().UnixNano()}
	if v := get(w.tx, bucketUnverified, key); v == nil {
		w.written.Inserted++
		if err := w.apart.SetSequence(w.apart.Sequence() + 1); err != nil {
			return err
		}
	} else {
		a = readApart(v)
		if string(a.reason) == u.Reason && bytes.Equal(a.row, u.Row.Bytes()) {
			w.written.Unchanged++
			return nil
		}
		w.written.Updated++
	}
	a.reason, a.row = []byte(u.Reason), u.Row.Bytes()
	if w.r.serveUnverified {
		if err := w.serve(c, &a); err != nil {
			return err
		}
	}
	return put(w.tx, bucketUnverified, key, a.encode())
}

// endApart ends what is kept apart of a row's key, and tells whether there was any. Where nothing is kept apart it costs nothing.
func (w *batchWriter) endApart(row index.Row) (ended bool, err error) {
	kept := w.apart.Sequence()
	if kept == 0 || collectionOf(row.Type()) == nil {
		return false, nil
	}
	key := apartKey(row.ID())
	if w.apart.Get(key) == nil {
		return false, nil
	}
	return true, w.dropApart(key)
}

func (w *batchWriter) dropApart(key []byte) error {
	if err := w.apart.Delete(key); err != nil {
		return err
	}
	return w.apart.SetSequence(w.apart.Sequence() - 1)
}

// withdraw ends what is kept apart of a key, and serves it no longer.
func (w *batchWriter) withdraw(id index.RowID) error {
	c := collectionOf(id.Type)
	if c == nil {
		return nil // of such nothing is kept apart
	}
	key := apartKey(id)
	v := get(w.tx, bucketUnverified, key)
	if v == nil {
		return nil
	}
	if a := readApart(bytes.Clone(v)); a.served {
		if err := w.unserve(c, &a); err != nil {
			return err
		}
	}
	w.written.Updated++
	return w.dropApart(key)
}

// serve puts a row that is kept apart among the rows. One that cannot be there, for others have its sort_order, stays apart
// alone.
func (w *batchWriter) serve(c *collection, a *apart) error {
	row := index.RowOf(c.t, a.row)
	was, _ := w.current(c, row.AppendKey(nil, c.t.Key), false)
	switch _, err := w.upsertRow(c, row, nil); {
	case appliance.CodeOf(err) == appliance.CodeInvalidField:
		return nil
	case err != nil:
		return err
	}
	if !a.served {
		a.served, a.verified = true, was.Bytes()
	}
	return nil
}

// unserve puts back what Rows has said of the row's key, or takes the row out where it has said nothing. So it does where
// others have taken the sort_order meanwhile, rather than to serve what is unverified.
func (w *batchWriter) unserve(c *collection, a *apart) error {
	verified := index.RowOf(c.t, a.verified)
	a.served, a.verified = false, nil
	if !verified.IsZero() {
		if _, err := w.upsertRow(c, verified, nil); appliance.CodeOf(err) != appliance.CodeInvalidField {
			return err
		}
	}
	_, err := w.remove(c, index.RowOf(c.t, a.row).AppendKey(nil, c.t.Key))
	return err
}

// settleServing serves all that is kept apart, or no longer does, where the file was last opened otherwise.
func (r *Store) settleServing() error {
	want := strconv.FormatBool(r.serveUnverified)
	var settled bool
	err := r.db.View(func(tx *bbolt.Tx) error {
		settled = string(tx.Bucket(bucketMeta).Get(keyServing)) == want
		return nil
	})
	for next := []byte{}; err == nil && !settled; settled = next == nil {
		next, err = r.settleStep(next)
	}
	return err
}

// settleStep is a part of settleServing, in one transaction: for some rows from a key on. It returns the key to go on from, nil
// after the last.
func (r *Store) settleStep(from []byte) (next []byte, err error) {
	err = r.db.Update(func(tx *bbolt.Tx) (err error) {
		if next, err = newBatchWriter(r, tx).settle(from); err != nil {
			return err
		}
		if next != nil {
			return tx.Bucket(bucketMeta).Delete(keyServing) // who is interrupted here begins again
		}
		return tx.Bucket(bucketMeta).Put(keyServing, strconv.AppendBool(nil, r.serveUnverified))
	})
	return next, err
}

// settleAtOnce is how many rows are settled in one transaction, whose changes are held in memory.
const settleAtOnce = 1000

// settle serves what is kept apart, or no longer does, from a key on; see settleStep.
func (w *batchWriter) settle(from []byte) (next []byte, err error) {
	type entry struct{ k, v []byte }
	var entries []entry // read first: a cursor does not bear changes
	cursor := w.apart.Cursor()
	k, v := cursor.Seek(from)
	for ; k != nil && len(entries) < settleAtOnce; k, v = cursor.Next() {
		entries = append(entries, entry{k, v})
	}
	next = bytes.Clone(k)
	for _, e := range entries {
		a, change := readApart(unseal(sumOf(bucketUnverified), e.k, e.v)), w.serve
		if a.served == w.r.serveUnverified {
			continue
		}
		if a.served {
			change = w.unserve
		}
		if err := change(collectionOfApart(e.k), &a); err != nil {
			return nil, err
		}
		if err := put(w.tx, bucketUnverified, e.k, a.encode()); err != nil {
			return nil, err
		}
	}
	return next, w.applyGathered()
}

// Unverified implements index.Snapshot.
func (s *snapshot) Unverified(ctx context.Context, yield func(index.Unverified) error) error {
	return s.walk(ctx, bucketUnverified, func(k, v []byte) error {
		a := readApart(unseal(sumOf(bucketUnverified), k, v))
		return yield(index.Unverified{
			Row: index.RowOf(collectionOfApart(k).t, a.row), Reason: string(a.reason), Since: time.Unix(0, a.since).UTC(),
		})
	})
}

// Unfinished implements index.Snapshot.
func (s *snapshot) Unfinished(ctx context.Context, behind index.Row, yield func(index.Row) error) error {
	var rows *bbolt.Cursor
	var unsettled *blockCursor
	s.locked(func() {
		rows = s.tx.Bucket(packets.rows).Cursor()
		unsettled = newBlockCursor(s.tx.Bucket(packetUnsettled.bucket))
	})
	// Cursors of its own may go on without the lock, as in walk.
	n := 0
	k, last := unsettled.start(), []byte(nil)
	if !behind.IsZero() {
		last = append(appendTerm(nil, routeTermOf(behind, packets.source, packets.destination)), behind.SortOrder()...)
		k = unsettled.seek(last)
	}
	for ; k != nil; k = unsettled.next() {
		if bytes.Equal(k, last) {
			continue
		}
		if n++; n%askEvery == 0 && ctx.Err() != nil {
			return timeoutError(ctx.Err())
		}
		if err := yield(packets.posted(s.dictionary, rows, k[termSize:])); err != nil {
			return err
		}
	}
	return nil
}
