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

// The quarantine of unverified rows. A key is the name of the type, NUL and the row's key. The bucket's sequence is the
// number of entries. A value is
//
//	since                   when the row was first quarantined, nanoseconds since 1970, 8 bytes big-endian
//	served                  1 while the row is stored among the served rows, otherwise 0
//	reason, row, verified   each its length as a varint and its bytes; see apart
var (
	bucketUnverified = []byte("unverified")
	// keyServing, in meta, says whether the file serves unverified rows: true, false, or absent during a conversion.
	keyServing = []byte("serve unverified")
)

// quarantinedRow is a quarantined row.
type quarantinedRow struct {
	since  int64
	served bool
	reason []byte
	row    []byte
	// verified is the row that the upstream's verified data (Batch.Rows) has for the key, while this row is served
	// instead. It is empty if no verified row is known.
	verified []byte
}

func (a quarantinedRow) encode() []byte {
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

// readApart decodes a value. The fields of the result alias v.
func readApart(v []byte) quarantinedRow {
	a := quarantinedRow{since: int64(binary.BigEndian.Uint64(v)), served: v[8] == 1}
	v = v[9:]
	for _, part := range []*[]byte{&a.reason, &a.row, &a.verified} {
		length, n := binary.Uvarint(v)
		v = v[n:]
		*part, v = v[:length], v[length:]
	}
	return a
}

// maxApartKey is the maximum length of a key in the quarantine, in bytes. An upstream may send any text as a hash, and
// bbolt limits the length of keys.
const maxApartKey = 1024

// apartKey returns the key of a row in the quarantine. A key that is too long is cut and ends in its SHA-256.
func apartKey(id index.RowID) []byte {
	key := append(make([]byte, 0, 96), id.Type.Name...)
	key = append(append(key, 0), id.Key...)
	if len(key) > maxApartKey {
		sum := sha256.Sum256(key)
		key = append(key[:maxApartKey-len(sum)], sum[:]...)
	}
	return key
}

// collectionOfApart returns the collection that a quarantine key belongs to.
func collectionOfApart(key []byte) *collection {
	for _, c := range collections {
		if bytes.HasPrefix(key, append([]byte(c.t.Name), 0)) {
			return c
		}
	}
	return nil
}

// keepApart quarantines an unverified row. It counts the row as inserted, updated or unchanged.
func (w *batchWriter) keepApart(u index.Unverified) error {
	if u.Row.IsZero() {
		return errEmptyRow
	}
	c := collectionOf(u.Row.Type())
	if c == nil {
		return appliance.Errorf(appliance.CodeInvalidField, "a %s cannot be quarantined, only a packet or a transfer",
			u.Row.Type().Name)
	}
	key := apartKey(u.Row.ID())
	a := quarantinedRow{since: w.r.now().UnixNano()}
	if v := get(w.tx, bucketUnverified, key); v == nil {
		w.written.Inserted++
		if err := w.quarantined.SetSequence(w.quarantined.Sequence() + 1); err != nil {
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

// endApart deletes the quarantine entry for a row's key, and reports whether there was one. With an empty quarantine it
// costs no read.
func (w *batchWriter) endApart(row index.Row) (ended bool, err error) {
	kept := w.quarantined.Sequence()
	if kept == 0 || collectionOf(row.Type()) == nil {
		return false, nil
	}
	key := apartKey(row.ID())
	if w.quarantined.Get(key) == nil {
		return false, nil
	}
	return true, w.dropApart(key)
}

func (w *batchWriter) dropApart(key []byte) error {
	if err := w.quarantined.Delete(key); err != nil {
		return err
	}
	return w.quarantined.SetSequence(w.quarantined.Sequence() - 1)
}

// withdraw deletes the quarantine entry of a key and stops serving its row.
func (w *batchWriter) withdraw(id index.RowID) error {
	c := collectionOf(id.Type)
	if c == nil {
		return nil // only collections have quarantined rows
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

// serve stores a quarantined row among the served rows. If other rows hold both of its possible sort_orders, the row
// stays in quarantine and is not served.
func (w *batchWriter) serve(c *collection, a *quarantinedRow) error {
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

// unserve restores the verified row of the key, or deletes the row if no verified one is known. If other rows have
// taken the sort_order since, it deletes the row, too, because it must not serve an unverified one.
func (w *batchWriter) unserve(c *collection, a *quarantinedRow) error {
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

// settleServing converts a file that was last opened with the other value of ServeUnverified.
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

// settleStep is one transaction of settleServing. It converts up to settleAtOnce rows from a key on, and returns the
// key to continue from, or nil after the last one.
func (r *Store) settleStep(from []byte) (next []byte, err error) {
	err = r.db.Update(func(tx *bbolt.Tx) (err error) {
		if next, err = newBatchWriter(r, tx).serveQuarantined(from); err != nil {
			return err
		}
		if next != nil {
			return tx.Bucket(bucketMeta).Delete(keyServing) // an interrupted conversion starts over
		}
		return tx.Bucket(bucketMeta).Put(keyServing, strconv.AppendBool(nil, r.serveUnverified))
	})
	return next, err
}

// settleAtOnce is how many rows one transaction converts. Its changes are held in memory.
const settleAtOnce = 1000

// serveQuarantined serves quarantined rows, or stops serving them, from a key on; see settleStep.
func (w *batchWriter) serveQuarantined(from []byte) (next []byte, err error) {
	type entry struct{ k, v []byte }
	var entries []entry // collected first, because the bucket must not change under a cursor
	cursor := w.quarantined.Cursor()
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
			Row: index.RowOf(collectionOfApart(k).t, a.row), Reason: string(a.reason),
			Since: time.Unix(0, a.since).UTC(),
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
	// These cursors need no lock, as in walk.
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
