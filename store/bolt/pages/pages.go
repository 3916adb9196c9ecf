// Package pages reads a bbolt file without trusting its contents. If the file is damaged, bbolt may panic, fault or
// loop forever; this package returns an error. It reads the file instead of the mapping, so a failing disk is an error,
// too. Use it to report the damage in arbitrary files, and bbolt for all other reads. Tree is the exception: it trusts
// the file, and is faster than bbolt.
package pages

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"sort"

	"go.etcd.io/bbolt"
)

// The parts of the bbolt file format that are needed to read a file: version 2, in the machine's byte order.
const (
	pageHeader     = 16 // id 8, flags 2, count 2, overflow 4
	pageElement    = 16 // leaf: flags 4, position 4, key size 4, value size 4; branch: position 4, key size 4, page 8
	bucketHeader   = 16 // root page 8, sequence 8
	flagBranch     = 0x01
	flagLeaf       = 0x02
	flagFreelist   = 0x10
	flagBucket     = 0x01 // flag of a leaf element
	maxDepth       = 32   // bound on the depth of a B+ tree; real files need far less
	maxCachedPages = 4096
	maxOverflow    = 1 << 20

	metaFreelist = pageHeader + 32 // offsets in a meta page
	metaTxid     = pageHeader + 48
	metaChecksum = pageHeader + 56

	metaMagic = 0xED0CDAED
)

// The errors, for errors.Is.
var (
	ErrDamaged  = errors.New("damaged")
	ErrNoBucket = errors.New("bucket not found")
	ErrStale    = errors.New("the file has a newer transaction")

	ErrNoEntry = errors.New("entry not found")
)

// CheckMeta returns an error unless one of the file's first two pages is a valid meta page. If neither is valid, bbolt
// panics at the beginning of a transaction, with its locks held.
func CheckMeta(file io.ReaderAt, pageSize int64) (err error) {
	buf := make([]byte, metaChecksum+8)
	for page := range int64(2) {
		if _, err = file.ReadAt(buf, page*pageSize); err != nil {
			continue
		}
		sum := fnv.New64a()
		sum.Write(buf[pageHeader:metaChecksum])
		if binary.NativeEndian.Uint32(buf[pageHeader:]) == metaMagic &&
			binary.NativeEndian.Uint64(buf[metaChecksum:]) == sum.Sum64() {
			return nil
		}
		err = errors.New("both meta pages are damaged")
	}
	return err
}

// Reader reads one state of a file. It is valid while the transaction given to New is open, because bbolt does not
// reuse pages that an open transaction can see. It is not safe for concurrent use.
type Reader struct {
	file  io.ReaderAt
	size  int    // size of a page in bytes
	limit uint64 // pages from here on are not in use
	root  uint64
	txid  uint64
	found map[string]Bucket
	cache map[uint64]*page

	// Used reports by id which pages are in use. If it is not nil, it must have Limit elements; Walk and FreePages set
	// the elements of the pages that they read.
	Used []bool
}

// Bucket is the location of a bucket: its root page, or the parent's entry for a small inline bucket.
type Bucket struct {
	root   uint64
	inline []byte
}

// page is a page that is valid so far that its elements can be read.
type page struct {
	id    uint64
	flags uint16
	count int
	buf   []byte // header and overflow pages included
}

// New returns a Reader of the state that tx sees. file must be the file that tx's database has open.
func New(file io.ReaderAt, tx *bbolt.Tx) *Reader {
	size := tx.DB().Info().PageSize
	return &Reader{
		file: file, size: size, limit: uint64(tx.Size()) / uint64(size),
		root: uint64(tx.Cursor().Bucket().Root()), txid: uint64(tx.ID()),
		cache: make(map[uint64]*page),
	}
}

// Limit returns one more than the highest id that a page in use can have.
func (r *Reader) Limit() uint64 { return r.limit }

// load reads the page with the given id and its overflow pages.
func (r *Reader) load(id uint64) (*page, error) {
	if id < 2 || id >= r.limit {
		return nil, fmt.Errorf("page %d: outside the file's %d pages", id, r.limit)
	}
	buf := make([]byte, r.size)
	if _, err := r.file.ReadAt(buf, int64(id)*int64(r.size)); err != nil {
		return nil, fmt.Errorf("page %d: %w", id, err)
	}
	if got := binary.NativeEndian.Uint64(buf); got != id {
		return nil, fmt.Errorf("page %d: the header has page number %d", id, got)
	}
	overflow := uint64(binary.NativeEndian.Uint32(buf[12:]))
	if overflow > maxOverflow || id+overflow >= r.limit {
		return nil, fmt.Errorf("page %d: the header claims %d overflow pages", id, overflow)
	}
	if overflow > 0 {
		buf = append(buf, make([]byte, int(overflow)*r.size)...)
		if _, err := r.file.ReadAt(buf[r.size:], int64(id+1)*int64(r.size)); err != nil {
			return nil, fmt.Errorf("page %d: %w", id, err)
		}
	}
	return parsePage(id, buf)
}

