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

// postingChange adds a posting, or removes it.
type postingChange struct {
	key    []byte // the term and the sort_order
	number uint32 // sequence number in the batch: the last change of a key counts
	remove bool
}

// compare orders changes by key, and changes of one key by their time.
func (a postingChange) compare(b postingChange) int {
	return cmp.Or(bytes.Compare(a.key, b.key), cmp.Compare(a.number, b.number))
}

// repost records how the postings change when row replaces old. p is the prepared form of row, or nil. A zero Row has
// no postings.
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
		// Removals come first, so that a posting in both lists is added again.
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

// room returns an empty slice of the given capacity. Its memory lives as long as the batch.
func (w *batchWriter) room(size int) []byte {
	if cap(w.arena)-len(w.arena) < size {
		w.arena = make([]byte, 0, max(size, 256<<10))
	}
	start := len(w.arena)
	w.arena = w.arena[:start+size]
	return w.arena[start:start:len(w.arena)]
}

// applyAllChanges applies the changes of all postings. The plans are made in parallel; the buckets are then written one
// after another, because a bbolt transaction is not safe for concurrent use.
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

// rewriting is the effect of a batch on the buckets of one filter's postings.
type rewriting struct {
	main, recent     *bbolt.Bucket // recent may be nil
	changes          []postingChange
	recentKeys       int
	largeBatch       int
	toMain, toRecent edit
}

// edit is a list of changes to a bucket of blocks.
type edit struct {
	drop [][]byte // names of blocks
	put  []packedBlock
	grew int // number of keys added, less those removed
}

// packedBlock is an encoded block. Its name is its generation and first key.
type packedBlock struct{ name, sealed []byte }

func (w *batchWriter) rewriting(x *postings, changes []postingChange) *rewriting {
	rw := &rewriting{main: w.tx.Bucket(x.bucket), changes: changes, recentKeys: w.r.recentKeys,
		largeBatch: w.r.largeBatch}
	rw.main.FillPercent = fillBlocks
	if x.recent != nil {
		rw.recent = w.tx.Bucket(x.recent)
		rw.recent.FillPercent = fillBlocks
	}
	return rw
}

const (
	// largeBatch bounds when a batch bypasses the recent bucket: the main bucket has at most largeBatch keys per key of
	// the batch. Such a batch touches all blocks of the main bucket, but writes no key twice.
	largeBatch = 16
	// mostBlocks bounds when all recent blocks are rewritten: if the recent bucket has at most mostBlocks·largeBatch
	// keys per key of the batch, the batch touches most of its blocks.
	mostBlocks = 16
)

// plan decides on the edits. It only reads the buckets.
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
		moved, rest := rw.nextRange(len(last))
		rw.toMain.compact(rw.main, moved, rest, removals(last))
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

