package pages

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"time"
	"unsafe"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// Tree looks up several keys of a bucket at once, in the mapped file. A single search waits for memory or the disk at
// nearly every step; the steps of several searches wait together.
//
// A Tree is valid until the bucket's transaction ends. The transaction must be read-only. Tree trusts the file as bbolt
// does: over a damaged file, it panics or faults.
type Tree struct {
	bucket *bbolt.Bucket
	file   []byte
	size   uint64 // size of a page in bytes
}

// Lookup is a key to look up.
type Lookup struct {
	Key   []byte // set to the file's own copy of the key if it is found
	Value []byte // the result; nil if the key does not exist

	id        uint64 // current page of the search
	page      uint64 // offset of that page in the file
	low, high uint32 // bounds of the elements still to search
}

// TreeOf returns the tree of a bucket.
func TreeOf(b *bbolt.Bucket) Tree {
	info := b.Tx().DB().Info()
	// The conversion satisfies vet. The memory does not belong to Go.
	start := *(*unsafe.Pointer)(unsafe.Pointer(&info.Data))
	return Tree{bucket: b, file: unsafe.Slice((*byte)(start), b.Tx().Size()), size: uint64(info.PageSize)}
}

// Find looks up all keys.
func (t *Tree) Find(all []Lookup) {
	root := uint64(t.bucket.Root())
	switch {
	case len(all) == 0:
		return
	case root == 0: // a small bucket is stored inline, in the entry of its parent
		t.findInline(all)
		return
	}
	for i := range all {
		all[i].id = root
	}
	for range maxDepth {
		if t.open(all) == flagLeaf {
			t.search(all, flagLeaf)
			for i := range all {
				t.storeResult(&all[i])
			}
			return
		}
		t.search(all, flagBranch)
		for i := range all {
			l := &all[i]
			l.id = binary.NativeEndian.Uint64(t.file[l.element(l.low-1)+8:])
		}
	}
	panic("a tree is too deep or has a cycle")
}

func (t *Tree) findInline(all []Lookup) {
	cursor := t.bucket.Cursor()
	for i := range all {
		if k, v := cursor.Seek(all[i].Key); bytes.Equal(k, all[i].Key) {
			all[i].Key, all[i].Value = k, v
		}
	}
}

// open reads the headers of the current pages of all searches, and returns the kind of the pages, which must be the
// same for all.
func (t *Tree) open(all []Lookup) (kind uint16) {
	began, asked := time.Now(), false
	for i := range all {
		l := &all[i]
		l.page = l.id * t.size
		header := t.file[l.page : l.page+pageHeader]
		id, flags := binary.NativeEndian.Uint64(header), binary.NativeEndian.Uint16(header[8:])
		l.low, l.high = 0, uint32(binary.NativeEndian.Uint16(header[10:]))
		if flags == flagBranch {
			l.low = 1 // keys below the second key are in the first subtree
		}
		if i == 0 && (flags == flagBranch || flags == flagLeaf) {
			kind = flags
		}
		if id != l.id || flags != kind || l.low > l.high {
			panic(fmt.Sprintf("page %d: the header has page number %d, type %#x and %d entries", l.id, id, flags,
				l.high))
		}
		if i%lookEvery == 0 && !asked {
			now := time.Now()
			if asked = now.Sub(began) > fromDisk; asked {
				t.prefetch(all)
			}
			began = now
		}
	}
	return kind
}

const (
	// fromDisk is a duration that lookEvery headers exceed only if one of them is read from the disk.
	fromDisk = 40 * time.Microsecond
	// lookEvery is the number of headers between two readings of the clock.
	lookEvery = 8
)

// prefetch makes the kernel read the current pages of all searches at the same time. Otherwise each fault would read
// its 4 KiB, one after the other, since bbolt disables readahead.
func (t *Tree) prefetch(all []Lookup) {
	for i := range all {
		start := all[i].id * t.size
		_ = unix.Madvise(t.file[start&^uint64(os.Getpagesize()-1):start+t.size], unix.MADV_WILLNEED) // only advice
	}
}

// search sets low to the first element at or behind the key, or in a branch to the first element behind the key.
func (t *Tree) search(all []Lookup, kind uint16) {
	// place is the offset of the key's position in an element. A comparison below before moves low up.
	place, before := uint64(4), 0
	if kind == flagBranch {
		place, before = 0, 1
	}
	for going := true; going; {
		going = false
		for i := range all {
			l := &all[i]
			if l.low >= l.high {
				continue
			}
			going = true
			if middle := (l.low + l.high) / 2; compareKey(t.file, l.element(middle), place, l.Key) < before {
				l.low = middle + 1
			} else {
				l.high = middle
			}
		}
	}
}

// compareKey compares the key of an element with another key.
func compareKey(file []byte, element, place uint64, other []byte) int {
	e := file[element+place:][:8]
	key := element + uint64(binary.NativeEndian.Uint32(e))
	return bytes.Compare(file[key:key+uint64(binary.NativeEndian.Uint32(e[4:]))], other)
}

// storeResult stores the result of a search that has reached a leaf, if the element there has the key.
func (t *Tree) storeResult(l *Lookup) {
	if l.low == uint32(binary.NativeEndian.Uint16(t.file[l.page+10:])) {
		return
	}
	at := l.element(l.low)
	e := t.file[at : at+pageElement]
	key := at + uint64(binary.NativeEndian.Uint32(e[4:]))
	value := key + uint64(binary.NativeEndian.Uint32(e[8:]))
	end := value + uint64(binary.NativeEndian.Uint32(e[12:]))
	if found := t.file[key:value:value]; bytes.Equal(found, l.Key) {
		l.Key, l.Value = found, t.file[value:end:end]
	}
}

// element returns the offset of an element of the page in the file.
func (l *Lookup) element(n uint32) uint64 { return l.page + pageHeader + uint64(n)*pageElement }
