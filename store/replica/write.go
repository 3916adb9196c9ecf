package replica

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"

	"go.etcd.io/bbolt"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/store/disk"
)

// Write implements index.Index.
func (r *Store) Write(ctx context.Context, b index.Batch) (written index.Written, err error) {
	select {
	case r.writing <- struct{}{}:
		defer func() { <-r.writing }()
	case <-ctx.Done():
		return index.Written{}, timeoutError(ctx.Err())
	}
	if b.Index != "" && b.Index != r.id {
		return index.Written{}, unavailable("write a batch", errors.New("it was made anew meanwhile"))
	}
	if err := r.checkRoom(); err != nil {
		return index.Written{}, err
	}
	defer r.survive(debug.SetPanicOnFault(true), &err)
	var w *batchWriter
	err = r.update(func(tx *bbolt.Tx) error {
		w = newBatchWriter(r, tx)
		return w.write(ctx, b)
	})
	if err != nil && w.hasLearned() {
		err = errors.Join(err, r.view(r.loadDictionary)) // what was learned is not on disk
	}
	if errors.Is(err, errUnchanged) {
		return w.written, nil
	}
	if err != nil {
		var domain *appliance.Error
		if errors.As(err, &domain) {
			return index.Written{}, err
		}
		return index.Written{}, unavailable("write a batch", err)
	}
	if w.routesChanged || len(w.changedTables) > 0 {
		// The writer's turn is still ours, so this is what was just committed.
		err = r.view(func(tx *bbolt.Tx) error {
			r.tables.Store(r.tables.Load().reload(tx, w.changedTables, w.routesChanged))
			return nil
		})
	}
	if err != nil {
		return w.written, unavailable("load the tables", err)
	}
	return w.written, nil
}

