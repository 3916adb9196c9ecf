package replica

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"go.etcd.io/bbolt"
)

// keyKinds are kinds of keys with different columns, which blocks encode in different ways.
var keyKinds = []struct {
	name string
	key  func(random *rand.Rand) string
}{
	{"hex digits", func(random *rand.Rand) string {
		return fmt.Sprintf("%06x-%027x", random.Uint32()%4096, random.Uint64())
	}},
	{"times", func(random *rand.Rand) string {
		return fmt.Sprintf("\x00\x01term2026-05-%02dT%02d:%02d:00Z-%04d", 1+random.IntN(28), random.IntN(24),
			random.IntN(60), random.IntN(10000))
	}},
	{"any bytes", func(random *rand.Rand) string {
		text := make([]byte, 1+random.IntN(40))
		for i := range text {
			text[i] = byte(random.Uint32())
		}
		return string(text)
	}},
	{"the beginnings of others, and zero bytes", func(random *rand.Rand) string {
		return string(make([]byte, 1+random.IntN(300)))
	}},
	{"long ones", func(random *rand.Rand) string { return fmt.Sprintf("%0*d", 900+random.IntN(130), random.Uint64()) }},
}

// TestBlocksHaveTheirKeys changes buckets of blocks at random, and compares them with a sorted list after each change.
func TestBlocksHaveTheirKeys(t *testing.T) {
	t.Parallel()
	for _, kind := range keyKinds {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(1, 2))
			db, err := bbolt.Open(filepath.Join(t.TempDir(), "blocks.db"), 0o600,
				&bbolt.Options{NoSync: true, PageSize: pageSize})
			check(t, err)
			defer db.Close()
			there := make(map[string]bool)
			for n := range 12 {
				changes := make(map[string]bool) // true for an added key, false for a removed one
				for range random.IntN(400) {
					changes[kind.key(random)] = true
				}
				for key := range there {
					if random.IntN(4) == 0 {
						changes[key] = random.IntN(2) == 0
					}
				}
				for left, way := sortedChanges(changes), n%4; len(left) > 0; way = 0 {
					check(t, db.Update(func(tx *bbolt.Tx) (err error) {
						left, err = rewriteBlocks(tx, left, way)
						return err
					}))
				}
				for key, put := range changes {
					if delete(there, key); put {
						there[key] = true
					}
				}
				check(t, db.View(func(tx *bbolt.Tx) error {
					compareBlocks(t, tx.Bucket([]byte("blocks")), there, func() []byte {
						return []byte(kind.key(random))
					})
					return nil
				}))
			}
		})
	}
}

// rewriteBlocks applies changes in one of the ways that batches use: to single blocks, to all blocks, or as part of a
// compaction. It returns the additions that a compaction leaves for the next batch.
func rewriteBlocks(tx *bbolt.Tx, changes []postingChange, way int) (left []postingChange, err error) {
	bucket, err := tx.CreateBucketIfNotExists([]byte("blocks"))
	if err != nil {
		return nil, err
	}
	bucket.FillPercent = fillBlocks
	var e edit
	switch way {
	case 0:
		e.rewrite(bucket, changes)
	case 1:
		e.rewriteAll(bucket, changes)
	default:
		var moved []postingChange
		from := lapEnd(bucket)
		for _, change := range changes {
			switch {
			case change.remove:
			case bytes.Compare(change.key, from) >= 0 && len(moved) < len(changes)/4:
				moved = append(moved, change)
			default:
				left = append(left, change)
			}
		}
		e.compact(bucket, moved, len(changes)/4, removals(changes))
	}
	return left, e.apply(bucket)
}

func sortedChanges(changes map[string]bool) (sorted []postingChange) {
	for key, put := range changes {
		sorted = append(sorted, postingChange{key: []byte(key), remove: !put})
	}
	slices.SortFunc(sorted, postingChange.compare)
	return sorted
}

