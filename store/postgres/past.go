package postgres

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/counts"
)

// past has the journal's answers to the questions of conditions. Each appliance caches its counts, so that a record is
// counted once.
type past struct {
	counts map[counts.Name]counts.Count
	firsts map[appliance.Address]*appliance.Record
	found  []journal.Entry // the entries behind firsts, with indexes in the table
}

// queue adds the queries to a batch, at most one of each kind.
func (p *past) queue(q *pgx.Batch, asked []journal.PastQuery, known func(counts.Name) (counts.Count, bool)) {
	p.counts, p.firsts, p.found = make(map[counts.Name]counts.Count), make(map[appliance.Address]*appliance.Record), nil
	var names []counts.Name
	var keys []string
	var from []int64
	var since []time.Time
	var unspendable [][]byte
	for _, ask := range asked {
		for _, t := range ask.Since {
			name := counts.Of(ask.KeyID, t)
			if _, found := p.counts[name]; found {
				continue
			}
			count, _ := known(name)
			p.counts[name] = count
			names, keys, from, since = append(names, name), append(keys, ask.KeyID), append(from, count.Below),
				append(since, t)
		}
		if u := ask.Unspendable; u != nil {
			if _, found := p.firsts[*u]; !found {
				p.firsts[*u], unspendable = nil, append(unspendable, u[:])
			}
		}
	}
	if len(names) > 0 {
		q.Queue("SELECT q.n, c.n, (SELECT size - continued FROM log_head WHERE id = 1) "+
			"FROM unnest($1::text[], $2::bigint[], $3::timestamptz[]) WITH ORDINALITY AS q (k, i, t, n), "+
			"LATERAL (SELECT count(*) AS n FROM records WHERE key_id = q.k AND index >= q.i AND time >= q.t) AS c",
			keys, from, since).
			Query(func(rows pgx.Rows) error { return p.scanCounts(rows, names) })
	}
	if len(unspendable) > 0 {
		q.Queue("SELECT r.index, r.leaf FROM unnest($1::bytea[]) AS q (u), "+
			"LATERAL (SELECT index, leaf FROM records WHERE unspendable = q.u ORDER BY index LIMIT 1) AS r",
			unspendable).Query(p.scanFirsts)
	}
}

func (p *past) scanCounts(rows pgx.Rows, names []counts.Name) error {
	var place, n, below int64
	_, err := pgx.ForEachRow(rows, []any{&place, &n, &below}, func() error {
		count := p.counts[names[place-1]]
		p.counts[names[place-1]] = counts.Count{N: count.N + n, Below: max(count.Below, below)}
		return nil
	})
	return err
}

func (p *past) scanFirsts(rows pgx.Rows) error {
	return eachEntry(rows, 0, func(e journal.Entry) {
		p.firsts[e.Record.UnspendableAddress] = &e.Record
		p.found = append(p.found, e)
	})
}

// prove returns ErrForged unless the found records are in the tree of h.
func (p *past) prove(ctx context.Context, s *Store, h *head) error {
	found := slices.Clone(p.found)
	for i := range found {
		found[i].Index += h.continued
	}
	return s.prove(ctx, h, found)
}

// answer answers one query. before has the entries that the batch appends first.
func (p *past) answer(q journal.PastQuery, before []journal.Entry) (a journal.Past) {
	for _, since := range q.Since {
		n := p.counts[counts.Of(q.KeyID, since)].N
		for _, e := range before {
			if e.Record.KeyID == q.KeyID {
				n++
			}
		}
		a.Counts = append(a.Counts, n)
	}
	if q.Unspendable == nil {
		return a
	}
	a.First = p.firsts[*q.Unspendable]
	for i := 0; a.First == nil && i < len(before); i++ {
		if e := &before[i]; e.Event == nil && e.Record.UnspendableAddress == *q.Unspendable {
			a.First = &e.Record
		}
	}
	return a
}

