package bolt

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/bolt/pages"
	"go.etcd.io/bbolt"
	"golang.org/x/mod/sumdb/tlog"
)

// tables are the buckets of a write transaction.
type tables struct {
	meta, keys, records, hashes *bbolt.Bucket
	lookups                     map[string]*bbolt.Bucket

	runs    map[string][]indexed // entries of the leaves
	later   *[]named             // collects the entries of idempotency, if not nil
	name    [8]byte              // scratch for a key; bbolt copies keys
	indexes []byte               // values of lookups; bbolt refers to them until the commit
}

// named is an entry of idempotency.
type named struct {
	name  [sha256.Size]byte
	index [8]byte
}

// putSorted writes entries of idempotency in the order of their names, so that each page is written once.
func (t *tables) putSorted(entries []named) error {
	slices.SortFunc(entries, func(a, b named) int {
		return cmp.Or(bytes.Compare(a.name[:], b.name[:]), bytes.Compare(a.index[:], b.index[:]))
	})
	for i := range entries {
		if err := t.lookups[bucketIdempotency].Put(entries[i].name[:], entries[i].index[:]); err != nil {
			return err
		}
	}
	return nil
}

func openTables(tx *bbolt.Tx) (*tables, error) {
	all := make(map[string]*bbolt.Bucket, len(buckets))
	for _, name := range buckets {
		if all[name] = tx.Bucket([]byte(name)); all[name] == nil {
			return nil, fmt.Errorf("%w: bucket %s: %w", ErrDamaged, name, pages.ErrNoBucket)
		}
	}
	// These buckets grow at their end only, so that their pages can be filled completely.
	for _, name := range []string{bucketRecords, bucketHashes, bucketIDs, bucketEvents, bucketByHash,
		bucketByUnspendable} {
		all[name].FillPercent = 1
	}
	return &tables{meta: all[bucketMeta], keys: all[bucketKeys], records: all[bucketRecords], hashes: all[bucketHashes],
		lookups: all}, nil
}

// put writes leaves with their hashes and lookups. They must not change before the commit.
func (t *tables) put(s *leaves) error {
	t.indexes = make([]byte, 0, 8*len(s.entries))
	t.runs = make(map[string][]indexed)
	for _, e := range s.entries {
		if err := t.putEntry(e); err != nil {
			return err
		}
	}
	for bucket, entries := range t.runs {
		if err := addRun(t.lookups[bucket], s.first, entries); err != nil {
			return err
		}
	}
	at := tlog.StoredHashIndex(0, s.first)
	for i := range s.hashes {
		binary.BigEndian.PutUint64(t.name[:], uint64(at+int64(i)))
		if err := t.hashes.Put(t.name[:], s.hashes[i][:]); err != nil {
			return err
		}
	}
	return nil
}

func (t *tables) putEntry(e *journal.Entry) error {
	t.indexes = binary.BigEndian.AppendUint64(t.indexes, uint64(e.Index))
	index := t.indexes[len(t.indexes)-8:]
	if err := t.records.Put(index, e.Leaf); err != nil {
		return err
	}
	return eachLookup(*e, index, func(bucket string, name, value []byte) error {
		if inRuns(bucket) {
			t.runs[bucket] = append(t.runs[bucket], indexed(name))
			return nil
		}
		if bucket == bucketIdempotency && t.later != nil {
			*t.later = append(*t.later, named{[sha256.Size]byte(name), [8]byte(value)})
			return nil
		}
		return t.lookups[bucket].Put(name, value)
	})
}
