package bolt

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"slices"

	"go.etcd.io/bbolt"

	"github.com/attestd/attestd/appliance"
)

// Write implements appliance.Index.
func (r *Replica) Write(ctx context.Context, b appliance.Batch) (appliance.Written, error) {
	select {
	case r.writing <- struct{}{}:
		defer func() { <-r.writing }()
	case <-ctx.Done():
		return appliance.Written{}, timeoutError(ctx.Err())
	}
	var w *batchWriter
	err := r.db.Update(func(tx *bbolt.Tx) error {
		w = newBatchWriter(r, tx)
		return w.write(b)
	})
	if err != nil {
		var domain *appliance.Error
		if errors.As(err, &domain) {
			return appliance.Written{}, err
		}
		return appliance.Written{}, unavailable("write a batch", err)
	}
	if w.routesChanged || w.changedTables != [5]bool{} {
		// The writer's turn is still ours, so this is what was just committed.
		err = r.db.View(func(tx *bbolt.Tx) error {
			r.tables.Store(r.tables.Load().reload(tx, w.changedTables, w.routesChanged))
			return nil
		})
	}
	if err != nil {
		return w.written, unavailable("load the tables", err)
	}
	return w.written, nil
}

// batchWriter writes one batch in one transaction. Rows go to their buckets at once, in the order of the batch, so that
// each sees what those before it did; changes of indexes are gathered and made at the end in the order of their keys,
// which touches each page of an index once.
type batchWriter struct {
	r       *Replica
	tx      *bbolt.Tx
	written appliance.Written
	counts  *deltas

	rows    [2]*bbolt.Bucket     // by collection
	moved   [2]map[string]string // by collection: sort_orders by key of rows that this batch has put or moved
	changes map[*index][]indexChange
	arena   []byte // memory for the keys of changes

	tableOrders   [5]map[string]string
	changedTables [5]bool
	routesChanged bool
}

// indexChange puts a key into an index, or removes it.
type indexChange struct {
	term   uint64
	key    []byte
	remove bool
}

func newBatchWriter(r *Replica, tx *bbolt.Tx) *batchWriter {
	w := &batchWriter{r: r, tx: tx, counts: newDeltas(), changes: make(map[*index][]indexChange)}
	for i, c := range collections {
		w.rows[i] = tx.Bucket(c.rows)
		w.rows[i].FillPercent = fillOrdered
		w.moved[i] = make(map[string]string)
	}
	return w
}

// How full pages are left when they split: rows and times come mostly in order, so that what is left free stays free;
// hashes come anywhere.
const (
	fillOrdered = 0.95
	fillRandom  = 0.6
)

func (w *batchWriter) write(b appliance.Batch) error {
	for _, row := range b.Rows {
		if err := w.upsert(row); err != nil {
			return err
		}
	}
	for name, value := range b.Positions {
		if err := w.position(name, value); err != nil {
			return err
		}
	}
	if w.written.Inserted+w.written.Updated == 0 {
		return nil
	}
	for x, changes := range w.changes {
		if err := w.applyChanges(x, changes); err != nil {
			return err
		}
	}
	routes, err := w.counts.write(w.tx.Bucket(bucketStats))
	if err != nil {
		return err
	}
	w.routesChanged = routes
	return w.tx.Bucket(bucketMeta).Put(keyUpdated, binary.BigEndian.AppendUint64(nil, uint64(w.r.now().UnixNano())))
}

func (w *batchWriter) position(name, value string) error {
	positions := w.tx.Bucket(bucketPositions)
	if value == "" {
		return positions.Delete([]byte(name))
	}
	return positions.Put([]byte(name), []byte(value))
}

