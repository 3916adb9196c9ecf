package replica

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math"
	"runtime"
	"slices"

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

// repost notes how the postings change when old, under its sort_order, becomes row, of which p was prepared. The zero Row is in none.
func (w *batchWriter) repost(c *collection, old index.Row, oldOrder string, row index.Row, order string, p *prepared) {
	for i, x := range c.postings {
		w.before, w.after = w.before[:0], w.after[:0]
		if !old.IsZero() {
			x.terms(old, func(term uint64) { w.before = append(w.before, term) })
		}
		switch {
		case p != nil:
			w.after = append(w.after, p.of(i)...)
		case !row.IsZero():
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
	inParallel(len(all), runtime.GOMAXPROCS(0), func(_, n int) { all[n].plan() })()
	for _, rw := range all {
		if err := rw.apply(); err != nil {
			return err
		}
	}
	return nil
}

// rewriting is how the buckets of postings change by a batch.
type rewriting struct {
	main, recent     *bbolt.Bucket // recent may be nil
	changes          []postingChange
	recentKeys       int
	largeBatch       int
	toMain, toRecent edit
}

// edit is what changes in a bucket of blocks.
type edit struct {
	drop [][]byte // blocks
	put  []packedBlock
	grew int // keys
}

// packedBlock is a block under its lap and first key.
type packedBlock struct{ name, sealed []byte }

func (w *batchWriter) rewriting(x *postings, changes []postingChange) *rewriting {
	rw := &rewriting{main: w.tx.Bucket(x.bucket), changes: changes, recentKeys: w.r.recentKeys, largeBatch: w.r.largeBatch}
	rw.main.FillPercent = fillBlocks
	if x.recent != nil {
		rw.recent = w.tx.Bucket(x.recent)
		rw.recent.FillPercent = fillBlocks
	}
	return rw
}

const (
	// largeBatch is how many times the keys of a batch postings may have so that they go to the main bucket straight: that
	// touches all of its blocks, but no key is put twice.
	largeBatch = 16
	// mostBlocks is how many times as many keys the recent bucket may have so that a batch touches most of its blocks.
	mostBlocks = 16
)

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
	large := uint64(rw.largeBatch * len(last))
	switch {
	case rw.main.Sequence() <= large:
		rw.toMain.rewriteAll(rw.main, last)
		if rw.recent != nil {
			rw.toRecent.rewrite(rw.recent, removals(last))
		}
	case rw.recent == nil:
		rw.toMain.rewrite(rw.main, last)
	default:
		moved, rest := rw.stretch(len(last))
		rw.toMain.sweep(rw.main, moved, rest, removals(last))
		for i := range moved {
			moved[i].remove = true
		}
		if last = mergeChanges(moved, last); rw.recent.Sequence() <= mostBlocks*large {
			rw.toRecent.rewriteAll(rw.recent, last)
		} else {
			rw.toRecent.rewrite(rw.recent, last)
		}
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

// stretch returns keys of the recent bucket that are to go to the main one. The keys of a batch lie anywhere, so
// that each would rewrite a block of its own of a large index. They gather in the small bucket instead, and with each batch as many
// leave it as came, all from one stretch of the key space, so that they share blocks; the next batch goes on with the next stretch,
// where the lap of the main bucket has come to. For M keys in all and n in a batch some M·n/R of the main keys are rewritten where R
// are recent, and of those all, but no more than the n blocks that have them. Where that is all, R = √(M·n) is least; where it is few,
// R = M/recentShare keeps the cost of a key from growing with M. What is beyond R, since the batches before had more keys, goes bit by
// bit: a batch rewrites at most mostMoved·recentShare·n of the main keys, whatever came before it.
//
// rest is how many keys behind the stretch end the lap, where no more are recent.
//
// A bucket's sequence counts its keys.
func (rw *rewriting) stretch(coming int) (moved []postingChange, rest int) {
	have, all := rw.recent.Sequence(), rw.main.Sequence()
	keep := max(uint64(rw.recentKeys), uint64(math.Sqrt(float64(all)*float64(coming))), all/recentShare)
	if have+uint64(coming) <= keep || have == 0 {
		return nil, 0
	}
	n := int(min(have, have+uint64(coming)-keep, mostMoved*uint64(coming)))
	moved = make([]postingChange, 0, n)
	var room []byte
	cursor := newBlockCursor(rw.recent)
	key := cursor.seek(lapEnd(rw.main))
	for ; key != nil && len(moved) < n; key = cursor.next() {
		if cap(room)-len(room) < len(key) {
			room = make([]byte, 0, max(len(key), 64<<10))
		}
		room = append(room, key...)
		moved = append(moved, postingChange{key: room[len(room)-len(key):]})
	}
	if key == nil {
		rest = mostMoved * recentShare * coming
	}
	return moved, rest
}

// lapEnd returns the key that the newest lap of a bucket has come to, nil where it has been all around.
func lapEnd(bucket *bbolt.Bucket) []byte {
	if l := newLaps(bucket); l.oldest != nil && l.newest() != binary.BigEndian.Uint32(l.oldest) {
		return l.oldest[lapSize:]
	}
	return nil
}

// rewrite works out what the blocks of a bucket become by changes, which are in the order of their keys.
func (e *edit) rewrite(bucket *bbolt.Bucket, changes []postingChange) {
	w := newBlockWriter(e, bucket)
	for len(changes) > 0 {
		w.begin(w.laps.lap)
		block, sealed := w.laps.seekDown(changes[0].key)
		if block == nil {
			block, sealed = w.laps.start()
		}
		changes = w.rewrite(block, sealed, changes, nil)
	}
}

// rewriteAll is rewrite where changes are everywhere: all blocks are of the next lap then.
func (e *edit) rewriteAll(bucket *bbolt.Bucket, changes []postingChange) {
	w := newBlockWriter(e, bucket)
	lap := w.laps.newest() + 1
	w.begin(func([]byte) uint32 { return lap })
	block, sealed := w.laps.start()
	w.rewrite(block, sealed, changes, func([]byte) bool { return true })
}

// sweep goes on with the lap of a bucket: it puts moved, which is a stretch from lapEnd on, and with it all that is there, and up to
// rest keys behind it. What is removed may be anywhere.
func (e *edit) sweep(bucket *bbolt.Bucket, moved []postingChange, rest int, removed []postingChange) {
	if len(moved) == 0 && rest == 0 {
		e.rewrite(bucket, removed)
		return
	}
	w := newBlockWriter(e, bucket)
	lap, last := w.laps.newest(), []byte(nil)
	if len(moved) > 0 {
		last = moved[len(moved)-1].key
	}
	first, _ := w.laps.start()
	block, sealed := w.laps.end() // which has room yet
	if lapEnd(bucket) == nil {
		block, sealed = w.laps.start()
		lap++
	}
	var from []byte // what is removed before that is of blocks before; before the first there are none
	if !bytes.Equal(block, first) {
		from = block[lapSize:]
	}
	at, _ := slices.BinarySearchFunc(removed, from, func(c postingChange, key []byte) int { return bytes.Compare(c.key, key) })
	e.rewrite(bucket, removed[:at])
	w.begin(func([]byte) uint32 { return lap })
	removed = w.rewrite(block, sealed, mergeChanges(moved, removed[at:]), func(first []byte) bool {
		if bytes.Compare(first, last) <= 0 {
			return true
		}
		rest -= w.block.keys // of the block before
		return rest > 0
	})
	e.rewrite(bucket, removed)
}

// blockWriter writes neighbouring blocks anew.
type blockWriter struct {
	to                *edit
	laps              laps
	lap               func(first []byte) uint32 // of a block that is written
	block             block                     // that is merged
	current, previous *blockPacker
	appended          bool // the last changes came behind all keys
}

func newBlockWriter(to *edit, bucket *bbolt.Bucket) *blockWriter {
	return &blockWriter{to: to, laps: newLaps(bucket), current: new(blockPacker), previous: new(blockPacker)}
}

func (w *blockWriter) begin(lap func(first []byte) uint32) {
	w.lap = lap
	w.current.reset()
	w.previous.reset()
}

// rewrite merges changes with a block and those that follow, as long as there are changes of them, or all that also wants, and
// returns the other changes.
func (w *blockWriter) rewrite(block, sealed []byte, changes []postingChange, also func(first []byte) bool) []postingChange {
	for {
		var next, nextSealed []byte
		if block != nil {
			next, nextSealed = w.laps.next()
		}
		end := 0
		for end < len(changes) && (next == nil || bytes.Compare(changes[end].key, next[lapSize:]) < 0) {
			end++
		}
		if end == 0 && (block == nil || also == nil || !also(block[lapSize:])) {
			break
		}
		if w.block.keys = 0; block != nil {
			w.to.drop = append(w.to.drop, block)
			w.block.read(block, sealed)
		}
		w.merge(changes[:end])
		if changes = changes[end:]; next == nil {
			break
		}
		block, sealed = next, nextSealed
	}
	w.end(also != nil)
	return changes
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
func (w *blockWriter) end(ofLap bool) {
	if all := len(w.previous.ends) + len(w.current.ends); !w.appended && !ofLap && len(w.previous.ends) > 0 && len(w.current.ends) < all/3 {
		both := [2]*blockPacker{new(blockPacker), new(blockPacker)}
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

func (w *blockWriter) write(p *blockPacker) {
	if len(p.ends) > 0 {
		first := p.key(0)
		name := binary.BigEndian.AppendUint32(make([]byte, 0, lapSize+len(first)), w.lap(first))
		name = append(name, first...)
		w.to.put = append(w.to.put, packedBlock{name, p.pack(name)})
	}
}

// apply makes the changes.
func (rw *rewriting) apply() error {
	if err := rw.toMain.apply(rw.main); err != nil || rw.recent == nil {
		return err
	}
	return rw.toRecent.apply(rw.recent)
}

func (e *edit) apply(bucket *bbolt.Bucket) error {
	stays := make(map[string]bool, len(e.put))
	for _, b := range e.put {
		stays[string(b.name)] = true
	}
	for _, name := range e.drop {
		if !stays[string(name)] {
			if err := bucket.Delete(name); err != nil {
				return err
			}
		}
	}
	for _, b := range e.put {
		if err := bucket.Put(b.name, b.sealed); err != nil {
			return err
		}
	}
	return bucket.SetSequence(uint64(int64(bucket.Sequence()) + int64(e.grew)))
}