// compareBlocks reads a bucket forward and backward, and from random keys.
func compareBlocks(t *testing.T, bucket *bbolt.Bucket, there map[string]bool, randomKey func() []byte) {
	t.Helper()
	var want []string
	for key := range there {
		want = append(want, key)
	}
	slices.Sort(want)
	if bucket.Sequence() != uint64(len(want)) {
		t.Fatalf("counted %d keys, want %d", bucket.Sequence(), len(want))
	}
	cursor := newBlockCursor(bucket)
	var up, down []string
	for k := cursor.start(); k != nil; k = cursor.next() {
		up = append(up, string(k))
	}
	for k := cursor.seekDown(bytes.Repeat([]byte{0xff}, 64)); k != nil; k = cursor.previous() {
		down = append(down, string(k))
	}
	slices.Reverse(down)
	if !slices.Equal(up, want) || !slices.Equal(down, want) {
		t.Fatalf("read %d keys up and %d down, want %d", len(up), len(down), len(want))
	}
	for range 60 {
		key := randomKey()
		at, found := slices.BinarySearch(want, string(key))
		expectKey(t, cursor.seek(key), want, at)
		if !found {
			at--
		}
		expectKey(t, cursor.seekDown(key), want, at)
	}
}

func expectKey(t *testing.T, got []byte, want []string, at int) {
	t.Helper()
	switch {
	case at < 0 || at >= len(want):
		if got != nil {
			t.Fatalf("found %q, want none", got)
		}
	case string(got) != want[at]:
		t.Fatalf("found %q, want %q", got, want[at])
	}
}

// TestLapsFillPages checks that compaction fills pages, although keys arrive in random order. bbolt alone would leave a
// third of each page empty.
func TestLapsFillPages(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	db, err := bbolt.Open(filepath.Join(t.TempDir(), "blocks.db"), 0o600,
		&bbolt.Options{NoSync: true, PageSize: pageSize})
	check(t, err)
	defer db.Close()
	gathered := make(map[string]bool)
	for batch := range 60 {
		for range 500 {
			gathered[fmt.Sprintf("%05x-%013x-%08x", random.Uint32()>>12, random.Uint64()>>12, random.Uint32())] = true
		}
		if batch < 20 {
			continue
		}
		check(t, db.Update(func(tx *bbolt.Tx) error {
			left, err := rewriteBlocks(tx, sortedChanges(gathered), 2)
			clear(gathered)
			for _, change := range left {
				gathered[string(change.key)] = true
			}
			return err
		}))
	}
	check(t, db.View(func(tx *bbolt.Tx) error {
		s := tx.Bucket([]byte("blocks")).Stats()
		if full := float64(s.LeafInuse) / float64(s.LeafAlloc); s.LeafPageN < 20 || full < 0.9 {
			t.Errorf("%d pages are %.0f %% full, want 90", s.LeafPageN, 100*full)
		}
		return nil
	}))
}

// TestASweepRewritesNoBlockTwice removes keys before all others, including the first key of the block that the
// compaction has reached.
func TestASweepRewritesNoBlockTwice(t *testing.T) {
	t.Parallel()
	db, err := bbolt.Open(filepath.Join(t.TempDir(), "blocks.db"), 0o600,
		&bbolt.Options{NoSync: true, PageSize: pageSize})
	check(t, err)
	defer db.Close()
	there := make(map[string]bool)
	key := func(i int) string { return fmt.Sprintf("%016x", uint64(i+1)*0x9e3779b1) }
	change := func(sweep bool, changes map[string]bool) {
		t.Helper()
		check(t, db.Update(func(tx *bbolt.Tx) error {
			bucket, err := tx.CreateBucketIfNotExists([]byte("blocks"))
			check(t, err)
			var e edit
			if all := sortedChanges(changes); sweep {
				moved := slices.DeleteFunc(slices.Clone(all), func(c postingChange) bool { return c.remove })
				e.compact(bucket, moved, 0, removals(all))
			} else {
				e.rewrite(bucket, all)
			}
			return e.apply(bucket)
		}))
		for key, put := range changes {
			if delete(there, key); put {
				there[key] = true
			}
		}
		check(t, db.View(func(tx *bbolt.Tx) error {
			compareBlocks(t, tx.Bucket([]byte("blocks")), there, func() []byte { return []byte(key(rand.IntN(3000))) })
			return nil
		}))
	}
	all := make(map[string]bool)
	for i := range 3000 {
		all[key(2*i)] = true
	}
	change(false, all)
	sorted := slices.Sorted(maps.Keys(all))
	first, last := sorted[0], sorted[len(sorted)-1]
	change(true, map[string]bool{first: true}) // one block is left of the older generation
	change(true, map[string]bool{"0": false, first: false, last + "0": true})
}
