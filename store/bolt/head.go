package bolt

import (
	"fmt"
	"time"

	"github.com/attestd/attestd/appliance/journal"
	"go.etcd.io/bbolt"
	"golang.org/x/mod/sumdb/tlog"
)

// head is the journal's state after a commit. It is immutable.
type head struct {
	tree       tlog.Tree
	checkpoint []byte
	last       time.Time // time of the newest record
	tail       []leaves  // leaves that the file may lack, in order
}

// inFile returns the number of leaves that are in the file for certain.
func (h *head) inFile() int64 {
	if len(h.tail) == 0 {
		return h.tree.N
	}
	return h.tail[0].first
}

// entry returns an entry in the tail, or nil.
func (h *head) entry(index int64) *journal.Entry {
	for i := range h.tail {
		if e := h.tail[i].entry(index); e != nil {
			return e
		}
	}
	return nil
}

// hash returns a stored hash in the tail, or nil.
func (h *head) hash(index int64) *tlog.Hash {
	for _, l := range h.tail {
		if i := index - tlog.StoredHashIndex(0, l.first); i >= 0 && i < int64(len(l.hashes)) {
			return &l.hashes[i]
		}
	}
	return nil
}

// view is a snapshot of the journal: a read transaction of the file, plus the tail. It is valid while the transaction
// is open.
type view struct {
	*head
	tx      *bbolt.Tx
	records *bbolt.Bucket
}

func newView(tx *bbolt.Tx, h *head) *view {
	return &view{h, tx, tx.Bucket([]byte(bucketRecords))}
}

// entry reads an entry.
func (v *view) entry(index int64) (journal.Entry, error) {
	if e := v.head.entry(index); e != nil {
		return *e, nil
	}
	return readEntry(v.records, encodeIndex(index))
}

// time reads the time of an entry.
func (v *view) time(index int64) (time.Time, error) {
	if e := v.head.entry(index); e != nil {
		return e.Time(), nil
	}
	return leafTime(v.records.Get(encodeIndex(index)))
}

// previous returns a function that returns the last candidate index below another one for a query, or -1.
func (v *view) previous(q journal.Query) func(before int64) int64 {
	filed, end := narrowest(v.tx, q), v.inFile()
	return func(before int64) int64 {
		if before > end {
			return before - 1
		}
		return filed(before)
	}
}

// hashes reads stored hashes.
func (v *view) hashes() tlog.HashReader {
	bucket := v.tx.Bucket([]byte(bucketHashes))
	return tlog.HashReaderFunc(func(indexes []int64) ([]tlog.Hash, error) {
		hashes := make([]tlog.Hash, len(indexes))
		for i, index := range indexes {
			if h := v.hash(index); h != nil {
				hashes[i] = *h
				continue
			}
			value := bucket.Get(encodeIndex(index))
			if len(value) != tlog.HashSize {
				return nil, fmt.Errorf("%w: stored hash %d has %d bytes", ErrDamaged, index, len(value))
			}
			hashes[i] = tlog.Hash(value)
		}
		return hashes, nil
	})
}