func (w *batchWriter) upsert(row appliance.Row) error {
	if row.IsZero() {
		return appliance.Errorf(appliance.CodeInvalidField, "a batch has an empty row")
	}
	if c := collectionOf(row.Type()); c != nil {
		return w.upsertRow(c, row)
	}
	if i := tableOf(row.Type()); i >= 0 {
		return w.upsertTable(i, row)
	}
	return appliance.Errorf(appliance.CodeInvalidField, "%s is not a record", row.Type().Name)
}

func (w *batchWriter) upsertRow(c *collection, row appliance.Row) error {
	key := row.AppendKey(make([]byte, 0, 96), c.t.Key)
	old, kept := w.current(c, key)
	order, _ := row.Text(c.order)
	settled, err := settleOrder(order, kept, string(key), func(order string) bool { return w.rows[c.number].Get([]byte(order)) != nil })
	if err != nil {
		return err
	}
	if settled != order {
		if row, err = row.WithText(c.order, settled); err != nil {
			return err
		}
	}
	switch {
	case old.IsZero():
		w.written.Inserted++
	case bytes.Equal(old.Bytes(), row.Bytes()):
		w.written.Unchanged++
		return nil
	default:
		w.written.Updated++
		w.counts.add(c, old, -1)
	}
	w.counts.add(c, row, 1)
	w.reindex(c, old, kept, row, settled)
	if !old.IsZero() && kept != settled {
		if err := w.rows[c.number].Delete([]byte(kept)); err != nil {
			return err
		}
	}
	w.moved[c.number][string(key)] = settled
	return w.rows[c.number].Put([]byte(settled), row.Bytes())
}

// current returns the record of that key as the batch has left it so far, and its sort_order.
func (w *batchWriter) current(c *collection, key []byte) (appliance.Row, string) {
	if order, ok := w.moved[c.number][string(key)]; ok {
		return c.row(w.rows[c.number].Get([]byte(order))), order
	}
	row, order := find(w.tx, c, key)
	return row, string(order)
}

// reindex notes how the indexes change when old, under its sort_order, becomes row.
func (w *batchWriter) reindex(c *collection, old appliance.Row, oldOrder string, row appliance.Row, order string) {
	for _, x := range c.indexes {
		var before, after [2]uint64
		nBefore, nAfter := 0, 0
		if !old.IsZero() {
			x.terms(old, func(term uint64) { before[nBefore] = term; nBefore++ })
		}
		x.terms(row, func(term uint64) { after[nAfter] = term; nAfter++ })
		if oldOrder == order && before == after && nBefore == nAfter {
			continue
		}
		// Removals first: what is still there is put again.
		for _, term := range before[:nBefore] {
			w.change(x, term, oldOrder, true)
		}
		for _, term := range after[:nAfter] {
			w.change(x, term, order, false)
		}
	}
}

func (w *batchWriter) change(x *index, term uint64, order string, remove bool) {
	size := termSize + len(order)
	if cap(w.arena)-len(w.arena) < size {
		w.arena = make([]byte, 0, max(size, 256<<10))
	}
	start := len(w.arena)
	w.arena = binary.BigEndian.AppendUint64(w.arena, term)
	w.arena = append(w.arena, order...)
	w.changes[x] = append(w.changes[x], indexChange{term: term, key: w.arena[start:len(w.arena):len(w.arena)], remove: remove})
}

// applyChanges makes the changes of an index in the order of their keys. The last change of a key counts.
func (w *batchWriter) applyChanges(x *index, changes []indexChange) error {
	slices.SortStableFunc(changes, func(a, b indexChange) int {
		switch {
		case a.term < b.term:
			return -1
		case a.term > b.term:
			return 1
		}
		return bytes.Compare(a.key, b.key)
	})
	bucket := w.tx.Bucket(x.bucket)
	bucket.FillPercent = x.fill
	for i, change := range changes {
		if i+1 < len(changes) && bytes.Equal(changes[i+1].key, change.key) {
			continue
		}
		var err error
		if change.remove {
			err = bucket.Delete(change.key)
		} else {
			err = bucket.Put(change.key, nil)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