func parsePage(id uint64, buf []byte) (*page, error) {
	if len(buf) < pageHeader {
		return nil, fmt.Errorf("page %d: only %d bytes", id, len(buf))
	}
	pg := &page{
		id: id, buf: buf,
		flags: binary.NativeEndian.Uint16(buf[8:]),
		count: int(binary.NativeEndian.Uint16(buf[10:])),
	}
	if pg.flags != flagBranch && pg.flags != flagLeaf {
		return nil, fmt.Errorf("page %d: unknown page type (%#x)", id, pg.flags)
	}
	if pageHeader+pg.count*pageElement > len(buf) || pg.flags == flagBranch && pg.count == 0 {
		return nil, fmt.Errorf("page %d: claims %d entries", id, pg.count)
	}
	if pg.count > 0 {
		if start, _, _ := pg.span(0); start != uint64(pageHeader+pg.count*pageElement) { // bbolt leaves no gap here
			return nil, fmt.Errorf("page %d: claims %d entries, but the first begins at byte %d", id, pg.count, start)
		}
	}
	for i := range pg.count {
		if err := pg.checkElement(i); err != nil {
			return nil, fmt.Errorf("page %d: entry %d: %w", id, i, err)
		}
		if i > 0 && bytes.Compare(pg.key(i-1), pg.key(i)) >= 0 {
			return nil, fmt.Errorf("page %d: entry %d: out of order", id, i)
		}
	}
	return pg, nil
}

func (pg *page) element(i int) []byte { return pg.buf[pageHeader+i*pageElement:] }

// span returns the offset of an element's key in the page, and the sizes of key and value.
func (pg *page) span(i int) (start, ksize, vsize uint64) {
	e := pg.element(i)
	word := func(offset int) uint64 { return uint64(binary.NativeEndian.Uint32(e[offset:])) }
	start = uint64(pageHeader + i*pageElement)
	if pg.flags == flagBranch {
		return start + word(0), word(4), 0
	}
	return start + word(4), word(8), word(12)
}

func (pg *page) checkElement(i int) error {
	start, ksize, vsize := pg.span(i)
	if ksize == 0 || start < uint64(pageHeader+pg.count*pageElement) || start+ksize+vsize > uint64(len(pg.buf)) {
		return errors.New("extends beyond its page")
	}
	return nil
}

func (pg *page) key(i int) []byte {
	start, ksize, _ := pg.span(i)
	return pg.buf[start : start+ksize : start+ksize]
}

func (pg *page) value(i int) []byte {
	start, ksize, vsize := pg.span(i)
	return pg.buf[start+ksize : start+ksize+vsize : start+ksize+vsize]
}

// child returns the page that a branch element points to.
func (pg *page) child(i int) uint64 { return binary.NativeEndian.Uint64(pg.element(i)[8:]) }

// leafFlags returns the flags of a leaf element.
func (pg *page) leafFlags(i int) uint32 { return binary.NativeEndian.Uint32(pg.element(i)) }

// search returns the first element with a key at or behind the given key.
func (pg *page) search(key []byte) int {
	return sort.Search(pg.count, func(i int) bool { return bytes.Compare(pg.key(i), key) >= 0 })
}

// branchFor returns the branch element for the subtree that contains, or would contain, the key.
func (pg *page) branchFor(key []byte) int {
	i := pg.search(key)
	if i < pg.count && bytes.Equal(pg.key(i), key) {
		return i
	}
	return max(0, i-1)
}

// within reports whether all keys are at least lo and below hi; nil means no bound.
func (pg *page) within(lo, hi []byte) bool {
	return pg.count == 0 || bytes.Compare(pg.key(0), lo) >= 0 &&
		(hi == nil || bytes.Compare(pg.key(pg.count-1), hi) < 0)
}

// bounds returns the bounds of the keys under a branch element. lo and hi are the bounds of the branch.
func (pg *page) bounds(i int, lo, hi []byte) (childLo, childHi []byte) {
	childLo, childHi = pg.key(i), hi
	if i == 0 {
		childLo = lo
	}
	if i+1 < pg.count {
		childHi = pg.key(i + 1)
	}
	return childLo, childHi
}

