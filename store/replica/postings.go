package replica

import (
	"bytes"
	"cmp"
	"errors"
	"math"
	"runtime/debug"
	"slices"
	"sync"

	"go.etcd.io/bbolt"

	"github.com/attestd/attestd/appliance/index"
)

// postingChange puts a key into postings, or removes it.
type postingChange struct {
	key    []byte // the term and the sort_order
	number uint32 // of the change in the batch: the last change of a key counts
	remove bool
}

// compare orders changes by their keys, and changes of one key as they were made.
func (a postingChange) compare(b postingChange) int {
	return cmp.Or(bytes.Compare(a.key, b.key), cmp.Compare(a.number, b.number))
}

// repost notes how the postings change when old, under its sort_order, becomes row. The zero Row is in none.
func (w *batchWriter) repost(c *collection, old index.Row, oldOrder string, row index.Row, order string) {
	for _, x := range c.postings {
		w.before, w.after = w.before[:0], w.after[:0]
		if !old.IsZero() {
			x.terms(old, func(term uint64) { w.before = append(w.before, term) })
		}
		if !row.IsZero() {
			x.terms(row, func(term uint64) { w.after = append(w.after, term) })
		}
		if oldOrder == order && slices.Equal(w.before, w.after) {
			continue
		}
		// Removals first: what is still there is put again.
		for _, term := range w.before {
			w.change(x, term, oldOrder, true)
		}
		for _, term := range w.after {
			w.change(x, term, order, false)
		}
	}
}

