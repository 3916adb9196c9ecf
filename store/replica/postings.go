package replica

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"sync"

	"go.etcd.io/bbolt"

	"github.com/attestd/attestd/appliance/index"
)

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