// walker is one walk through one tree.
type walker struct {
	reader *Reader
	from   []byte // nil means from the start
	bucket bool   // whether the entries must be buckets
	visit  func(pg *page, i int) error
	bad    func(lo, hi []byte, err error) error
}

// Walk calls visit with all entries of a bucket from a key on, in order. If a part of the tree is unreadable, Walk
// calls bad with the error and the keys between which entries are lost (nil means the start or the end), and continues
// after them. If bad is nil, Walk returns the error. An error of visit or bad ends the walk.
func (r *Reader) Walk(bucket string, from []byte, visit func(key, value []byte) error,
	bad func(lo, hi []byte, err error) error) error {
	ref, err := r.bucket(bucket)
	if err != nil {
		return err
	}
	w := walker{reader: r, from: from, bad: bad, visit: func(pg *page, i int) error {
		return visit(pg.key(i), pg.value(i))
	}}
	if err := w.bucketAt(ref); err != nil {
		return fmt.Errorf("bucket %s: %w", bucket, err)
	}
	return nil
}

func (w *walker) bucketAt(ref Bucket) error {
	if ref.inline == nil {
		return w.tree(ref.root, nil, nil, 0)
	}
	pg, err := parsePage(0, ref.inline)
	if err != nil {
		return w.lost(nil, nil, err)
	}
	return w.leaf(pg, nil, nil)
}

func (w *walker) lost(lo, hi []byte, err error) error {
	if w.bad == nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return w.bad(lo, hi, err)
}

// tree walks the tree at a page. The keys must be at least lo and below hi.
func (w *walker) tree(id uint64, lo, hi []byte, depth int) error {
	pg, err := w.reader.load(id)
	switch {
	case err != nil:
		return w.lost(lo, hi, err)
	case depth > maxDepth:
		return w.lost(lo, hi, fmt.Errorf("page %d: the tree is too deep or has a cycle", id))
	case !pg.within(lo, hi):
		return w.lost(lo, hi, fmt.Errorf("page %d: the keys contradict its parent page", id))
	case !w.reader.use(pg):
		return w.lost(lo, hi, fmt.Errorf("page %d: is used twice", id))
	case pg.flags == flagLeaf:
		return w.leaf(pg, lo, hi)
	}
	first := 0
	if w.from != nil {
		first = pg.branchFor(w.from)
	}
	for i := first; i < pg.count; i++ {
		childLo, childHi := pg.bounds(i, lo, hi)
		if err := w.tree(pg.child(i), childLo, childHi, depth+1); err != nil {
			return err
		}
	}
	return nil
}

func (w *walker) leaf(pg *page, lo, hi []byte) error {
	if pg.flags != flagLeaf {
		return w.lost(lo, hi, fmt.Errorf("page %d: is not a leaf", pg.id))
	}
	for i := pg.search(w.from); i < pg.count; i++ {
		if isBucket := pg.leafFlags(i) == flagBucket; isBucket != w.bucket || !isBucket && pg.leafFlags(i) != 0 {
			if err := w.lost(pg.key(i), nil,
				fmt.Errorf("page %d: entry %d: unknown entry type (%#x)", pg.id, i, pg.leafFlags(i))); err != nil {
				return err
			}
			continue
		}
		if err := w.visit(pg, i); err != nil {
			return err
		}
	}
	return nil
}

// use marks a page as in use, and reports whether it was unmarked before.
func (r *Reader) use(pg *page) bool {
	if r.Used == nil {
		return true
	}
	for id := pg.id; id < pg.id+uint64(len(pg.buf)/r.size); id++ {
		if r.Used[id] {
			return false
		}
		r.Used[id] = true
	}
	return true
}

// Buckets returns the file's top-level buckets by name.
func (r *Reader) Buckets() (map[string]Bucket, error) {
	if r.found != nil {
		return r.found, nil
	}
	found := make(map[string]Bucket)
	w := walker{reader: r, bucket: true, visit: func(pg *page, i int) error {
		value := pg.value(i)
		if len(value) < bucketHeader {
			return fmt.Errorf("%w: bucket %q: the entry has %d bytes", ErrDamaged, pg.key(i), len(value))
		}
		ref := Bucket{root: binary.NativeEndian.Uint64(value)}
		if ref.root == 0 {
			ref.inline = value[bucketHeader:]
		}
		found[string(pg.key(i))] = ref
		return nil
	}}
	if err := w.tree(r.root, nil, nil, 0); err != nil {
		return nil, fmt.Errorf("list of buckets: %w", err)
	}
	r.found = found
	return found, nil
}

