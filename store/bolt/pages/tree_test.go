package pages

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"testing"
	"time"
	"unsafe"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

var testBucket = []byte("bucket")

// filled creates a file with a bucket of the given number of keys, every second number, with values of about the given
// size.
func filled(t *testing.T, pageSize, keys, size int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "db")
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{PageSize: pageSize, NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucket(testBucket)
		for n := 0; n < keys && err == nil; n++ {
			err = b.Put(numbered(2*n), bytes.Repeat([]byte{byte(n)}, 1+size+n%7))
		}
		return err
	})
	if err := errors.Join(err, db.Sync(), db.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}

func numbered(n int) []byte { return fmt.Appendf(nil, "%08d", n) }

// viewed opens a file for reading and calls f with its bucket.
func viewed(t *testing.T, path string, f func(b *bbolt.Bucket)) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	_ = db.View(func(tx *bbolt.Tx) error {
		f(tx.Bucket(testBucket))
		return nil
	})
}

// TestTreeFindsWhatBboltFinds looks up any number of keys at once, existing and missing ones, in trees of each depth.
func TestTreeFindsWhatBboltFinds(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name       string
		keys, size int
	}{
		{"no key", 0, 0},
		{"in the entry that names the bucket", 3, 10},
		{"one page", 40, 50},
		{"two levels", 2_000, 50},
		{"three levels", 20_000, 50},
		{"values larger than a page", 300, 9_000},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(1, 2))
			viewed(t, filled(t, 4096, test.keys, test.size), func(b *bbolt.Bucket) {
				for _, n := range []int{0, 1, 2, 31, 200} {
					wanted := [][]byte{nil, {0}, []byte("0"), []byte("9"), numbered(0), numbered(2*test.keys - 2),
						numbered(2 * test.keys)}
					for len(wanted) < n {
						wanted = append(wanted, numbered(random.IntN(2*test.keys+2)))
					}
					random.Shuffle(len(wanted), func(i, j int) { wanted[i], wanted[j] = wanted[j], wanted[i] })
					requireFound(t, b, wanted[:n])
				}
			})
		})
	}
}

func requireFound(t *testing.T, b *bbolt.Bucket, wanted [][]byte) {
	t.Helper()
	tree, all := TreeOf(b), make([]Lookup, len(wanted))
	asked := make([][]byte, len(wanted))
	for i, key := range wanted {
		asked[i] = bytes.Clone(key)
		all[i].Key = asked[i]
	}
	tree.Find(all)
	for i, key := range wanted {
		want := b.Get(key)
		if !bytes.Equal(all[i].Value, want) || (all[i].Value == nil) != (want == nil) {
			t.Errorf("%q among %d: found %d bytes, bbolt %d", key, len(wanted), len(all[i].Value), len(want))
			continue
		}
		if want == nil {
			continue
		}
		asked[i][0] = 'x' // the caller reuses the memory of its key
		if !bytes.Equal(all[i].Key, key) || cap(all[i].Key) > len(key) || cap(all[i].Value) > len(want) {
			t.Errorf("%q among %d: the key found is %q, of a capacity of %d, its value's %d of %d bytes", key,
				len(wanted), all[i].Key, cap(all[i].Key), cap(all[i].Value), len(want))
		}
	}
}

// TestTreeEndsOverDamage checks that a search in a damaged page ends, possibly by a panic or a fault that can be
// recovered.
func TestTreeEndsOverDamage(t *testing.T) {
	t.Parallel()
	const size = 4096
	path := filled(t, size, 20_000, 50)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var root uint64
	viewed(t, path, func(b *bbolt.Bucket) { root = uint64(b.Root()) })
	header := whole[root*size:]
	child := binary.NativeEndian.Uint64(header[pageHeader+8:])
	number := func(n uint64) []byte { return binary.NativeEndian.AppendUint64(nil, n) }
	for _, test := range []struct {
		name  string
		at    uint64
		bytes []byte
	}{
		{"a page of another number", root * 4096, number(root + 1)},
		{"a root of another kind", root*size + 8, []byte{flagFreelist, 0}},
		{"children of two kinds", child*size + 8, []byte{flagLeaf, 0}},
		{"a child that is its parent", root*size + pageHeader + 8, number(root)},
		{"a child outside the file", root*size + pageHeader + 8, number(1 << 40)},
		{"a child whose place is too large for a number", root*size + pageHeader + 8, number(1 << 63)},
		{"more elements than a page has room for", root*size + 10, []byte{0xff, 0xff}},
		{"a branch without elements", root*size + 10, []byte{0, 0}},
		{"keys outside the file", root*size + pageHeader + pageElement, bytes.Repeat([]byte{0xff}, 8)},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			damaged := filepath.Join(t.TempDir(), "db")
			changed := slices.Clone(whole)
			copy(changed[test.at:], test.bytes)
			if err := os.WriteFile(damaged, changed, 0o600); err != nil {
				t.Fatal(err)
			}
			for _, wanted := range [][]Lookup{{{Key: numbered(0)}},
				{{Key: numbered(39_000)}, {Key: numbered(0)}, {Key: numbered(2)}}} {
				viewed(t, damaged, func(b *bbolt.Bucket) {
					if tree := TreeOf(b); !misses(&tree, wanted) {
						t.Errorf("%d keys are found as if nothing were damaged", len(wanted))
					}
				})
			}
		})
	}
}

// misses reports whether a key is not found or the search panics.
func misses(tree *Tree, wanted []Lookup) (missed bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { missed = missed || recover() != nil }()
	tree.Find(wanted)
	return slices.ContainsFunc(wanted, func(l Lookup) bool { return l.Value == nil })
}

// TestTreeAsksForWholePages checks that pages on the disk are read whole, and all at once.
func TestTreeAsksForWholePages(t *testing.T) {
	t.Parallel()
	path := filled(t, 16<<10, 20_000, 50)
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	viewed(t, path, func(b *bbolt.Bucket) {
		tree := TreeOf(b)
		last := uint64(len(tree.file))/tree.size - 1
		asked := []Lookup{{id: last / 2}, {id: last}}
		resident := func() bool { return inMemory(t, &tree, asked[0].id) && inMemory(t, &tree, asked[1].id) }
		if resident() {
			t.Skip("this file system keeps its files in memory")
		}
		tree.prefetch(asked)
		// The kernel sends no notification.
		for deadline := time.Now().Add(3 * time.Minute); !resident(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("pages were asked for, and do not come")
			}
		}
	})
}

// inMemory reports whether the kernel has all of a page in memory.
func inMemory(t *testing.T, tree *Tree, id uint64) bool {
	t.Helper()
	page := tree.file[id*tree.size:][:tree.size]
	parts := make([]byte, (len(page)+os.Getpagesize()-1)/os.Getpagesize())
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&page[0])), uintptr(len(page)),
		uintptr(unsafe.Pointer(&parts[0]))); errno != 0 {
		t.Fatalf("mincore: %v", errno)
	}
	return !slices.ContainsFunc(parts, func(part byte) bool { return part&1 == 0 })
}