// update is that of bbolt, from begin.
func (r *Store) update(fn func(tx *bbolt.Tx) error) error {
	tx, err := r.begin(true)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // in vain once it is committed
	if err := fn(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// checkRoom refuses to write where the journal's disk would run short of room.
func (r *Store) checkRoom() error {
	if r.minFree == 0 {
		return nil
	}
	room, err := disk.Look(r.db.Path())
	if err == nil && room.Free < r.minFree {
		err = fmt.Errorf("%d bytes are free, and %d are left for the journal", room.Free, r.minFree)
	}
	if err != nil {
		return unavailable("write a batch", err)
	}
	return nil
}

// errUnchanged rolls back a batch that changes nothing, so that it costs the disk nothing: followers write such often.
var errUnchanged = errors.New("the batch changes nothing")

// batchWriter writes one batch in one transaction. Rows go to their buckets at once, in the order of the batch, so that
// each sees what those before it did; changes of postings are gathered and made at the end in the order of their keys,
// which touches each page of them once.
type batchWriter struct {
	r       *Store
	tx      *bbolt.Tx
	written index.Written
	counts  *deltas

	packer *index.Packer // the store's, or a fork while rows are prepared

	rows    [2]*bbolt.Bucket     // by collection
	oldest  [2][]byte            // by collection: the first sort_order before the batch
	newest  [2][]byte            // by collection: the last one
	apart   *bbolt.Bucket        // of what is kept apart
	moved   [2]map[string]string // by collection: sort_orders by key of rows that this batch has put or moved
	left    [2]map[string]bool   // by collection: sort_orders of rows that this batch has moved or removed, and put no other under
	finders [2]*finder           // by collection
	changes map[*postings][]postingChange
	arena   []byte // memory for keys of postings

	before, after []uint64 // terms of the row that is changed; see repost

	tableOrders   map[*index.Type]map[string]string // who holds each sort_order; see orders
	changedTables map[*index.Type]bool
	routesChanged bool
	texts         int  // of the dictionary, before
	learned       bool // there is a new sample
}

func newBatchWriter(r *Store, tx *bbolt.Tx) *batchWriter {
	w := &batchWriter{
		r: r, tx: tx, packer: r.packer, texts: len(r.packer.Texts(0)), counts: newDeltas(), apart: tx.Bucket(bucketUnverified), changes: make(map[*postings][]postingChange),
		tableOrders: make(map[*index.Type]map[string]string), changedTables: make(map[*index.Type]bool),
	}
	for i, c := range collections {
		w.rows[i] = tx.Bucket(c.rows)
		w.rows[i].FillPercent = fillOrdered
		w.oldest[i], w.newest[i] = ends(w.rows[i])
		w.moved[i], w.left[i] = make(map[string]string), make(map[string]bool)
	}
	return w
}

// ends returns the first and the last key of a bucket, as copies.
func ends(b *bbolt.Bucket) (first, last []byte) {
	first, _ = b.Cursor().First()
	last, _ = b.Cursor().Last()
	return bytes.Clone(first), bytes.Clone(last)
}

// How full pages are left when they split: rows come mostly in order, at either end, so that what is left free stays free, and blocks do in
// laps. A row among others, which has come late or has grown, has others like it near by: of a full page only what is too much would
// be taken for a page of its own, which each of them would begin.
const (
	fillOrdered = 1.0
	fillAmong   = 0.8
	fillBlocks  = 1.0
)

// write ends early with ctx; nothing of the batch is written then.
func (w *batchWriter) write(ctx context.Context, b index.Batch) error {
	isNew := w.lookUp(b.Rows)
	if err := w.learn(b.Rows, isNew); err != nil {
		return err
	}
	if err := w.writeRows(ctx, b.Rows, isNew); err != nil {
		return err
	}
	for _, id := range b.Withdrawn {
		if err := w.withdraw(id); err != nil {
			return err
		}
	}
	for _, id := range b.Removed {
		if err := w.removeRow(id); err != nil {
			return err
		}
	}
	for _, u := range b.Unverified {
		if err := w.keepApart(u); err != nil {
			return err
		}
	}
	for name, value := range b.Positions {
		if err := w.position(name, value); err != nil {
			return err
		}
	}
	switch {
	case w.written.Inserted+w.written.Updated+w.written.Removed > 0:
	case len(b.Positions) == 0:
		return errUnchanged
	default:
		return nil
	}
	if err := w.applyGathered(); err != nil {
		return err
	}
	return put(w.tx, bucketMeta, keyUpdated, binary.BigEndian.AppendUint64(nil, uint64(w.r.now().UnixNano())))
}

// applyGathered makes the changes of postings and counts that were gathered.
func (w *batchWriter) applyGathered() (err error) {
	if err := w.applyAllChanges(); err != nil {
		return err
	}
	if err := w.keepDictionary(); err != nil {
		return err
	}
	w.routesChanged, err = w.counts.write(w.tx)
	return err
}

func (w *batchWriter) writeRows(ctx context.Context, rows []index.Row, isNew []bool) error {
	p := newPreparer(w.r.packer, rows, isNew)
	defer p.end()
	w.packer = p.own
	defer func() { w.packer = w.r.packer }()
	for i, row := range rows {
		if i%askEvery == 0 && ctx.Err() != nil {
			return timeoutError(ctx.Err())
		}
		if err := w.writeRow(row, p.at(i)); err != nil {
			return err
		}
	}
	return nil
}

// writeRow upserts a row and ends what is kept apart of its key.
func (w *batchWriter) writeRow(row index.Row, p *prepared) error {
	count, err := w.upsert(row, p)
	if err != nil {
		return err
	}
	ended, err := w.endApart(row)
	if ended && count == &w.written.Unchanged {
		count = &w.written.Updated
	}
	*count++
	return err
}

func (w *batchWriter) position(name, value string) error {
	if value == "" {
		return w.tx.Bucket(bucketPositions).Delete([]byte(name))
	}
	return put(w.tx, bucketPositions, []byte(name), []byte(value))
}

// lookUp tells which rows were surely not there before the batch. It looks in the order of the terms, so that each page of
// postings is searched while it is at hand.
func (w *batchWriter) lookUp(rows []index.Row) (isNew []bool) {
	type wanted struct {
		term uint64
		row  int
	}
	var by [2][]wanted
	for i, row := range rows {
		if c := collectionOf(row.Type()); c != nil {
			c.hash.terms(row, func(term uint64) { by[c.number] = append(by[c.number], wanted{term, i}) })
		}
	}
	isNew = make([]bool, len(rows))
	for _, c := range collections {
		slices.SortFunc(by[c.number], func(a, b wanted) int { return cmp.Compare(a.term, b.term) })
		main, recent := newBlockCursor(w.tx.Bucket(c.hash.bucket)), newBlockCursor(w.tx.Bucket(c.hash.recent))
		var buf [termSize]byte
		for _, r := range by[c.number] {
			term := appendTerm(buf[:0], r.term)
			isNew[r.row] = !bytes.HasPrefix(main.seek(term), term) && !bytes.HasPrefix(recent.seek(term), term)
		}
	}
	return isNew
}

// upsert returns which of the batch's counts what it did belongs to.
func (w *batchWriter) upsert(row index.Row, p *prepared) (count *int, err error) {
	if row.IsZero() {
		return nil, errEmptyRow
	}
	if c := collectionOf(row.Type()); c != nil {
		return w.upsertRow(c, row, p)
	}
	if slices.Contains(index.TableTypes, row.Type()) {
		return w.upsertTable(row)
	}
	return nil, appliance.Errorf(appliance.CodeInvalidField, "%s has no rows of its own", row.Type().Name)
}

var errEmptyRow = appliance.Errorf(appliance.CodeInvalidField, "a batch has an empty row")

// upsertRow is upsert for a row of a collection. A row that it refuses has changed nothing. p is what was prepared of one that was not there
// before the batch, nil of others.
func (w *batchWriter) upsertRow(c *collection, row index.Row, p *prepared) (count *int, err error) {
	key := p.keyOf(c, row)
	old, kept := w.current(c, key, p != nil)
	order, _ := row.Text(c.order)
	settled, err := settleOrder(order, kept, string(key), func(order string) bool { return w.rows[c.number].Get([]byte(order)) != nil })
	if err != nil {
		return nil, err
	}
	if settled != order {
		if row, err = row.WithText(c.order, settled); err != nil {
			return nil, err
		}
		p = nil
	}
	switch {
	case old.IsZero():
		count = &w.written.Inserted
	case bytes.Equal(old.Bytes(), row.Bytes()):
		return &w.written.Unchanged, nil
	default:
		count = &w.written.Updated
	}
	return count, w.replace(c, string(key), old, kept, row, settled, p)
}

// remove deletes the row of that key from a collection, and reports whether there was one.
func (w *batchWriter) remove(c *collection, key []byte) (removed bool, err error) {
	old, kept := w.current(c, key, false)
	if old.IsZero() {
		return false, nil
	}
	return true, w.replace(c, string(key), old, kept, index.Row{}, "", nil)
}

// removeRow deletes the row of that name, and the row that is kept apart under it.
func (w *batchWriter) removeRow(id index.RowID) (err error) {
	removed := false
	if c := collectionOf(id.Type); c != nil {
		if err := w.withdraw(id); err != nil {
			return err
		}
		removed, err = w.remove(c, []byte(id.Key))
	} else {
		removed, err = w.removeFromTable(id)
	}
	if removed {
		w.written.Removed++
	}
	return err
}

// replace puts row, under its sort_order, in the place of old under its own. The zero Row on either side is none.
func (w *batchWriter) replace(c *collection, key string, old index.Row, kept string, row index.Row, order string, p *prepared) error {
	w.repost(c, old, kept, row, order, p)
	if !old.IsZero() {
		w.counts.add(c, old, -1)
		if kept != order {
			w.left[c.number][kept] = true
			if err := w.rows[c.number].Delete([]byte(kept)); err != nil {
				return err
			}
		}
	}
	if row.IsZero() {
		delete(w.moved[c.number], key)
		return nil
	}
	w.counts.add(c, row, 1)
	w.moved[c.number][key] = order
	delete(w.left[c.number], order)
	if order > string(w.oldest[c.number]) && order <= string(w.newest[c.number]) {
		w.rows[c.number].FillPercent = fillAmong
	}
	if p != nil {
		return w.rows[c.number].Put([]byte(order), p.packed)
	}
	packed := w.packer.Pack(w.room(len(row.Bytes())+sealSize), row)
	return w.rows[c.number].Put([]byte(order), seal(c.sum, []byte(order), packed))
}

// current returns the row of that key as the batch has left it so far, and its sort_order.
func (w *batchWriter) current(c *collection, key []byte, isNew bool) (index.Row, string) {
	if order, ok := w.moved[c.number][string(key)]; ok {
		return c.row(w.r.packer, w.rows[c.number].Cursor(), []byte(order)), order
	}
	if isNew {
		return index.Row{}, ""
	}
	if w.finders[c.number] == nil {
		w.finders[c.number] = newFinder(w.tx, w.r.packer, c, w.left[c.number]) // these postings do not change before the end
	}
	row, order := w.finders[c.number].find(key, &meter{ctx: context.Background()})
	return row, string(order)
}
