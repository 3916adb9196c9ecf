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

// Tree finds several keys of a bucket at once, in the mapped file. A search of its own for each key waits for memory, or for the
// disk, at nearly every step; steps of several searches wait together.
//
// It is valid until the bucket's transaction ends, which must be one that only reads. It trusts the file as bbolt does: over a
// damaged one it panics, or faults.
type Tree struct {
	bucket *bbolt.Bucket
	file   []byte
	size   uint64 // of a page
}

// Lookup is a key that is looked for.
type Lookup struct {
	Key   []byte // then the file's own copy of it, where it is found
	Value []byte // what is found: nil for nothing

	id        uint64 // of the page that the search has come to
	page      uint64 // where that begins in the file
	low, high uint32 // between which elements of it the search goes on
}

// TreeOf returns the tree of a bucket.
func TreeOf(b *bbolt.Bucket) Tree {
	info := b.Tx().DB().Info()
	start := *(*unsafe.Pointer)(unsafe.Pointer(&info.Data)) // no memory of Go's: as vet wants it
	return Tree{bucket: b, file: unsafe.Slice((*byte)(start), b.Tx().Size()), size: uint64(info.PageSize)}
}

// Find looks for all of them.
func (t *Tree) Find(all []Lookup) {
	root := uint64(t.bucket.Root())
	switch {
	case len(all) == 0:
		return
	case root == 0: // a small bucket is inside the entry that names it
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
				t.take(&all[i])
			}
			return
		}
		t.search(all, flagBranch)
		for i := range all {
			l := &all[i]
			l.id = binary.NativeEndian.Uint64(t.file[l.element(l.low-1)+8:])
		}
	}
	panic("a tree is too deep, or goes in a circle")
}

func (t *Tree) findInline(all []Lookup) {
	cursor := t.bucket.Cursor()
	for i := range all {
		if k, v := cursor.Seek(all[i].Key); bytes.Equal(k, all[i].Key) {
			all[i].Key, all[i].Value = k, v
		}
	}
}

// open reads the headers of the pages that the searches have come to, and returns of which kind all of them are.
func (t *Tree) open(all []Lookup) (kind uint16) {
	began, asked := time.Now(), false
	for i := range all {
		l := &all[i]
		l.page = l.id * t.size
		header := t.file[l.page : l.page+pageHeader]
		id, flags := binary.NativeEndian.Uint64(header), binary.NativeEndian.Uint16(header[8:])
		l.low, l.high = 0, uint32(binary.NativeEndian.Uint16(header[10:]))
		if flags == flagBranch {
			l.low = 1 // what is before the second key is under the first
		}
		if i == 0 && (flags == flagBranch || flags == flagLeaf) {
			kind = flags
		}
		if id != l.id || flags != kind || l.low > l.high {
			panic(fmt.Sprintf("page %d calls itself page %d, of the kind %#x, with %d entries", l.id, id, flags, l.high))
		}
		if i%lookEvery == 0 && !asked {
			now := time.Now()
			if asked = now.Sub(began) > fromDisk; asked {
				t.ask(all)
			}
			began = now
		}
	}
	return kind
}

const (
	// fromDisk is how long some headers take only where the disk has to give one of them.
	fromDisk = 40 * time.Microsecond
	// lookEvery is after how many headers the clock is read.
	lookEvery = 8
)

// ask has the kernel read all pages that the searches have come to, at the same time. Else each fault would read the 4 KiB that it
// wants, one after the other: bbolt asks for that.
func (t *Tree) ask(all []Lookup) {
	for i := range all {
		start := all[i].id * t.size
		_ = unix.Madvise(t.file[start&^uint64(os.Getpagesize()-1):start+t.size], unix.MADV_WILLNEED) // only advice
	}
}

// search sets low to the first element whose key is not before the wanted one, of a branch to the first that is behind it.
func (t *Tree) search(all []Lookup, kind uint16) {
	place, before := uint64(4), 0 // where an element says where its key is, and below what that compares
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

// compareKey compares the key of an element with another.
func compareKey(file []byte, element, place uint64, other []byte) int {
	e := file[element+place:][:8]
	key := element + uint64(binary.NativeEndian.Uint32(e))
	return bytes.Compare(file[key:key+uint64(binary.NativeEndian.Uint32(e[4:]))], other)
}

// take takes what the search has come to in a leaf, if that is the key.
func (t *Tree) take(l *Lookup) {
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

// element returns where an element of the page begins in the file.
func (l *Lookup) element(n uint32) uint64 { return l.page + pageHeader + uint64(n)*pageElement }
