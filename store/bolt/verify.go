package bolt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/bolt/pages"
	"github.com/google/uuid"
	"golang.org/x/mod/sumdb/tlog"
)

// verifyStep is the number of records per read transaction: enough to keep all cores busy, but few enough not to pin
// old pages, which would make the file grow under load.
const verifyStep = 512

var (
	errEnough = errors.New("enough")
	errLost   = errors.New("cannot be read")
)

// Verify implements journal.Journal. In addition to the leaves, it checks the file: that each page is readable and is
// either used once or free, each stored hash, that lookup buckets and records agree in both directions, and the API
// keys. It continues after unreadable parts. Appends may run at the same time: Verify checks the journal as it was at
// the beginning.
func (j *Journal) Verify(ctx context.Context, opts audit.Options) (audit.Report, error) {
	a, err := audit.New(j.store.opts.Verifier, opts.Earlier)
	if err != nil {
		return audit.Report{}, err
	}
	a.Expect(opts)
	before, _ := j.store.keys.List(ctx) // from memory: it never fails
	v := &auditor{ctx: ctx, store: j.store, head: j.store.head.Load(), audit: a, progress: opts.Progress,
		skip: opts.SkipRecords}
	if v.progress == nil {
		v.progress = func(done, total int64) {}
	}
	for _, pass := range []func() error{v.checkFile, v.records, v.surplus} {
		if err := pass(); err != nil {
			return audit.Report{}, err
		}
	}
	now, _ := j.store.keys.List(ctx)
	a.Keys(before, now)
	return a.Finish(v.checkpoint), nil
}

// auditor is one run of Verify.
type auditor struct {
	ctx      context.Context
	store    *Store
	head     *head // at the beginning; nil if the file is damaged
	audit    *audit.Audit
	progress func(done, total int64)
	skip     bool // audit.Options.SkipRecords

	// Set by file.
	checkpoint []byte
	size       int64            // of the journal that is verified
	flushed    int64            // number of its records in the file; the others are in the tail
	count      map[string]int64 // entries per lookup bucket
	runs       map[string]*runAudit
	beyond     map[string]int64 // entries of records and hashes beyond the checkpoint
	unreadable bool             // a page was unreadable

	// Set by records.
	matched map[string]int64 // correct entries per lookup bucket
	tainted []bool           // for each hash of the tree's right edge: a wrong stored hash in or below it was reported
}

func (v *auditor) report(index int64, id uuid.UUID, part, format string, args ...any) {
	v.audit.Report(audit.Damage{Index: index, ID: id, Part: part, Detail: fmt.Sprintf(format, args...)})
}

// pages runs fn in a read transaction.
func (v *auditor) pages(fn func(p *pages.Reader) error) error {
	if v.ctx.Err() != nil {
		return timeout(v.ctx, "verify")
	}
	return v.store.pages(fn)
}

// checkFile checks all pages, their use, and the form of each entry.
func (v *auditor) checkFile() error {
	v.count, v.beyond, v.matched = make(map[string]int64), make(map[string]int64), make(map[string]int64)
	v.runs = map[string]*runAudit{bucketByHash: newRunAudit(), bucketByUnspendable: newRunAudit()}
	for {
		err := v.pages(func(p *pages.Reader) error {
			p.Used = make([]bool, p.Limit())
			free, err := p.FreePages()
			if errors.Is(err, pages.ErrStale) {
				return err
			}
			if err != nil {
				v.lostPage(-1, fmt.Errorf("free list: %w", err))
			}
			return v.fileAt(p, free)
		})
		// Two commits came in between: retry with a newer state.
		if !errors.Is(err, pages.ErrStale) {
			return err
		}
	}
}

func (v *auditor) lostPage(index int64, err error) {
	v.unreadable = true
	v.report(index, uuid.Nil, "page", "%s", err)
}

func (v *auditor) fileAt(p *pages.Reader, free []uint64) error {
	found, err := p.Buckets()
	if err != nil {
		v.lostPage(-1, err)
		return nil
	}
	v.readMeta(p)
	if v.store.damage != nil && errors.Is(v.store.damage, errWAL) {
		v.report(-1, uuid.Nil, "write-ahead log", "%s", v.store.damage)
	}
	for _, name := range buckets {
		if _, ok := found[name]; !ok {
			v.report(-1, uuid.Nil, "page", "bucket %s is missing", name)
			continue
		}
		if err := v.bucket(p, name); err != nil {
			return err
		}
	}
	if n := v.beyond[bucketRecords]; n > 0 {
		v.report(-1, uuid.Nil, "record", "the file has %d records beyond the checkpoint's %d", n, v.flushed)
	}
	if n := v.beyond[bucketHashes]; n > 0 {
		v.report(-1, uuid.Nil, "tree", "the file has %d stored hashes too many for a tree of %d records", n, v.flushed)
	}
	for name := range found {
		if !slices.Contains(buckets[:], name) {
			v.report(-1, uuid.Nil, "page", "unknown bucket %q", name)
		}
	}
	v.freePages(p, free)
	return nil
}

