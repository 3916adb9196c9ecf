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
		return index.Written{}, unavailable("write a batch", errors.New("it was recreated during the operation"))
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
		err = errors.Join(err, r.view(r.loadDictionary)) // the transaction with the new entries was rolled back
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
		// This goroutine still holds the token of writing, so the view sees the batch just committed.
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

// update is bbolt's Update, but begins its transaction with begin.
func (r *Store) update(fn func(tx *bbolt.Tx) error) error {
	tx, err := r.begin(true)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit
	if err := fn(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// checkRoom returns an error if less than MinFree is free on the disk, which the journal shares.
func (r *Store) checkRoom() error {
	if r.minFree == 0 {
		return nil
	}
	room, err := disk.FreeSpace(r.db.Path())
	if err == nil && room.Free < r.minFree {
		err = fmt.Errorf("%d bytes are free, but %d are reserved for the journal", room.Free, r.minFree)
	}
	if err != nil {
		return unavailable("write a batch", err)
	}
	return nil
}

// errUnchanged rolls back a batch without changes, which followers write often, so that it costs no disk write.
var errUnchanged = errors.New("the batch changes nothing")

// batchWriter writes one batch in one transaction. It writes rows at once, in the order of the batch, so that each row
// sees the effects of the earlier ones. It gathers changes of postings, and applies them at the end in key order, which
// touches each of their pages once.
type batchWriter struct {
	r       *Store
	tx      *bbolt.Tx
	written index.Written
	counts  *deltas

	packer *index.Packer // the store's packer, or a fork while rows are prepared

	rows        [2]*bbolt.Bucket     // by collection
	oldest      [2][]byte            // by collection: the first sort_order before the batch
	newest      [2][]byte            // by collection: the last sort_order before the batch
	quarantined *bbolt.Bucket        // the quarantine; see unverified.go
	moved       [2]map[string]string // by collection: the sort_order of each row that this batch wrote, by key
	left        [2]map[string]bool   // by collection: sort_orders that this batch has vacated and not reused
	finders     [2]*finder           // by collection
	changes     map[*postings][]postingChange
	arena       []byte // memory for posting keys

	before, after []uint64 // the terms of a row before and after its change; see repost

	tableOrders   map[*index.Type]map[string]string // the row that holds each sort_order; see orders
	changedTables map[*index.Type]bool
	routesChanged bool
	texts         int  // number of dictionary texts before the batch
	learned       bool // the batch has added a sample
	logged        []loggedChange
}

func newBatchWriter(r *Store, tx *bbolt.Tx) *batchWriter {
	w := &batchWriter{
		r: r, tx: tx, packer: r.packer, texts: len(r.packer.Texts(0)), counts: newDeltas(),
		quarantined: tx.Bucket(bucketUnverified), changes: make(map[*postings][]postingChange),
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

// ends returns copies of the first and the last key of a bucket.
func ends(b *bbolt.Bucket) (first, last []byte) {
	first, _ = b.Cursor().First()
	last, _ = b.Cursor().Last()
	return bytes.Clone(first), bytes.Clone(last)
}

// The fill percentages for page splits. Rows arrive mostly in order, at either end of their bucket, so free room in
// their pages would stay unused; the same is true for blocks (see generations.go). A row in the middle is late or has
// grown, and similar rows are likely to follow near it. If a full page split off only its excess, each of those rows
// would begin a new page.
const (
	fillOrdered = 1.0
	fillAmong   = 0.8
	fillBlocks  = 1.0
)

// write writes the batch into the transaction. It returns early when ctx ends, and then the caller rolls back.
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
	if err := w.logChanges(); err != nil {
		return err
	}
	return put(w.tx, bucketMeta, keyUpdated, binary.BigEndian.AppendUint64(nil, uint64(w.r.now().UnixNano())))
}

// applyGathered applies the gathered changes of postings, dictionary and counts.
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

// writeRow upserts a row, and deletes the quarantine entry of its key.
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

// lookUp reports which rows certainly did not exist before the batch. It searches in the order of the terms, so that
// each page of postings is read once, while it is in the cache.
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

// upsert inserts or updates a row. It returns the counter in w.written that the caller has to increment.
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
	return nil, appliance.Errorf(appliance.CodeInvalidField, "%s rows are not stored separately", row.Type().Name)
}

var errEmptyRow = appliance.Errorf(appliance.CodeInvalidField, "a batch has an empty row")

// upsertRow is upsert for a row of a collection. If it refuses the row, it has changed nothing. p is the prepared form
// of a row that did not exist before the batch, and nil for other rows.
func (w *batchWriter) upsertRow(c *collection, row index.Row, p *prepared) (count *int, err error) {
	key := p.keyOf(c, row)
	old, kept := w.current(c, key, p != nil)
	order, _ := row.Text(c.order)
	settled, err := settleOrder(order, kept, string(key), func(order string) bool {
		return w.rows[c.number].Get([]byte(order)) != nil
	})
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
	w.noteChange(c, string(key), old, row, settled)
	return count, w.replace(c, string(key), old, kept, row, settled, p)
}

// remove deletes the row with the given key from a collection, and reports whether it existed.
func (w *batchWriter) remove(c *collection, key []byte) (removed bool, err error) {
	old, kept := w.current(c, key, false)
	if old.IsZero() {
		return false, nil
	}
	return true, w.replace(c, string(key), old, kept, index.Row{}, "", nil)
}

// removeRow deletes the row with the given name, and its quarantine entry.
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

// replace replaces old, stored under kept, by row, stored under order. A zero old means an insert, a zero row a
// deletion.
func (w *batchWriter) replace(c *collection, key string, old index.Row, kept string, row index.Row, order string,
	p *prepared) error {
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

// current returns the row with the given key and its sort_order, as of this point of the batch.
func (w *batchWriter) current(c *collection, key []byte, isNew bool) (index.Row, string) {
	if order, ok := w.moved[c.number][string(key)]; ok {
		return c.row(w.r.packer, w.rows[c.number].Cursor(), []byte(order)), order
	}
	if isNew {
		return index.Row{}, ""
	}
	if w.finders[c.number] == nil {
		// The postings by hash do not change before the end of the batch.
		w.finders[c.number] = newFinder(w.tx, w.r.packer, c, w.left[c.number])
	}
	row, order := w.finders[c.number].find(key, &meter{ctx: context.Background()})
	return row, string(order)
}
