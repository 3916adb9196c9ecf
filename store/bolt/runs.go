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

// The names in by_hash and by_unspendable are random. In a B+ tree, each new record would rewrite a separate page.
// These buckets therefore hold sorted runs, as in a log-structured merge tree: a segment becomes a run, and merges with
// earlier runs that are not much longer, so that a lookup searches few runs.
//
// A run is stored in chunks, two to a page. The name of a chunk is the index of the run's first record, then the
// chunk's first entry. Its value has the entries, 16 bytes each: 8 bytes of the hash, then the index. All records of a
// run come before the next run's first record.
const (
	runEntry  = 16
	chunkName = 8 + runEntry
	chunkMost = 124 // entries

	maxRun  = 1 << 20 // maximum number of entries that one transaction moves
	takesUp = 2       // a new run merges with an earlier one of up to takesUp times its length
)

// inRuns reports whether a lookup bucket consists of runs.
func inRuns(bucket string) bool { return bucket == bucketByHash || bucket == bucketByUnspendable }

// indexed is an entry of a run: 8 bytes of a hash, then the index of the record.
type indexed [runEntry]byte

func (e indexed) compare(other indexed) int { return bytes.Compare(e[:], other[:]) }

// addRun adds a run with the entries of the records from first on, which come after all records in the bucket.
func addRun(b *bbolt.Bucket, first int64, entries []indexed) error {
	if len(entries) == 0 {
		return nil
	}
	slices.SortFunc(entries, indexed.compare)
	run, name := make([]byte, 0, runEntry*len(entries)), encodeIndex(first)
	for i := range entries {
		run = append(run, entries[i][:]...)
	}
	// names of merged chunks, which are removed at the end: bbolt's cursors do not work across removed entries
	var taken [][]byte
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

// chunksBefore returns the chunks of the last run before a name, the last chunk first. It returns none if the run is
// longer than most bytes.
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

// lastInRuns returns a function that returns the last index below another one among the records with a prefix, or -1.
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

// recordsInRuns yields the encoded indexes of the records with a prefix, in order.
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
				for chunk = chunk[runEntry*searchChunk(chunk, bound[8:]):]; found &&
					len(chunk) >= runEntry; chunk = chunk[runEntry:] {
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

// seekBefore moves a cursor to the last entry with a name below bound.
func seekBefore(c *bbolt.Cursor, bound []byte) (name, value []byte) {
	if name, _ := c.Seek(bound); name == nil {
		return c.Last()
	}
	return c.Prev()
}

// searchChunk returns the number of entries in a chunk that are below a bound.
func searchChunk(chunk, bound []byte) int {
	return sort.Search(len(chunk)/runEntry, func(i int) bool {
		return bytes.Compare(chunk[runEntry*i:runEntry*(i+1)], bound) >= 0
	})
}

// checkChunk returns an error unless a chunk is well-formed and sorted. above is the last entry before it in its run.
func checkChunk(name, value, above []byte) error {
	switch {
	case len(name) != chunkName || len(value) == 0 || len(value)%runEntry != 0:
		return errors.New("malformed")
	case !bytes.Equal(name[8:], value[:runEntry]):
		return errors.New("first entry differs from the chunk's name")
	}
	for entry := range slices.Chunk(value, runEntry) {
		if bytes.Compare(above, entry) >= 0 {
			return errors.New("out of order")
		}
		above = entry
	}
	return nil
}
