package bolt

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"

	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/bolt/pages"
	"github.com/google/uuid"
)

// lookups checks the lookup entries of a record.
func (v *auditor) lookups(p *pages.Reader, n int64, e journal.Entry) {
	id := e.ID()
	if id == uuid.Nil {
		return // skipped, or unreadable, which is reported elsewhere
	}
	_ = eachLookup(e, encodeIndex(n), func(bucket string, name, want []byte) error {
		if inRuns(bucket) {
			v.runs[bucket].asked.add(name)
			return nil
		}
		value, err := p.Get(bucket, name)
		switch {
		case err != nil:
			v.report(n, id, "lookup", "%s", err)
		case !bytes.Equal(value, want):
			v.report(n, id, "lookup", "%s: its entry refers to another record", bucket)
		default:
			v.matched[bucket]++
		}
		return nil
	})
}

// surplus reports the lookup entries without a record. Records do not share entries, so if every entry was matched by
// its record, none is left over.
func (v *auditor) surplus() error {
	if v.skip {
		return nil
	}
	for _, bucket := range lookupBuckets {
		check := v.surplusIn
		if r := v.runs[bucket]; r != nil {
			if r.has == r.asked {
				continue
			}
			check = v.wrongInRuns
		} else if v.count[bucket] == v.matched[bucket] {
			continue
		}
		if err := v.pages(func(p *pages.Reader) error { return check(p, bucket) }); err != nil {
			return err
		}
	}
	return nil
}

func (v *auditor) surplusIn(p *pages.Reader, bucket string) error {
	return v.walk(p, bucket, func(name, value []byte) { v.indexEntry(p, bucket, name, value) })
}

// walk calls fn with each readable entry of a bucket.
func (v *auditor) walk(p *pages.Reader, bucket string, fn func(name, value []byte)) error {
	visit := func(name, value []byte) error {
		if v.ctx.Err() != nil {
			return timeout(v.ctx, "verify")
		}
		fn(name, value)
		return nil
	}
	err := p.Walk(bucket, nil, visit, func(_, _ []byte, _ error) error { return nil })
	if errors.Is(err, ErrDamaged) { // which file has reported
		return nil
	}
	return err
}

// indexEntry checks a lookup entry against its record. It returns the record's index, or -1 if they disagree.
func (v *auditor) indexEntry(p *pages.Reader, bucket string, name, value []byte) int64 {
	n, err := recordOf(bucket, name, value)
	if err != nil || n >= v.flushed {
		return -1 // reported by file, or newer than the verified journal
	}
	id, asked := v.asks(p, n, bucket, name)
	switch {
	case asked:
		return n
	case id != uuid.Nil:
		v.report(n, id, "lookup", "%s: entry %x refers to this record but belongs to another", bucket, name)
	}
	return -1
}

// asks returns the ID of a record and whether it has a lookup entry of that name; nil matches any name. The ID is
// uuid.Nil if the record is unreadable, which records has reported.
func (v *auditor) asks(p *pages.Reader, n int64, bucket string, name []byte) (id uuid.UUID, asked bool) {
	leaf, err := p.Get(bucketRecords, encodeIndex(n))
	if err != nil {
		return uuid.Nil, false
	}
	e, _ := journal.DecodeEntry(n, leaf)
	if id = e.ID(); id == uuid.Nil {
		return id, false
	}
	_ = eachLookup(e, encodeIndex(n), func(of string, want, _ []byte) error {
		asked = asked || of == bucket && (name == nil || bytes.Equal(name, want))
		return nil
	})
	return id, asked
}

// runAudit is the state of the audit of a bucket of runs.
type runAudit struct {
	has, asked multiset // the existing entries, and the entries that the records require
	name, last []byte   // of the previous chunk: its name and last entry
	highest    int64    // highest record of the run so far
}

// multiset is an order-independent hash of entries. Different multisets are equal with probability 2^-64.
type multiset uint64

var multisetSeed = maphash.MakeSeed()

func (m *multiset) add(entry []byte) { *m += multiset(maphash.Bytes(multisetSeed, entry)) }

func newRunAudit() *runAudit { return &runAudit{highest: -1} }

// chunk checks a chunk, and its order after the previous one, and adds its entries.
func (v *auditor) chunk(bucket string, name, value []byte) {
	r := v.runs[bucket]
	if len(name) != chunkName || !bytes.HasPrefix(r.name, name[:8]) {
		r.last = nil
	}
	err := checkChunk(name, value, r.last)
	if err == nil && r.last == nil && int64(binary.BigEndian.Uint64(name)) <= r.highest {
		err = fmt.Errorf("the previous run has record %d", r.highest)
	}
	if err != nil {
		v.report(-1, uuid.Nil, "lookup", "%s: chunk %x: %s", bucket, name, err)
		return
	}
	for entry := range slices.Chunk(value, runEntry) {
		n, err := recordOf(bucket, entry, nil)
		if err != nil || n >= v.flushed || bytes.Compare(entry[8:], name[:8]) < 0 {
			v.report(-1, uuid.Nil, "lookup", "%s: entry %x refers to a record outside its run", bucket, entry)
			continue
		}
		r.highest = max(r.highest, n)
		r.has.add(entry)
		r.last = entry
	}
	r.name = name
}

// wrongInRuns reports the entries of a bucket of runs without a record, and the records without an entry.
func (v *auditor) wrongInRuns(p *pages.Reader, bucket string) error {
	right := make([]bool, v.flushed)
	err := v.walk(p, bucket, func(_, chunk []byte) {
		for ; len(chunk) >= runEntry; chunk = chunk[runEntry:] {
			if n := v.indexEntry(p, bucket, chunk[:runEntry], nil); n >= 0 {
				right[n] = true
			}
		}
	})
	for n := int64(0); n < v.flushed && err == nil; n++ {
		if right[n] {
			continue
		}
		if id, asks := v.asks(p, n, bucket, nil); asks {
			v.report(n, id, "lookup", "%s: its entry is missing", bucket)
		}
		if v.ctx.Err() != nil {
			err = timeout(v.ctx, "verify")
		}
	}
	return err
}