// Past implements journal.Journal.
func (j *Journal) Past(ctx context.Context, q journal.PastQuery) (journal.Past, error) {
	limited, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var p past
	if err := j.store.past(limited, &p, []journal.PastQuery{q}); err != nil {
		return journal.Past{}, answer(ctx, "query earlier records", err)
	}
	return p.answer(q, nil), nil
}

// past queries outside of a batch. A count that is not cached begins at the first record of its period.
func (s *Store) past(ctx context.Context, p *past, asked []journal.PastQuery) error {
	if err := s.loadCounts(ctx); err != nil {
		return err
	}
	q := new(pgx.Batch)
	for _, ask := range asked {
		for _, t := range ask.Since {
			if name := counts.Of(ask.KeyID, t); !s.isCounted(name) {
				h, err := s.readHead(ctx)
				if err != nil {
					return err
				}
				first, err := s.journal.searchTime(ctx, h, t)
				if err != nil {
					return err
				}
				s.counts.Keep(name, counts.Count{Below: max(first-h.continued, 0)})
			}
		}
	}
	p.queue(q, asked, s.counts.Known)
	if q.Len() == 0 {
		return nil
	}
	if err := s.read.SendBatch(ctx, q).Close(); err != nil {
		return err
	}
	if len(p.found) > 0 {
		h, err := s.trusted(ctx) // newer than the found records
		if err == nil {
			err = p.prove(ctx, s, h)
		}
		if err != nil {
			return err
		}
	}
	s.keepCounts(p)
	return nil
}

// loadCounts loads the counts of the process before this one.
func (s *Store) loadCounts(ctx context.Context) error {
	if s.opts.Counts == "" || s.secret == nil {
		return nil
	}
	return s.counts.Load(func() (counts.File, error) {
		return counts.File{Path: s.opts.Counts, Log: journal.LogName(s.opts.Verifier), Secret: s.secret,
			Head: s.counted}, nil
	}, func(older tlog.Tree) (bool, error) {
		h, err := s.readHead(ctx)
		if err != nil {
			return false, err
		}
		return counts.Begins(ctx, s.journal, h.tree.N, older)
	})
}

// counted returns the newest tree, and the index in the table below which its entries are.
func (s *Store) counted(ctx context.Context) (tlog.Tree, int64, error) {
	h, err := s.readHead(ctx)
	if err != nil {
		return tlog.Tree{}, 0, err
	}
	return h.tree, h.tree.N - h.continued, nil
}

func (s *Store) isCounted(n counts.Name) bool {
	_, found := s.counts.Known(n)
	return found
}

// keepCounts caches the counts of committed records.
func (s *Store) keepCounts(p *past) {
	for name, count := range p.counts {
		s.counts.Keep(name, count)
	}
}

// countEarly fills the cache of counts before the head is locked.
func (b *batch) countEarly(ctx context.Context) error {
	var uncounted []journal.PastQuery
	for _, q := range b.questions() {
		for _, since := range q.Since {
			if !b.store.isCounted(counts.Of(q.KeyID, since)) {
				uncounted = append(uncounted, journal.PastQuery{KeyID: q.KeyID, Since: []time.Time{since}})
			}
		}
	}
	if len(uncounted) == 0 {
		return nil
	}
	return b.store.past(ctx, new(past), uncounted)
}

func (b *batch) questions() (all []journal.PastQuery) {
	for _, l := range b.leaves {
		if l.err == nil {
			all = append(all, l.asks...)
		}
	}
	return all
}

// queueConditions queues the queries of all conditions.
func (b *batch) queueConditions(q *pgx.Batch) { b.past.queue(q, b.questions(), b.store.counts.Known) }

// admit calls the conditions of a record.
func (b *batch) admit(conditions []journal.Condition, l leaf) error {
	for i, condition := range conditions {
		var p journal.Past
		if q := l.asks[i]; !q.Empty() {
			p = b.past.answer(q, b.entries)
		}
		if err := condition.Decide(l.Record, p); err != nil {
			return err
		}
	}
	return nil
}
