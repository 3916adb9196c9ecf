package bolt_test

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/attestd/attestd/store/bolt"
)

// TestRuns adds runs of all lengths, with records that share their hashes, and compares the lookups with the added
// records.
func TestRuns(t *testing.T) {
	t.Parallel()
	db, err := bbolt.Open(newPath(t), 0o600, &bbolt.Options{NoSync: true})
	check(t, err)
	t.Cleanup(func() { db.Close() })
	rng := rand.New(rand.NewPCG(1, 1))
	const names = 50
	prefix := func(name int) []byte { return index(int64(name) * 0x0523_4567_89ab_cdef) }
	want := make(map[int][]int64)
	next := int64(0)
	update := func(length int64) {
		check(t, db.Update(func(tx *bbolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists([]byte("runs"))
			check(t, err)
			b.FillPercent = 1
			first := next
			var entries []bolt.Indexed
			for ; next < first+length; next++ {
				if rng.IntN(10) == 0 {
					continue // an event
				}
				name := rng.IntN(names)
				want[name] = append(want[name], next)
				entries = append(entries, bolt.Indexed(append(prefix(name), index(next)...)))
			}
			return bolt.AddRun(b, first, entries)
		}))
	}
	for _, most := range []int64{1, 5, 600, 1, 5_000, 3} {
		for range 60 {
			update(1 + rng.Int64N(most))
		}
		check(t, db.View(func(tx *bbolt.Tx) error {
			b := tx.Bucket([]byte("runs"))
			for name := range names + 1 {
				compareRuns(t, b, prefix(name), want[name], next)
			}
			if n := countRuns(b); n > 10 {
				t.Errorf("%d records are in %d runs", next, n)
			}
			return nil
		}))
	}
}

func compareRuns(t *testing.T, b *bbolt.Bucket, prefix []byte, want []int64, end int64) {
	t.Helper()
	var found []int64
	for i := range bolt.RecordsInRuns(b, prefix) {
		found = append(found, int64(binary.BigEndian.Uint64(i)))
	}
	if !slices.Equal(found, want) {
		t.Errorf("%x: found %d records, not %d", prefix, len(found), len(want))
	}
	previous := bolt.LastInRuns(b, prefix)
	var back []int64
	for i := previous(end); i >= 0; i = previous(i) {
		back = append(back, i)
	}
	slices.Reverse(back)
	if !slices.Equal(back, want) {
		t.Errorf("%x: found %d records backwards, not %d", prefix, len(back), len(want))
	}
	if len(want) > 0 {
		if middle := want[len(want)/2]; previous(middle+1) != middle {
			t.Errorf("%x: the last below %d is %d", prefix, middle+1, previous(middle+1))
		}
	}
}

func countRuns(b *bbolt.Bucket) int {
	runs := make(map[string]bool)
	for name, _ := b.Cursor().First(); name != nil; {
		runs[string(name[:8])] = true
		name, _ = b.Cursor().Seek(index(int64(binary.BigEndian.Uint64(name)) + 1))
	}
	return len(runs)
}
