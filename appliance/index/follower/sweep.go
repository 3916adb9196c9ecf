package follower

import (
	"context"
	"time"

	"github.com/attestd/attestd/appliance/index"
)

// sweep goes from the newest row backwards and compares keys and states with what is here. What is missing or other is
// looked up. A regular one covers Options.Overlap; a deep one, for rows that the upstream counts and that are not here, goes
// on until none is missing, or to the oldest row.
type sweep struct {
	active, deep       bool
	packets, transfers stream
	pages, found       int
	next               time.Time     // when the next regular one is due
	wanted             bool          // a deep one
	rest               time.Duration // after a deep one that found nothing
	deepAfter          time.Time     // before which no other begins
	exhausted          bool          // one has seen all: what is missing still is not to be found
	again              time.Time     // when rows that a deep one did not find are searched for again
}

const (
	maxOverlapPages = 10 // bound a regular sweep where many rows come
	manyPolls       = 3  // polls in a row that miss rows, after which a deep sweep begins
	maxRest         = time.Hour
	searchAgain     = time.Hour // after a deep sweep that did not find all that the upstream counts
)

// due is when the next page of a sweep is. None is before all is backfilled.
func (s *sweep) due(f *Follower) time.Time {
	switch {
	case !f.packets.ended || !f.transfers.ended:
		return never
	case s.active, s.wanted:
		return f.due.sweep
	}
	return later(s.next, f.due.sweep)
}

// want asks for a deep sweep, unless one has searched in vain lately.
func (s *sweep) want(now time.Time) {
	if !s.active && !now.Before(s.deepAfter) {
		s.wanted = true
	}
}

// sweepOn reads the next page of a sweep, or the first.
func (f *Follower) sweepOn(ctx context.Context) error {
	s := &f.sweep
	f.due.sweep = f.o.Now().Add(f.o.PollInterval) // where this fails, what else is due goes first
	if !s.active {
		*s = sweep{
			active: true, deep: s.wanted, rest: s.rest, deepAfter: s.deepAfter, exhausted: s.exhausted, again: s.again,
			packets: stream{t: index.PacketType}, transfers: stream{t: index.TransferType},
		}
	}
	var parts []part
	var streams []*stream
	for _, st := range []*stream{&s.packets, &s.transfers} {
		if !st.ended {
			p := st.below(index.MaxLimit)
			p.brief = true
			parts, streams = append(parts, p), append(streams, st)
		}
	}
	answers, c, err := f.ask(ctx, parts...)
	if err != nil {
		return err
	}
	f.noteCounts(c)
	s.pages++
	for i, a := range answers {
		covered, err := f.compare(ctx, parts[i], a)
		if err != nil {
			return err
		}
		streams[i].older(a.orders)
		streams[i].ended = streams[i].ended || !s.deep && (covered || s.pages >= maxOverlapPages)
	}
	f.due.sweep = f.o.Now()
	f.endSweep()
	return nil
}

// endSweep ends a sweep that has gone far enough.
func (f *Follower) endSweep() {
	s := &f.sweep
	all := s.packets.ended && s.transfers.ended
	status := f.Status()
	enough := s.deep && s.found > 0 && !f.watched.wanted() && status.LagRows <= f.missing.explained && status.SurplusRows <= f.missing.surplus
	if !all && !enough {
		return
	}
	s.active = false
	s.next = f.o.Now().Add(f.o.RefreshInterval)
	if !s.deep {
		return
	}
	s.deep, s.exhausted = false, all
	if s.found > 0 {
		s.rest = 0
		return
	}
	s.rest = min(max(2*s.rest, f.o.RefreshInterval), maxRest)
	s.deepAfter = f.o.Now().Add(s.rest)
}

// compare has looked up what of a page is not here, or is otherwise, and what is here and not in the page. covered tells that the page's
// last row was sent before the overlap.
func (f *Follower) compare(ctx context.Context, p part, a answer) (covered bool, err error) {
	now := f.o.Now()
	since := f.Status().Newest.Add(-f.o.Overlap)
	err = view(ctx, f.o.Index, func(snap snapshot) error {
		extra, err := unlisted(ctx, snap, p.t, p.cursor, a)
		if err != nil {
			return err
		}
		for _, hash := range extra {
			if e := f.watched.by[hash]; e == nil || len(e.apart) == 0 {
				f.sweep.found++
				f.watched.call(hash, now)
			}
		}
		for _, row := range a.rows {
			here, err := sameIn(ctx, snap, row)
			if err != nil {
				return err
			}
			hash := packetHashOf(row)
			e := f.watched.by[hash]
			if (here.IsZero() || otherStatus(row, here)) && (e == nil || len(e.apart) == 0) {
				f.sweep.found++
				f.watched.call(hash, now)
			}
			if !here.IsZero() {
				sent, ok := here.Time(sentField(here))
				covered = ok && sent.Before(since)
			}
		}
		return nil
	})
	return covered, err
}

// otherStatus tells that the upstream's row, which may say nothing, has another status.
func otherStatus(upstream, here index.Row) bool {
	f := index.PacketStatusColumn
	if here.Type() == index.TransferType {
		f = index.TransferStatusColumn
	}
	is, ok := upstream.Text(f)
	was, _ := here.Text(f)
	return ok && is != was
}

func packetHashOf(row index.Row) string {
	if row.Type() == index.TransferType {
		return hashOf(row)
	}
	return row.Key()
}

func sentField(row index.Row) int {
	if row.Type() == index.TransferType {
		return index.TransferSentColumn
	}
	return index.PacketSentColumn
}
