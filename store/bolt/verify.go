package bolt

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/store/bolt/pages"
	"github.com/google/uuid"
	"golang.org/x/mod/sumdb/tlog"
)

// verifyStep is how many records are checked in one transaction: enough to keep all cores busy, few enough that
// checking a long journal keeps no old pages in use, which would make the file grow under load.
const verifyStep = 512

var (
	errEnough = errors.New("enough")
	errLost   = errors.New("cannot be read")
)

// Verify implements appliance.Journal. Beyond the leaves, it checks the file itself: each page, that none is used twice
// or is both used and free, each stored hash, and that the lookup buckets and the records agree both ways. It goes on
// after what it cannot read. Appends may go on meanwhile; what it checks is the journal as it was at the beginning.
func (j *Journal) Verify(ctx context.Context, opts appliance.VerifyOptions) (appliance.AuditReport, error) {
	audit, err := appliance.NewAudit(j.store.opts.Verifier, opts.Earlier)
	if err != nil {
		return appliance.AuditReport{}, err
	}
	audit.Expect(opts)
	before, _ := j.store.keys.List(ctx) // from memory: it never fails
	v := &auditor{ctx: ctx, store: j.store, head: j.store.head.Load(), audit: audit, progress: opts.Progress}
	if v.progress == nil {
		v.progress = func(done, total int64) {}
	}
	for _, pass := range []func() error{v.file, v.records, v.surplus} {
		if err := pass(); err != nil {
			return appliance.AuditReport{}, err
		}
	}
	now, _ := j.store.keys.List(ctx)
	audit.Keys(before, now)
	return audit.Finish(v.checkpoint), nil
}

// auditor is one run of Verify.
type auditor struct {
	ctx      context.Context
	store    *Store
	head     *head // as it was at the beginning, with what the file may lack; nil where the file is damaged
	audit    *appliance.Audit
	progress func(done, total int64)

	// Found by file.
	checkpoint []byte
	size       int64            // of the journal that is verified
	filed      int64            // how many of its records are in the file; the others are the tail of head
	count      map[string]int64 // entries of the lookup buckets
	runs       map[string]*runAudit
	beyond     map[string]int64 // entries of records and hashes that the checkpoint does not cover
	unreadable bool             // a page was

	// Found by records.
	matched map[string]int64 // entries of the lookup buckets that are as the records say
	tainted []bool           // for each hash of the tree's right edge: a stored hash in or below it is wrong, and reported
}

func (v *auditor) report(index int64, id uuid.UUID, part, format string, args ...any) {
	v.audit.Report(appliance.Damage{Index: index, ID: id, Part: part, Detail: fmt.Sprintf(format, args...)})
}

// pages runs fn on a state of the file.
func (v *auditor) pages(fn func(p *pages.Reader) error) error {
	if v.ctx.Err() != nil {
		return timeout(v.ctx, "verify")
	}
	return v.store.pages(fn)
}

// file checks the pages of the file, what they are used for, and the form of every entry.
func (v *auditor) file() error {
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
		// Two commits between two lines above: try again, from a newer state.
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
		v.report(-1, uuid.Nil, "record", "there are %d records more than the %d that the checkpoint covers", n, v.filed)
	}
	if n := v.beyond[bucketHashes]; n > 0 {
		v.report(-1, uuid.Nil, "tree", "there are %d stored hashes more than a tree of %d records has", n, v.filed)
	}
	for name := range found {
		if !slices.Contains(buckets[:], name) {
			v.report(-1, uuid.Nil, "page", "bucket %q is of no known use", name)
		}
	}
	v.freePages(p, free)
	return nil
}