// readMeta determines the size to verify. If the checkpoint is unreadable, that is the number of records in the file;
// Audit.Finish reports the checkpoint.
func (v *auditor) readMeta(p *pages.Reader) {
	if err := v.store.checkMeta(p); err != nil {
		v.report(-1, uuid.Nil, "page", "%s", err)
	}
	var err error
	if v.checkpoint, err = p.Get(bucketMeta, []byte(metaCheckpoint)); err != nil {
		v.report(-1, uuid.Nil, "checkpoint", "%s", err)
	}
	tree, err := journal.OpenCheckpoint(v.checkpoint, v.store.opts.Verifier)
	if err == nil {
		v.flushed, v.size = tree.N, tree.N
		if h := v.head; h != nil && h.tree.N > tree.N {
			v.size, v.checkpoint = h.tree.N, h.checkpoint
		}
		return
	}
	seen := p.Used
	p.Used = nil // this walk must not count pages
	_ = p.Walk(bucketRecords, nil, func(name, _ []byte) error {
		if i, err := decodeIndex(name); err == nil {
			v.flushed, v.size = i+1, i+1
		}
		return nil
	}, func(_, _ []byte, _ error) error { return nil })
	p.Used = seen
}

// bucket checks the pages of a bucket and the form of its entries.
func (v *auditor) bucket(p *pages.Reader, bucket string) error {
	visited := 0
	visit := func(name, value []byte) error {
		if visited++; visited%1024 == 0 && v.ctx.Err() != nil {
			return timeout(v.ctx, "verify")
		}
		v.entry(bucket, name, value)
		return nil
	}
	return p.Walk(bucket, nil, visit, func(lo, hi []byte, err error) error {
		v.lostPage(firstRecord(bucket, lo),
			fmt.Errorf("bucket %s: %w: entries from %s on are lost", bucket, err, entryName(bucket, lo)))
		return nil
	})
}

// firstRecord returns the first record in an unreadable part of a bucket, or -1.
func firstRecord(bucket string, lo []byte) int64 {
	i, err := decodeIndex(lo)
	switch {
	case err != nil && lo != nil:
		return -1
	case bucket == bucketRecords:
		return i
	case bucket == bucketHashes:
		level, n := tlog.SplitStoredHashIndex(i)
		return n << level
	}
	return -1
}

// entryName describes an entry for people.
func entryName(bucket string, name []byte) string {
	if i, err := decodeIndex(name); err == nil && (bucket == bucketRecords || bucket == bucketHashes) {
		return fmt.Sprint(i)
	}
	if len(name) == 0 {
		return "the first entry"
	}
	return fmt.Sprintf("%q", name)
}

// entry checks the form of one entry and counts it.
func (v *auditor) entry(bucket string, name, value []byte) {
	switch bucket {
	case bucketMeta:
		if n := string(name); n != metaVersion && n != metaLog && n != metaCheckpoint {
			v.report(-1, uuid.Nil, "page", "unknown meta entry %q", name)
		}
	case bucketKeys:
		if _, err := decodeKey(name, value); err != nil {
			v.report(-1, uuid.Nil, "key", "%s", err)
		}
	case bucketRecords:
		if i, err := decodeIndex(name); err != nil || i >= v.flushed {
			v.beyond[bucket]++
		}
	case bucketHashes:
		if i, err := decodeIndex(name); err != nil || i >= tlog.StoredHashCount(v.flushed) {
			v.beyond[bucket]++
		}
	case bucketByHash, bucketByUnspendable:
		v.chunk(bucket, name, value)
	default:
		v.count[bucket]++
		if i, err := recordOf(bucket, name, value); err != nil || i >= v.flushed {
			v.report(-1, uuid.Nil, "lookup", "%s: entry %x refers to a missing record", bucket, name)
		}
	}
}

// freePages checks that each page is either used or free.
func (v *auditor) freePages(p *pages.Reader, free []uint64) {
	for _, id := range free {
		switch {
		case id < 2 || id >= p.Limit():
			v.report(-1, uuid.Nil, "page", "page %d: listed as free, but outside the file's %d pages", id, p.Limit())
		case p.Used[id]:
			v.report(-1, uuid.Nil, "page", "page %d: listed as free, but in use or listed twice", id)
		default:
			p.Used[id] = true
		}
	}
	if v.unreadable {
		return // pages below an unreadable one are unknown
	}
	for id := uint64(2); id < p.Limit(); id++ {
		if !p.Used[id] {
			v.report(-1, uuid.Nil, "page", "page %d: neither in use nor free", id)
		}
	}
}