func (w *batchWriter) change(x *postings, term uint64, order string, remove bool) {
	key := append(appendTerm(w.room(termSize+len(order)), term), order...)
	changes := w.changes[x]
	w.changes[x] = append(changes, postingChange{key: key, number: uint32(len(changes)), remove: remove})
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

// applyAllChanges makes the changes of all postings. What becomes of each is worked out beside the others; it is put into their
// buckets one after the other, for so bbolt wants it.
func (w *batchWriter) applyAllChanges() error {
	var all []*rewriting
	for x, changes := range w.changes {
		all = append(all, w.rewriting(x, changes))
	}
	var working sync.WaitGroup
	for _, rw := range all {
		working.Go(func() {
			defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
			defer func() { rw.panicked = recover() }()
			rw.plan()
		})
	}
	working.Wait()
	for _, rw := range all {
		if rw.panicked != nil {
			panic(rw.panicked)
		}
		if err := rw.apply(w.tx); err != nil {
			return err
		}
	}
	return nil
}

// rewriting is how the buckets of postings change by a batch.
type rewriting struct {
	x                *postings
	main, recent     *bbolt.Bucket // recent may be nil
	changes          []postingChange
	recentKeys       int
	largeBatch       int
	merged           []byte // where the last stretch has ended
	toMain, toRecent edit
	panicked         any
}

// edit is what changes in a bucket of blocks.
type edit struct {
	drop [][]byte // blocks
	put  []packed
	grew int // keys
}

// packed is a block under its first key.
type packed struct{ first, sealed []byte }

func (w *batchWriter) rewriting(x *postings, changes []postingChange) *rewriting {
	rw := &rewriting{x: x, main: w.tx.Bucket(x.bucket), changes: changes, recentKeys: w.r.recentKeys, largeBatch: w.r.largeBatch}
	rw.main.FillPercent = fillBlocks
	if x.recent != nil {
		rw.recent = w.tx.Bucket(x.recent)
		rw.recent.FillPercent = fillBlocks
		rw.merged = w.tx.Bucket(bucketMeta).Get(mergedKey(x))
	}
	return rw
}

// mergedKey is the key in meta of where the last stretch of postings has ended.
func mergedKey(x *postings) []byte { return append([]byte("merged "), x.bucket...) }

// largeBatch is how many times the keys of a batch postings may have so that they go to the main bucket straight: that
// touches all of its blocks, but no key is put twice.
const largeBatch = 16

// plan works out what changes. It only reads.
func (rw *rewriting) plan() {
	changes := rw.changes
	slices.SortFunc(changes, postingChange.compare)
	last := changes[:0]
	for i, change := range changes {
		if i+1 == len(changes) || !bytes.Equal(changes[i+1].key, change.key) {
			last = append(last, change)
		}
	}
	switch {
	case rw.recent == nil:
		rw.toMain.rewrite(rw.main, last, nil)
	case rw.main.Sequence() <= uint64(rw.largeBatch*len(last)):
		rw.toMain.rewrite(rw.main, last, nil)
		rw.toRecent.rewrite(rw.recent, removals(last), nil)
	default:
		moved, left := rw.stretch(len(last))
		rw.toMain.rewrite(rw.main, mergeChanges(moved, removals(last)), nil)
		rw.toRecent.rewrite(rw.recent, last, left)
	}
}

func removals(changes []postingChange) (of []postingChange) {
	for _, change := range changes {
		if change.remove {
			of = append(of, change)
		}
	}
	return of
}

// mergeChanges returns changes followed by later ones, in the order of their keys, the last of each.
func mergeChanges(changes, later []postingChange) []postingChange {
	if len(later) == 0 {
		return changes
	}
	merged := make([]postingChange, 0, len(changes)+len(later))
	for _, change := range later {
		at, _ := slices.BinarySearchFunc(changes, change.key, func(c postingChange, key []byte) int { return bytes.Compare(c.key, key) })
		merged = append(merged, changes[:at]...)
		changes = changes[at:]
		if len(changes) > 0 && bytes.Equal(changes[0].key, change.key) {
			changes = changes[1:]
		}
		merged = append(merged, change)
	}
	return append(merged, changes...)
}

const (
	minRecent   = 32_000 // keys that postings may have in their recent bucket before any are moved
	recentShare = 64     // all keys for each of those that may be there
	mostMoved   = 2      // keys that are moved for each that comes
)

// stretch takes keys out of the recent bucket of postings, so that they go to the main one. The keys of a batch lie anywhere, so
// that each would rewrite a block of its own of a large index. They gather in the small bucket instead, and with each batch as many
// leave it as came, all from one stretch of the key space, so that they share blocks; the next batch goes on with the next stretch.
// For M keys in all and n in a batch some M·n/R of the main keys are rewritten where R are recent, and of those all, but no more than
// the n blocks that have them. Where that is all, R = √(M·n) is least; where it is few, R = M/recentShare keeps the cost of a key from
// growing with M. What is beyond R, since the batches before had more keys, goes bit by bit: a batch rewrites at most
// mostMoved·recentShare·n of the main keys, whatever came before it.
//
// left are the blocks that it takes.
//
// A bucket's sequence counts its keys.
func (rw *rewriting) stretch(coming int) (moved []postingChange, left map[string]bool) {
	have, all := rw.recent.Sequence(), rw.main.Sequence()
	keep := max(uint64(rw.recentKeys), uint64(math.Sqrt(float64(all)*float64(coming))), all/recentShare)
	if have+uint64(coming) <= keep || have == 0 {
		return nil, nil
	}
	n := int(min(have, have+uint64(coming)-keep, mostMoved*uint64(coming)))
	left = make(map[string]bool)
	cursor := newBlockCursor(rw.recent)
	cursor.enter(cursor.cursor.Seek(rw.merged))
	var around []postingChange // from the beginning on, after the end
	for len(moved)+len(around) < n {
		if cursor.first == nil {
			around, moved = moved, nil
			if cursor.start() == nil {
				break
			}
		}
		if left[string(cursor.first)] {
			break
		}
		left[string(cursor.first)] = true
		for i := range cursor.block.keys {
			moved = append(moved, postingChange{key: bytes.Clone(cursor.block.at(i))})
		}
		rw.merged = moved[len(moved)-1].key
		cursor.enter(cursor.cursor.Next())
	}
	rw.toRecent.grew -= len(moved) + len(around)
	return append(moved, around...), left
}

// rewrite works out what the blocks of a bucket become by changes, which are in the order of their keys. Of the blocks that left
// has, nothing stays.
func (e *edit) rewrite(bucket *bbolt.Bucket, changes []postingChange, left map[string]bool) {
	for first := range left {
		e.drop = append(e.drop, []byte(first))
	}
	cursor := bucket.Cursor()
	to := blockWriter{to: e, current: new(packer), previous: new(packer)}
	for len(changes) > 0 {
		first, sealed := seekDown(cursor, changes[0].key)
		if first == nil {
			first, sealed = cursor.First()
		}
		to.begin()
		for {
			var next, nextSealed []byte
			if first != nil {
				next, nextSealed = cursor.Next()
			}
			end := 0
			for end < len(changes) && (next == nil || bytes.Compare(changes[end].key, next) < 0) {
				end++
			}
			if end == 0 {
				break // no change is of this block
			}
			if to.block.keys = 0; first != nil {
				e.drop = append(e.drop, first)
				if !left[string(first)] {
					to.block.read(sealed)
				}
			}
			to.merge(changes[:end])
			if changes = changes[end:]; next == nil {
				break
			}
			first, sealed = next, nextSealed
		}
		to.end()
	}
}

// blockWriter writes neighbouring blocks anew.
type blockWriter struct {
	to                *edit
	block             block // that is merged
	current, previous *packer
	appended          bool // the last changes came behind all keys
}

func (w *blockWriter) begin() {
	w.current.reset()
	w.previous.reset()
}

// merge goes on with the keys of the block and changes of them.
func (w *blockWriter) merge(changes []postingChange) {
	at := 0
	var key []byte
	move := func() {
		if key = nil; at < w.block.keys {
			key = w.block.at(at)
		}
		at++
	}
	move()
	w.appended = false
	for i, change := range changes {
		for key != nil && bytes.Compare(key, change.key) < 0 {
			w.add(key)
			move()
		}
		if i == 0 {
			w.appended = key == nil
		}
		if key != nil && bytes.Equal(key, change.key) {
			w.to.grew--
			move()
		}
		if !change.remove {
			w.to.grew++
			w.add(change.key)
		}
	}
	for key != nil {
		w.add(key)
		move()
	}
}

func (w *blockWriter) add(key []byte) {
	if w.current.full() {
		w.write(w.previous)
		w.previous, w.current = w.current, w.previous
		w.current.reset()
	}
	w.current.add(key)
}

// end writes what is left: as two blocks of one size, where more keys will come between these.
func (w *blockWriter) end() {
	if all := len(w.previous.ends) + len(w.current.ends); !w.appended && len(w.previous.ends) > 0 && len(w.current.ends) < all/3 {
		both := [2]*packer{new(packer), new(packer)}
		both[0].reset()
		both[1].reset()
		for i := range all {
			if n := len(w.previous.ends); i < n {
				both[2*i/all].add(w.previous.key(i))
			} else {
				both[2*i/all].add(w.current.key(i - n))
			}
		}
		w.previous, w.current = both[0], both[1]
	}
	w.write(w.previous)
	w.write(w.current)
}

func (w *blockWriter) write(p *packer) {
	if len(p.ends) > 0 {
		w.to.put = append(w.to.put, packed{bytes.Clone(p.key(0)), p.pack()})
	}
}

// apply makes the changes.
func (rw *rewriting) apply(tx *bbolt.Tx) error {
	if err := rw.toMain.apply(rw.main); err != nil || rw.recent == nil {
		return err
	}
	return errors.Join(rw.toRecent.apply(rw.recent), tx.Bucket(bucketMeta).Put(mergedKey(rw.x), rw.merged))
}

func (e *edit) apply(bucket *bbolt.Bucket) error {
	stays := make(map[string]bool, len(e.put))
	for _, b := range e.put {
		stays[string(b.first)] = true
	}
	for _, first := range e.drop {
		if !stays[string(first)] {
			if err := bucket.Delete(first); err != nil {
				return err
			}
		}
	}
	for _, b := range e.put {
		if err := bucket.Put(b.first, b.sealed); err != nil {
			return err
		}
	}
	return bucket.SetSequence(uint64(int64(bucket.Sequence()) + int64(e.grew)))
}