// readMeta finds out which journal is to be verified. Where the checkpoint says nothing, it is all records there are;
// appliance.Audit.Finish reports the checkpoint.
func (v *auditor) readMeta(p *pages.Reader) {
	if err := v.store.checkMeta(p); err != nil {
		v.report(-1, uuid.Nil, "page", "%s", err)
	}
	var err error
	if v.checkpoint, err = p.Get(bucketMeta, []byte(metaCheckpoint)); err != nil {
		v.report(-1, uuid.Nil, "checkpoint", "%s", err)
	}
	tree, err := appliance.OpenCheckpoint(v.checkpoint, v.store.opts.Verifier)
	if err == nil {
		v.filed, v.size = tree.N, tree.N
		if h := v.head; h != nil && h.tree.N > tree.N {
			v.size, v.checkpoint = h.tree.N, h.checkpoint
		}
		return
	}
	seen := p.Used
	p.Used = nil // this walk is not the one that records
	_ = p.Walk(bucketRecords, nil, func(name, _ []byte) error {
		if i, err := decodeIndex(name); err == nil {
			v.filed, v.size = i+1, i+1
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
		v.lostPage(firstRecord(bucket, lo), fmt.Errorf("bucket %s: %w: what it had from %s on is lost", bucket, err, entryName(bucket, lo)))
		return nil
	})
}

// firstRecord returns the first record that a lost part of a bucket concerns, or -1.
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

// entryName tells an entry to a person.
func entryName(bucket string, name []byte) string {
	if i, err := decodeIndex(name); err == nil && (bucket == bucketRecords || bucket == bucketHashes) {
		return fmt.Sprint(i)
	}
	if len(name) == 0 {
		return "the first"
	}
	return fmt.Sprintf("%q", name)
}

// entry checks one entry by itself and counts it.
func (v *auditor) entry(bucket string, name, value []byte) {
	switch bucket {
	case bucketMeta:
		if n := string(name); n != metaVersion && n != metaLog && n != metaCheckpoint {
			v.report(-1, uuid.Nil, "page", "meta %q is of no known use", name)
		}
	case bucketKeys:
		if _, err := decodeKey(name, value); err != nil {
			v.report(-1, uuid.Nil, "key", "%s", err)
		}
	case bucketRecords:
		if i, err := decodeIndex(name); err != nil || i >= v.filed {
			v.beyond[bucket]++
		}
	case bucketHashes:
		if i, err := decodeIndex(name); err != nil || i >= tlog.StoredHashCount(v.filed) {
			v.beyond[bucket]++
		}
	case bucketByHash, bucketByUnspendable:
		v.chunk(bucket, name, value)
	default:
		v.count[bucket]++
		if i, err := recordOf(bucket, name, value); err != nil || i >= v.filed {
			v.report(-1, uuid.Nil, "lookup", "%s: entry %x leads to no record", bucket, name)
		}
	}
}

// freePages checks that each page is either in use or free.
func (v *auditor) freePages(p *pages.Reader, free []uint64) {
	for _, id := range free {
		switch {
		case id < 2 || id >= p.Limit():
			v.report(-1, uuid.Nil, "page", "page %d: is free, but outside the file's %d pages", id, p.Limit())
		case p.Used[id]:
			v.report(-1, uuid.Nil, "page", "page %d: is in the list of free pages, but in use or listed twice", id)
		default:
			p.Used[id] = true
		}
	}
	if v.unreadable {
		return // what hangs on unreadable pages is not seen
	}
	for id := uint64(2); id < p.Limit(); id++ {
		if !p.Used[id] {
			v.report(-1, uuid.Nil, "page", "page %d: is neither in use nor free", id)
		}
	}
}

// records checks all records in order, with their hashes and lookup entries.
func (v *auditor) records() error {
	for first := int64(0); first < v.size; first += verifyStep {
		v.progress(first, v.size)
		end := min(v.size, first+verifyStep)
		err := v.pages(func(p *pages.Reader) error {
			leaves := v.read(p, bucketRecords, first, end)
			hashStart := tlog.StoredHashCount(first)
			hashes := v.read(p, bucketHashes, hashStart, tlog.StoredHashCount(end))
			v.addTail(first, leaves, hashStart, hashes)
			for k, c := range checkLeaves(leaves) {
				n := first + int64(k)
				stored := hashes[tlog.StoredHashIndex(0, n)-hashStart:]
				if leaves[k] == nil {
					c = lostLeaf(stored[0])
				}
				v.tree(n, c.ID(), v.audit.Add(c), stored)
				if n < v.filed {
					v.lookups(p, n, c.Entry)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	v.progress(v.size, v.size)
	return nil
}

// read returns the values of a bucket from index first to before end, nil for those that cannot be read.
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
	// Errors have been reported by file.
	_ = p.Walk(bucket, encodeIndex(first), visit, func(_, hi []byte, _ error) error {
		if hi != nil && bytes.Compare(hi, encodeIndex(end)) >= 0 {
			return errEnough
		}
		return nil
	})
	return values
}

// addTail adds what the file may lack.
func (v *auditor) addTail(first int64, leaves [][]byte, hashStart int64, hashes [][]byte) {
	for n := max(first, v.filed); n < first+int64(len(leaves)); n++ {
		leaves[n-first] = v.head.entry(n).Leaf
		for i := tlog.StoredHashIndex(0, n); i < tlog.StoredHashIndex(0, n+1); i++ {
			hashes[i-hashStart] = v.head.hash(i)[:]
		}
	}
}

// checkLeaves checks leaves on all cores.
func checkLeaves(leaves [][]byte) []appliance.CheckedLeaf {
	checked := make([]appliance.CheckedLeaf, len(leaves))
	workers := runtime.GOMAXPROCS(0)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := w; i < len(leaves); i += workers {
				if leaves[i] != nil {
					checked[i] = appliance.CheckLeaf(leaves[i])
				}
			}
		})
	}
	wg.Wait()
	return checked
}

// lostLeaf stands for a record that cannot be read. With its stored hash in its place, the rest of the tree can
// still be checked.
func lostLeaf(stored []byte) appliance.CheckedLeaf {
	var hash tlog.Hash
	copy(hash[:], stored)
	return appliance.LostLeaf(hash, "record", errLost)
}

// tree compares the hashes that record n completes with those stored for it. A wrong hash makes all above it wrong:
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
	wrong := "is not the one that was stored with it"
	if stored == nil {
		wrong = "is not stored"
	}
	if level == 0 {
		v.report(n, id, "tree", "its hash %s", wrong)
		return
	}
	v.report(n, id, "tree", "the hash of records %d to %d, at level %d, %s", n+1-1<<level, n, level, wrong)
}
