package replica

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"slices"
	"sync"

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

	rows    [2]*bbolt.Bucket     // by collection
	apart   *bbolt.Bucket        // of what is kept apart
	moved   [2]map[string]string // by collection: sort_orders by key of rows that this batch has put or moved
	changes map[*postings][]postingChange
	arena   []byte // memory for keys of postings

	tableOrders   map[*index.Type]map[string]string // who holds each sort_order; see orders
	changedTables map[*index.Type]bool
	routesChanged bool
}

// postingChange puts a key into postings, or removes it.
type postingChange struct {
	term   uint64
	key    []byte
	number uint32 // of the change in the batch: the last change of a key counts
	remove bool
}

// compare orders changes by their keys, and changes of one key as they were made.
func (a postingChange) compare(b postingChange) int {
	if c := cmp.Compare(a.term, b.term); c != 0 {
		return c
	}
	return cmp.Or(bytes.Compare(a.key, b.key), cmp.Compare(a.number, b.number))
}

func newBatchWriter(r *Store, tx *bbolt.Tx) *batchWriter {
	w := &batchWriter{
		r: r, tx: tx, counts: newDeltas(), apart: tx.Bucket(bucketUnverified), changes: make(map[*postings][]postingChange),
		tableOrders: make(map[*index.Type]map[string]string), changedTables: make(map[*index.Type]bool),
	}
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

// write ends early with ctx; nothing of the batch is written then.
func (w *batchWriter) write(ctx context.Context, b index.Batch) error {
	isNew := w.lookUp(b.Rows)
	for i, row := range b.Rows {
		if i%askEvery == 0 && ctx.Err() != nil {
			return timeoutError(ctx.Err())
		}
		if err := w.writeRow(row, isNew[i]); err != nil {
			return err
		}
	}
	for _, id := range b.Withdrawn {
		if err := w.withdraw(id); err != nil {
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
	case w.written.Inserted+w.written.Updated > 0:
	case len(b.Positions) == 0:
		return errUnchanged
	default:
		return nil
	}
	if err := w.applyGathered(); err != nil {
		return err
	}
	return w.tx.Bucket(bucketMeta).Put(keyUpdated, seal(binary.BigEndian.AppendUint64(nil, uint64(w.r.now().UnixNano()))))
}

// applyGathered makes the changes of postings and counts that were gathered.
func (w *batchWriter) applyGathered() (err error) {
	if err := w.applyAllChanges(); err != nil {
		return err
	}
	w.routesChanged, err = w.counts.write(w.tx.Bucket(bucketStats))
	return err
}

// writeRow upserts a row and ends what is kept apart of its key.
func (w *batchWriter) writeRow(row index.Row, isNew bool) error {
	count, err := w.upsert(row, isNew)
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
	positions := w.tx.Bucket(bucketPositions)
	if value == "" {
		return positions.Delete([]byte(name))
	}
	return positions.Put([]byte(name), seal([]byte(value)))
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
		main, recent := w.tx.Bucket(c.hash.bucket).Cursor(), w.tx.Bucket(c.hash.recent).Cursor()
		var key [termSize]byte
		for _, r := range by[c.number] {
			binary.BigEndian.PutUint64(key[:], r.term)
			isNew[r.row] = !hasPrefix(main, key[:]) && !hasPrefix(recent, key[:])
		}
	}
	return isNew
}

func hasPrefix(c *bbolt.Cursor, prefix []byte) bool {
	k, _ := c.Seek(prefix)
	return bytes.HasPrefix(k, prefix)
}

// upsert returns which of the batch's counts what it did belongs to.
func (w *batchWriter) upsert(row index.Row, isNew bool) (count *int, err error) {
	if row.IsZero() {
		return nil, errEmptyRow
	}
	if c := collectionOf(row.Type()); c != nil {
		return w.upsertRow(c, row, isNew)
	}
	if slices.Contains(index.TableTypes, row.Type()) {
		return w.upsertTable(row)
	}
	return nil, appliance.Errorf(appliance.CodeInvalidField, "%s has no rows of its own", row.Type().Name)
}

var errEmptyRow = appliance.Errorf(appliance.CodeInvalidField, "a batch has an empty row")

// upsertRow is upsert for a row of a collection. A row that it refuses has changed nothing.
func (w *batchWriter) upsertRow(c *collection, row index.Row, isNew bool) (count *int, err error) {
	key := row.AppendKey(make([]byte, 0, 96), c.t.Key)
	old, kept := w.current(c, key, isNew)
	order, _ := row.Text(c.order)
	settled, err := settleOrder(order, kept, string(key), func(order string) bool { return w.rows[c.number].Get([]byte(order)) != nil })
	if err != nil {
		return nil, err
	}
	if settled != order {
		if row, err = row.WithText(c.order, settled); err != nil {
			return nil, err
		}
	}
	switch {
	case old.IsZero():
		count = &w.written.Inserted
	case bytes.Equal(old.Bytes(), row.Bytes()):
		return &w.written.Unchanged, nil
	default:
		count = &w.written.Updated
	}
	return count, w.replace(c, string(key), old, kept, row, settled)
}

// remove takes the row of that key out of a collection.
func (w *batchWriter) remove(c *collection, key []byte) error {
	old, kept := w.current(c, key, false)
	if old.IsZero() {
		return nil
	}
	return w.replace(c, string(key), old, kept, index.Row{}, "")
}

// replace puts row, under its sort_order, in the place of old under its own. The zero Row on either side is none.
func (w *batchWriter) replace(c *collection, key string, old index.Row, kept string, row index.Row, order string) error {
	w.repost(c, old, kept, row, order)
	if !old.IsZero() {
		w.counts.add(c, old, -1)
		if kept != order {
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
	return w.rows[c.number].Put([]byte(order), seal(row.Bytes()))
}

// current returns the row of that key as the batch has left it so far, and its sort_order.
func (w *batchWriter) current(c *collection, key []byte, isNew bool) (index.Row, string) {
	if order, ok := w.moved[c.number][string(key)]; ok {
		return c.row(w.rows[c.number].Get([]byte(order))), order
	}
	if isNew {
		return index.Row{}, ""
	}
	row, order := find(w.tx, c, key, &meter{ctx: context.Background()})
	return row, string(order)
}

// repost notes how the postings change when old, under its sort_order, becomes row. The zero Row is in none.
func (w *batchWriter) repost(c *collection, old index.Row, oldOrder string, row index.Row, order string) {
	for _, x := range c.postings {
		var before, after [2]uint64
		nBefore, nAfter := 0, 0
		if !old.IsZero() {
			x.terms(old, func(term uint64) { before[nBefore] = term; nBefore++ })
		}
		if !row.IsZero() {
			x.terms(row, func(term uint64) { after[nAfter] = term; nAfter++ })
		}
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

func (w *batchWriter) change(x *postings, term uint64, order string, remove bool) {
	key := w.room(termSize + len(order))
	key = append(binary.BigEndian.AppendUint64(key, term), order...)
	changes := w.changes[x]
	w.changes[x] = append(changes, postingChange{term: term, key: key, number: uint32(len(changes)), remove: remove})
}

// room returns an empty slice of that capacity. It lives as long as the batch.
func (w *batchWriter) room(size int) []byte {
	if cap(w.arena)-len(w.arena) < size {
		w.arena = make([]byte, 0, max(size, 256<<10))
	}
	start := len(w.arena)
	w.arena = w.arena[:start+size]
	return w.arena[start:start:len(w.arena)]
}

// applyAllChanges sorts the changes of some postings while it makes those of others. No goroutine outlives it.
func (w *batchWriter) applyAllChanges() error {
	var sorting sync.WaitGroup
	defer sorting.Wait()
	sorted := make(map[*postings]chan struct{})
	for x, changes := range w.changes {
		done := make(chan struct{})
		sorted[x] = done
		sorting.Go(func() {
			defer close(done)
			slices.SortFunc(changes, postingChange.compare)
		})
	}
	for x, done := range sorted {
		<-done
		if err := w.applyChanges(x, w.changes[x]); err != nil {
			return err
		}
	}
	return nil
}

// applyChanges makes the changes of postings, which are in the order of their keys.
func (w *batchWriter) applyChanges(x *postings, changes []postingChange) error {
	bucket := w.tx.Bucket(x.bucket)
	bucket.FillPercent = x.fill
	into, recent := bucket, bucket
	if x.recent != nil {
		recent = w.tx.Bucket(x.recent)
		recent.FillPercent = x.fill
	}
	if x.recent != nil && bucket.Sequence() > uint64(w.r.largeBatch*len(changes)) {
		into = recent
		if err := w.merge(x, bucket, recent, len(changes)); err != nil {
			return err
		}
	}
	puts := 0
	for i, change := range changes {
		if i+1 < len(changes) && changes[i+1].term == change.term && bytes.Equal(changes[i+1].key, change.key) {
			continue
		}
		var err error
		switch {
		case !change.remove:
			err = into.Put(change.key, nil)
			puts++
		case recent != bucket:
			err = errors.Join(recent.Delete(change.key), bucket.Delete(change.key))
		default:
			err = bucket.Delete(change.key)
		}
		if err != nil {
			return err
		}
	}
	if x.recent == nil {
		return nil
	}
	return into.SetSequence(into.Sequence() + uint64(puts))
}

// minRecent is how many keys postings may have in their recent bucket before any are moved.
const minRecent = 32_000

// largeBatch is how many times the keys of a batch postings may have so that they go to the main bucket straight: that
// touches all of its pages, but no key is put twice.
const largeBatch = 16

// merge moves keys of postings from their recent bucket to their main one. The keys of a batch lie anywhere, so that each would
// rewrite a page of its own of a large index. They gather in the small bucket instead, and with each batch as many leave it as
// came, all from one stretch of the key space, so that they share pages; the next batch goes on with the next stretch. For
// M keys in all and n in a batch about M·n/R + R keys are rewritten where R are recent, which is least at R = √(M·n).
// BenchmarkFollow, 100 transfers into 100,000, takes a fifth to two fifths longer without it; the more keys, the more it saves.
//
// It comes before the batch's own changes: until a transaction is committed bbolt keeps what was put into a page in one node,
// however many keys that are, and to take keys out of such a node is slow.
//
// A bucket's sequence counts its keys: of the recent bucket and of the main one never fewer than there are, so that zero
// means empty.
func (w *batchWriter) merge(x *postings, bucket, recent *bbolt.Bucket, changes int) error {
	have, all := recent.Sequence(), bucket.Sequence()
	keep := max(uint64(w.r.recentKeys), uint64(math.Sqrt(float64(all)*float64(changes))))
	if coming := have + uint64(changes); coming <= keep || have == 0 {
		return nil
	}
	moved, ended := w.stretch(x, recent, int(min(have, have+uint64(changes)-keep)))
	for _, key := range moved {
		if err := bucket.Put(key, nil); err != nil {
			return err
		}
		if err := recent.Delete(key); err != nil {
			return err
		}
	}
	if have -= uint64(len(moved)); ended {
		have = 0 // fewer were there than counted
	}
	return errors.Join(recent.SetSequence(have), bucket.SetSequence(all+uint64(len(moved))))
}

// stretch returns copies of the next n keys of a recent bucket, from where it ended the last time, round to the beginning.
// ended means that these are all.
func (w *batchWriter) stretch(x *postings, recent *bbolt.Bucket, n int) (keys [][]byte, ended bool) {
	meta, name := w.tx.Bucket(bucketMeta), append([]byte("merged "), x.bucket...)
	cursor := recent.Cursor()
	from := bytes.Clone(meta.Get(name))
	k, _ := cursor.Seek(from)
	wrapped := false
	for len(keys) < n {
		if k == nil {
			if wrapped {
				return keys, true
			}
			wrapped = true
			if k, _ = cursor.First(); k == nil {
				return keys, true
			}
		}
		if wrapped && bytes.Compare(k, from) >= 0 {
			return keys, true
		}
		keys = append(keys, append(w.room(len(k)), k...))
		k, _ = cursor.Next()
	}
	if err := meta.Put(name, keys[len(keys)-1]); err != nil {
		return nil, false // nothing is moved, and what failed fails the commit
	}
	return keys, false
}