// block is verifyStep records.
type block struct {
	first          int64
	leaves, hashes [][]byte // the hashes that the records complete
	checked        []audit.Leaf
}

// records checks all records in order, with their hashes and lookups.
func (v *auditor) records() error {
	err := audit.Ahead((v.size+verifyStep-1)/verifyStep, func(n int64) (b block, err error) {
		b.first = n * verifyStep
		end := min(v.size, b.first+verifyStep)
		err = v.pages(func(p *pages.Reader) error {
			hashStart := tlog.StoredHashCount(b.first)
			b.leaves = v.read(p, bucketRecords, b.first, end)
			b.hashes = v.read(p, bucketHashes, hashStart, tlog.StoredHashCount(end))
			v.addTail(b.first, b.leaves, hashStart, b.hashes)
			return nil
		})
		b.checked = v.audit.Check(b.leaves)
		return b, err
	}, func(_ int64, b block) error {
		v.progress(b.first, v.size)
		return v.pages(func(p *pages.Reader) error {
			v.add(p, b)
			return nil
		})
	})
	if err == nil {
		v.progress(v.size, v.size)
	}
	return err
}

func (v *auditor) add(p *pages.Reader, b block) {
	for k, c := range b.checked {
		n := b.first + int64(k)
		stored := b.hashes[tlog.StoredHashIndex(0, n)-tlog.StoredHashCount(b.first):]
		if b.leaves[k] == nil {
			c = lostLeaf(stored[0])
		}
		v.tree(n, c.ID(), v.audit.Add(c), stored)
		if n < v.flushed {
			v.lookups(p, n, c.Entry)
		}
	}
}

// read returns the values of a bucket from first to end, which is exclusive. Unreadable values are nil.
func (v *auditor) read(p *pages.Reader, bucket string, first, end int64) [][]byte {
	values := make([][]byte, end-first)
	visit := func(name, value []byte) error {
		i, err := decodeIndex(name)
		if err == nil && i >= end {
			return errEnough
		}
		if err == nil && i >= first {
			values[i-first] = value
		}
		return nil
	}
	// file has reported the errors.
	_ = p.Walk(bucket, encodeIndex(first), visit, func(_, hi []byte, _ error) error {
		if hi != nil && bytes.Compare(hi, encodeIndex(end)) >= 0 {
			return errEnough
		}
		return nil
	})
	return values
}

// addTail adds the leaves of the tail.
func (v *auditor) addTail(first int64, leaves [][]byte, hashStart int64, hashes [][]byte) {
	for n := max(first, v.flushed); n < first+int64(len(leaves)); n++ {
		leaves[n-first] = v.head.entry(n).Leaf
		for i := tlog.StoredHashIndex(0, n); i < tlog.StoredHashIndex(0, n+1); i++ {
			hashes[i-hashStart] = v.head.hash(i)[:]
		}
	}
}

// lostLeaf replaces an unreadable record. Its stored hash stands in for it, so that the rest of the tree can be
// checked.
func lostLeaf(stored []byte) audit.Leaf {
	var hash tlog.Hash
	copy(hash[:], stored)
	return audit.LostLeaf(hash, errLost)
}

// tree compares the hashes that record n completes with the stored ones. A wrong hash makes those above it wrong, too:
// only the lowest is reported.
func (v *auditor) tree(n int64, id uuid.UUID, completed []tlog.Hash, stored [][]byte) {
	tainted := false
	for level := range completed {
		if level > 0 {
			last := len(v.tainted) - 1
			tainted = tainted || v.tainted[last]
			v.tainted = v.tainted[:last]
		}
		if bytes.Equal(stored[level], completed[level][:]) {
			continue
		}
		if !tainted {
			v.wrongHash(n, id, level, stored[level])
		}
		tainted = true
	}
	v.tainted = append(v.tainted, tainted)
}

func (v *auditor) wrongHash(n int64, id uuid.UUID, level int, stored []byte) {
	wrong := "differs from the stored one"
	if stored == nil {
		wrong = "is missing"
	}
	if level == 0 {
		v.report(n, id, "tree", "the record's hash %s", wrong)
		return
	}
	v.report(n, id, "tree", "the hash of records %d to %d, at level %d, %s", n+1-1<<level, n, level, wrong)
}