func (r *Reader) bucket(name string) (Bucket, error) {
	found, err := r.Buckets()
	if err != nil {
		return Bucket{}, err
	}
	ref, ok := found[name]
	if !ok {
		return Bucket{}, fmt.Errorf("%w: bucket %s: %w", ErrDamaged, name, ErrNoBucket)
	}
	return ref, nil
}

// Get returns the value of a key. All errors wrap ErrDamaged, also if the key does not exist.
func (r *Reader) Get(bucket string, key []byte) ([]byte, error) {
	value, err := r.lookup(bucket, key)
	if err != nil {
		return nil, fmt.Errorf("%w: bucket %s: %w", ErrDamaged, bucket, err)
	}
	return value, nil
}

func (r *Reader) lookup(bucket string, key []byte) ([]byte, error) {
	ref, err := r.bucket(bucket)
	if err != nil {
		return nil, err
	}
	var pg *page
	if ref.inline != nil {
		pg, err = parsePage(0, ref.inline)
	} else {
		pg, err = r.cached(ref.root)
	}
	for depth := 0; err == nil && pg.flags == flagBranch; depth++ {
		if depth > maxDepth {
			return nil, fmt.Errorf("page %d: the tree is too deep or has a cycle", pg.id)
		}
		pg, err = r.cached(pg.child(pg.branchFor(key)))
	}
	if err != nil {
		return nil, err
	}
	i := pg.search(key)
	if i == pg.count || !bytes.Equal(pg.key(i), key) || pg.leafFlags(i) != 0 {
		return nil, ErrNoEntry
	}
	return pg.value(i), nil
}

func (r *Reader) cached(id uint64) (*page, error) {
	if pg, ok := r.cache[id]; ok {
		return pg, nil
	}
	pg, err := r.load(id)
	if err != nil {
		return nil, err
	}
	if len(r.cache) == maxCachedPages {
		clear(r.cache)
	}
	r.cache[id] = pg
	return pg, nil
}

// FreePages returns the ids in the free list, and marks the free list's own pages as in use. If two commits have
// happened since the transaction began, the location of its free list is overwritten, and the error is ErrStale.
func (r *Reader) FreePages() ([]uint64, error) {
	id, err := r.freelistPage()
	if err != nil {
		return nil, err
	}
	if id < 2 || id >= r.limit {
		return nil, fmt.Errorf("page %d: outside the file's %d pages", id, r.limit)
	}
	section := io.NewSectionReader(r.file, int64(id)*int64(r.size), int64(r.limit-id)*int64(r.size))
	header := make([]byte, pageHeader)
	if _, err := io.ReadFull(section, header); err != nil {
		return nil, fmt.Errorf("page %d: %w", id, err)
	}
	overflow := uint64(binary.NativeEndian.Uint32(header[12:]))
	if got := binary.NativeEndian.Uint64(header); got != id || binary.NativeEndian.Uint16(header[8:]) != flagFreelist ||
		id+overflow >= r.limit {
		return nil, fmt.Errorf("page %d: is not a free list", id)
	}
	count := uint64(binary.NativeEndian.Uint16(header[10:]))
	ids := make([]byte, (overflow+1)*uint64(r.size)-pageHeader)
	if _, err := io.ReadFull(section, ids); err != nil {
		return nil, fmt.Errorf("page %d: %w", id, err)
	}
	if count == 0xffff { // too many for the header: the first element is the count
		count, ids = binary.NativeEndian.Uint64(ids), ids[8:]
	}
	if count > uint64(len(ids)/8) {
		return nil, fmt.Errorf("page %d: claims %d free pages", id, count)
	}
	for i := id; r.Used != nil && i <= id+overflow; i++ {
		r.Used[i] = true
	}
	free := make([]uint64, count)
	for i := range free {
		free[i] = binary.NativeEndian.Uint64(ids[8*i:])
	}
	return free, nil
}

// freelistPage returns the page of the free list, from the transaction's meta page.
func (r *Reader) freelistPage() (uint64, error) {
	buf := make([]byte, metaChecksum+8)
	for id := range int64(2) {
		if _, err := r.file.ReadAt(buf, id*int64(r.size)); err != nil {
			return 0, fmt.Errorf("page %d: %w", id, err)
		}
		sum := fnv.New64a()
		sum.Write(buf[pageHeader:metaChecksum])
		if binary.NativeEndian.Uint64(buf[metaTxid:]) == r.txid &&
			binary.NativeEndian.Uint64(buf[metaChecksum:]) == sum.Sum64() {
			return binary.NativeEndian.Uint64(buf[metaFreelist:]), nil
		}
	}
	return 0, ErrStale
}
