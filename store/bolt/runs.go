package bolt

import (
	"bytes"
	"encoding/binary"
	"errors"
	"iter"
	"slices"
	"sort"

	"go.etcd.io/bbolt"
)

// by_hash and by_unspendable have names in no order of time. In a tree of names, each record's would be on a page of its own, which is
// written again for it: the longer the journal, the more so. So they are kept as runs: the entries of consecutive records, sorted. What is
// filed at once is a run, which takes up those before it that are not much longer, so that there are few to look into.
//
// A run is cut into chunks, two to a page. A chunk's name is the index of the run's first record, then the chunk's first entry; its value is
// its entries, 16 bytes each: what a record is found by, then its index. All records of a run are below the next run's first.
const (
	runEntry  = 16
	chunkName = 8 + runEntry
	chunkMost = 124 // entries

	maxRun  = 1 << 20 // entries: what one transaction moves at most
	takesUp = 2       // times its own length a new run takes up
)

// inRuns says whether a lookup bucket is kept as runs.
func inRuns(bucket string) bool { return bucket == bucketByHash || bucket == bucketByUnspendable }

// indexed is an entry: what the record is found by, then its index.
type indexed [runEntry]byte

func (e indexed) compare(other indexed) int { return bytes.Compare(e[:], other[:]) }

// addRun adds the entries of records from first on, which stand behind all that the bucket has.
func addRun(b *bbolt.Bucket, first int64, entries []indexed) error {
	if len(entries) == 0 {
		return nil
	}
	slices.SortFunc(entries, indexed.compare)
	run, name := make([]byte, 0, runEntry*len(entries)), encodeIndex(first)
	for i := range entries {
		run = append(run, entries[i][:]...)
	}
	var taken [][]byte // names of chunks, which are removed when all are read: bbolt's cursors cannot pass over what was
	for c := b.Cursor(); ; {
		older := chunksBefore(c, name, min(takesUp*len(run), runEntry*maxRun-len(run)))
		if len(older) == 0 {
			break
		}
		merged := make([]byte, 0, len(older)*runEntry*chunkMost)
		for _, chunk := range slices.Backward(older) {
			merged = append(merged, chunk.entries...)
			taken = append(taken, chunk.name)
		}
		run, name = merge(merged, run), older[0].name[:8]
	}
	for _, chunk := range taken {
		if err := b.Delete(chunk); err != nil {
			return err
		}
	}
	for chunk := range slices.Chunk(run, runEntry*chunkMost) {
		if err := b.Put(slices.Concat(name, chunk[:runEntry]), chunk); err != nil {
			return err
		}
	}
	return nil
}

type chunk struct{ name, entries []byte }

// chunksBefore returns the chunks of the last run before a name, the last first: none where its entries have more than so many bytes.
func chunksBefore(c *bbolt.Cursor, bound []byte, most int) (chunks []chunk) {
	for name, entries := seekBefore(c, bound); name != nil; name, entries = c.Prev() {
		if len(chunks) > 0 && !bytes.HasPrefix(name, chunks[0].name[:8]) {
			break
		}
		if most -= len(entries); most < 0 || len(name) != chunkName || len(entries)%runEntry != 0 {
			return nil
		}
		chunks = append(chunks, chunk{bytes.Clone(name), entries})
	}
	return chunks
}

// merge merges two sorted lists of entries.
func merge(a, b []byte) []byte {
	both := make([]byte, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		if bytes.Compare(a[:runEntry], b[:runEntry]) < 0 {
			both, a = append(both, a[:runEntry]...), a[runEntry:]
		} else {
			both, b = append(both, b[:runEntry]...), b[runEntry:]
		}
	}
	return append(append(both, a...), b...)
}

// lastInRuns returns a function that returns the last index below another of the records that are found by a prefix, or -1.
func lastInRuns(bucket *bbolt.Bucket, prefix []byte) func(before int64) int64 {
	c := bucket.Cursor()
	return func(before int64) int64 {
		bound := append(bytes.Clone(prefix), encodeIndex(before)...)
		for end := bound[len(prefix):]; ; {
			name, _ := seekBefore(c, end)
			if len(name) != chunkName {
				return -1
			}
			run := name[:8]
			name, chunk := seekBefore(c, slices.Concat(run, bound))
			if n := searchChunk(chunk, bound); bytes.HasPrefix(name, run) && n > 0 {
				if e := chunk[runEntry*(n-1):]; bytes.HasPrefix(e, prefix) {
					return int64(binary.BigEndian.Uint64(e[8:]))
				}
			}
			end = run
		}
	}
}

// recordsInRuns yields the encoded indexes of the records that are found by a prefix, in their order.
func recordsInRuns(bucket *bbolt.Bucket, prefix []byte) iter.Seq[[]byte] {
	c := bucket.Cursor()
	return func(yield func([]byte) bool) {
		for at := int64(0); ; at++ {
			name, _ := c.Seek(encodeIndex(at))
			if len(name) != chunkName {
				return
			}
			run := name[:8]
			bound := slices.Concat(run, prefix, make([]byte, 8))
			name, chunk := seekBefore(c, bound)
			if !bytes.HasPrefix(name, run) {
				name, chunk = c.Seek(bound)
			}
			for found := true; found && bytes.HasPrefix(name, run); name, chunk = c.Next() {
				for chunk = chunk[runEntry*searchChunk(chunk, bound[8:]):]; found && len(chunk) >= runEntry; chunk = chunk[runEntry:] {
					if found = bytes.HasPrefix(chunk, prefix); found && !yield(chunk[8:runEntry]) {
						return
					}
				}
			}
			var err error
			if at, err = decodeIndex(run); err != nil {
				return
			}
		}
	}
}

// seekBefore moves to the last entry of a bucket whose name is below another.
func seekBefore(c *bbolt.Cursor, bound []byte) (name, value []byte) {
	if name, _ := c.Seek(bound); name == nil {
		return c.Last()
	}
	return c.Prev()
}

// searchChunk returns how many of a chunk's entries are below a bound.
func searchChunk(chunk, bound []byte) int {
	return sort.Search(len(chunk)/runEntry, func(i int) bool { return bytes.Compare(chunk[runEntry*i:runEntry*(i+1)], bound) >= 0 })
}

// checkChunk returns an error unless a chunk is of the form that searches rely on. above is the last entry before it in its run.
func checkChunk(name, value, above []byte) error {
	switch {
	case len(name) != chunkName || len(value) == 0 || len(value)%runEntry != 0:
		return errors.New("malformed")
	case !bytes.Equal(name[8:], value[:runEntry]):
		return errors.New("does not begin as its name says")
	}
	for entry := range slices.Chunk(value, runEntry) {
		if bytes.Compare(above, entry) >= 0 {
			return errors.New("out of order")
		}
		above = entry
	}
	return nil
}