// mergeChanges merges two sorted lists of changes. For a key in both, the later change counts.
func mergeChanges(changes, later []postingChange) []postingChange {
	if len(later) == 0 {
		return changes
	}
	merged := make([]postingChange, 0, len(changes)+len(later))
	for _, change := range later {
		at, _ := slices.BinarySearchFunc(changes, change.key, func(c postingChange, key []byte) int {
			return bytes.Compare(c.key, key)
		})
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
	minRecent   = 32_000 // number of keys in a recent bucket below which none are moved
	recentShare = 64     // share of all keys, 1/recentShare, that may stay in the recent bucket
	mostMoved   = 2      // keys moved per key added, at most
)

// nextRange returns the keys that move from the recent bucket to the main one. The keys of a batch are scattered, so in
// a large index each would rewrite a separate block. They gather in the small recent bucket instead. Each batch then
// moves about as many keys as it adds, all from one contiguous range of the key space, so that they share blocks. The
// next batch continues with the range that follows, at the position of the compaction (see lapEnd).
//
// With M keys in the main bucket, R recent keys and n keys in the batch, a batch rewrites about M·n/R main keys. It
// also rewrites all R recent keys, or at most the n blocks that its keys touch. If it rewrites all of them, R = √(M·n)
// is the cheapest. If it rewrites few, R = M/recentShare keeps the cost of a key from growing with M. An excess over R,
// left by larger batches, shrinks gradually: a batch rewrites at most mostMoved·recentShare·n main keys, regardless of
// earlier batches.
//
// If no recent key is left behind the range, rest is how many more main keys the batch may rewrite to finish the
// generation.
//
// The sequence of a bucket is the number of its keys.
func (rw *rewriting) nextRange(coming int) (moved []postingChange, rest int) {
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

// lapEnd returns the key that the compaction of a bucket has reached, or nil if all blocks are of one generation.
func lapEnd(bucket *bbolt.Bucket) []byte {
	if l := newGenerations(bucket); l.oldest != nil && l.newest() != binary.BigEndian.Uint32(l.oldest) {
		return l.oldest[generationSize:]
	}
	return nil
}

// rewrite plans the new blocks of a bucket for a sorted list of changes.
func (e *edit) rewrite(bucket *bbolt.Bucket, changes []postingChange) {
	w := newBlockWriter(e, bucket)
	for len(changes) > 0 {
		w.begin(w.generations.generation)
		block, sealed := w.generations.seekDown(changes[0].key)
		if block == nil {
			block, sealed = w.generations.start()
		}
		changes = w.rewrite(block, sealed, changes, nil)
	}
}

// rewriteAll is rewrite for changes that touch most blocks. All blocks become part of the next generation.
func (e *edit) rewriteAll(bucket *bbolt.Bucket, changes []postingChange) {
	w := newBlockWriter(e, bucket)
	generation := w.generations.newest() + 1
	w.begin(func([]byte) uint32 { return generation })
	block, sealed := w.generations.start()
	w.rewrite(block, sealed, changes, func([]byte) bool { return true })
}

// compact continues the compaction of a bucket. It merges moved, a range of keys from lapEnd on, with the blocks in
// that range, and rewrites up to rest keys behind it. The removals may be anywhere in the bucket.
func (e *edit) compact(bucket *bbolt.Bucket, moved []postingChange, rest int, removed []postingChange) {
	if len(moved) == 0 && rest == 0 {
		e.rewrite(bucket, removed)
		return
	}
	w := newBlockWriter(e, bucket)
	generation, last := w.generations.newest(), []byte(nil)
	if len(moved) > 0 {
		last = moved[len(moved)-1].key
	}
	first, _ := w.generations.start()
	block, sealed := w.generations.end() // the last block of the generation, which may have room left
	if lapEnd(bucket) == nil {
		block, sealed = w.generations.start()
		generation++
	}
	// Removals before from concern earlier blocks. The first block has no earlier ones.
	var from []byte
	if !bytes.Equal(block, first) {
		from = block[generationSize:]
	}
	at, _ := slices.BinarySearchFunc(removed, from, func(c postingChange, key []byte) int {
		return bytes.Compare(c.key, key)
	})
	e.rewrite(bucket, removed[:at])
	w.begin(func([]byte) uint32 { return generation })
	removed = w.rewrite(block, sealed, mergeChanges(moved, removed[at:]), func(first []byte) bool {
		if bytes.Compare(first, last) <= 0 {
			return true
		}
		rest -= w.block.keys // keys of the previous block
		return rest > 0
	})
	e.rewrite(bucket, removed)
}

// blockWriter rewrites neighbouring blocks.
type blockWriter struct {
	to                *edit
	generations       generations
	generation        func(first []byte) uint32 // the generation of a block to write
	block             block                     // the block being merged
	current, previous *blockPacker
	appended          bool // the last changes came after all existing keys
}

func newBlockWriter(to *edit, bucket *bbolt.Bucket) *blockWriter {
	return &blockWriter{to: to, generations: newGenerations(bucket), current: new(blockPacker),
		previous: new(blockPacker)}
}

func (w *blockWriter) begin(generation func(first []byte) uint32) {
	w.generation = generation
	w.current.reset()
	w.previous.reset()
}

// rewrite merges changes into a block and its successors, while a block has changes or also accepts it. It returns the
// changes that remain.
func (w *blockWriter) rewrite(block, sealed []byte, changes []postingChange,
	also func(first []byte) bool) []postingChange {
	for {
		var next, nextSealed []byte
		if block != nil {
			next, nextSealed = w.generations.next()
		}
		end := 0
		for end < len(changes) && (next == nil || bytes.Compare(changes[end].key, next[generationSize:]) < 0) {
			end++
		}
		if end == 0 && (block == nil || also == nil || !also(block[generationSize:])) {
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

// merge writes the keys of the current block, with the changes applied.
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

// end writes the remaining keys. If more keys are likely to come between them, it splits them into two blocks of equal
// size.
func (w *blockWriter) end(ofLap bool) {
	if all := len(w.previous.ends) + len(w.current.ends); !w.appended && !ofLap && len(w.previous.ends) > 0 &&
		len(w.current.ends) < all/3 {
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
		name := binary.BigEndian.AppendUint32(make([]byte, 0, generationSize+len(first)), w.generation(first))
		name = append(name, first...)
		w.to.put = append(w.to.put, packedBlock{name, p.pack(name)})
	}
}

// apply writes the edits to the buckets.
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
