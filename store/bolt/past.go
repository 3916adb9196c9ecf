package bolt

import (
	"bytes"
	"context"
	"slices"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/counts"
	"golang.org/x/mod/sumdb/tlog"
)

// Past implements journal.Journal.
func (j *Journal) Past(ctx context.Context, q journal.PastQuery) (p journal.Past, err error) {
	// read before the view: a flush in between moves leaves into the file, where the view finds them
	var recent *journal.Entry
	if q.Unspendable != nil {
		recent = j.store.recent.find(lookup{bucketByUnspendable, q.Unspendable[:]})
	}
	if len(q.Since) > 0 {
		j.store.loadCounts(ctx)
	}
	err = j.read(ctx, func(v *view) error {
		p, err = v.past(q, recent, j.store.counts.Known, j.store.counts.Keep)
		return err
	})
	return p, err
}

// loadCounts loads the counts of the process before this one. A failure costs a longer count.
func (s *Store) loadCounts(ctx context.Context) {
	h := s.head.Load()
	if s.opts.ReadOnly || h == nil {
		return
	}
	err := s.counts.Load(func() (f counts.File, err error) {
		f = counts.File{Path: s.path + "-counts", Log: journal.LogName(s.opts.Verifier)}
		f.Head = func(context.Context) (tlog.Tree, int64, error) { h := s.head.Load(); return h.tree, h.tree.N, nil }
		f.Secret, err = journal.StoreSecret(s.opts.Signer)
		return f, err
	}, func(older tlog.Tree) (bool, error) { return counts.Begins(ctx, s.journal, h.tree.N, older) })
	if err != nil {
		s.opts.Logger.Warn("the counts of attestations cannot be loaded, so they are counted again",
			"file", s.path+"-counts", "error", err)
	}
}

// admit calls the conditions of an op.
func (b *batch) admit(r appliance.Record, conditions []journal.Condition) error {
	for _, c := range conditions {
		var past journal.Past
		if q := c.Asks(r); !q.Empty() {
			v, err := b.view()
			if err != nil {
				return err
			}
			var recent *journal.Entry
			if q.Unspendable != nil {
				l := lookup{bucketByUnspendable, q.Unspendable[:]}
				if recent = b.writer.store.recent.find(l); recent == nil {
					recent = b.next.find(l)
				}
			}
			if past, err = v.past(q, recent, b.known, b.setCount); err != nil {
				return err
			}
		}
		if err := c.Decide(r, past); err != nil {
			return err
		}
	}
	return nil
}

// view returns the journal including the batch so far.
func (b *batch) view() (*view, error) {
	if err := b.begin(); err != nil {
		return nil, err
	}
	h := *b.writer.store.head.Load()
	h.tree.N = b.frontier.Size()
	h.tail = append(slices.Clip(h.tail), b.next.leaves)
	return newView(b.tx, &h), nil
}

// begin opens a read transaction for the lookups of the batch.
func (b *batch) begin() (err error) {
	if b.tx != nil {
		return nil
	}
	if b.tx, err = b.writer.store.begin(false); err != nil {
		return unavailable(err)
	}
	return nil
}

// known returns a count from this batch, or the cached one.
func (b *batch) known(n counts.Name) (counts.Count, bool) {
	if c, found := b.counted[n]; found {
		return c, true
	}
	return b.writer.store.counts.Known(n)
}

// setCount stores a count until the batch is committed, because it may include records of the batch.
func (b *batch) setCount(n counts.Name, c counts.Count) {
	if b.counted == nil {
		b.counted = make(map[counts.Name]counts.Count)
	}
	b.counted[n] = c
}

func (v *view) past(q journal.PastQuery, recent *journal.Entry, known func(counts.Name) (counts.Count, bool),
	keep func(counts.Name, counts.Count)) (p journal.Past, err error) {
	for _, since := range q.Since {
		name := counts.Of(q.KeyID, since)
		count, found := known(name)
		if !found {
			if count.Below, err = v.searchTime(since); err != nil {
				return p, err
			}
		}
		// The count ends at the view's size, because the transaction may be newer than the head.
		count.N += v.countFrom(q.KeyID, count.Below)
		count.Below = max(count.Below, v.tree.N)
		keep(name, count)
		p.Counts = append(p.Counts, count.N)
	}
	if q.Unspendable != nil {
		p.First, err = v.first(*q.Unspendable, recent)
	}
	return p, err
}

// countFrom counts the records of an API key from an index on.
func (v *view) countFrom(keyID string, first int64) (n int64) {
	begin, filed := keyPrefix(keyID), v.inFile()
	c := v.tx.Bucket([]byte(bucketByKey)).Cursor()
	end := append(bytes.Clone(begin), encodeIndex(filed)...)
	for name, _ := c.Seek(append(bytes.Clone(begin), encodeIndex(first)...)); name != nil &&
		bytes.Compare(name, end) < 0; name, _ = c.Next() {
		n++
	}
	for i := max(first, filed); i < v.tree.N; i++ {
		if e := v.head.entry(i); e.Event == nil && e.Record.KeyID == keyID {
			n++
		}
	}
	return n
}

// first returns the first record of an unspendable address, or nil. recent is the first one in the tail.
func (v *view) first(unspendable appliance.Address, recent *journal.Entry) (*appliance.Record, error) {
	for index := range recordsInRuns(v.tx.Bucket([]byte(bucketByUnspendable)), unspendablePrefix(unspendable)) {
		e, err := readEntry(v.records, index)
		if err != nil {
			return nil, err
		}
		if e.Record.UnspendableAddress == unspendable {
			return &e.Record, nil
		}
	}
	if recent != nil {
		return &recent.Record, nil
	}
	return nil, nil
}
