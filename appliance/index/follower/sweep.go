package follower

import (
	"context"
	"time"

	"github.com/attestd/attestd/appliance/index"
)

// sweep is a rescan from the newest row backwards. It compares keys and states with the index and looks up rows that
// are missing or differ. A regular sweep covers Options.Overlap. A deep sweep runs if the counts differ from the index,
// until they agree again or the oldest row is reached.
type sweep struct {
	active, deep       bool
	packets, transfers stream
	pages, found       int
	next               time.Time     // when the next regular sweep is due
	wanted             bool          // a deep sweep is requested
	rest               time.Duration // pause after a deep sweep that found no difference
	deepAfter          time.Time     // earliest start of the next deep sweep
	exhausted          bool          // a deep sweep has read every row, so the rows still missing cannot be found
	again              time.Time     // when rows that a deep sweep did not find are searched for again
}

const (
	maxOverlapPages = 10 // bounds a regular sweep while many rows arrive
	manyPolls       = 3  // consecutive polls with missing rows that start a deep sweep
	maxRest         = time.Hour
	searchAgain     = time.Hour // after a deep sweep that left a difference unexplained
)

// due returns when the next page of a sweep is due. Sweeps wait until the backfill has ended.
func (s *sweep) due(f *Follower) time.Time {
	switch {
	case !f.packets.ended || !f.transfers.ended:
		return never
	case s.active, s.wanted:
		return f.due.sweep
	}
	return later(s.next, f.due.sweep)
}

// want requests a deep sweep, unless an unsuccessful one ended recently.
func (s *sweep) want(now time.Time) {
	if !s.active && !now.Before(s.deepAfter) {
		s.wanted = true
	}
}

// sweepOn reads the next page of a sweep, or starts one.
func (f *Follower) sweepOn(ctx context.Context) error {
	s := &f.sweep
	f.due.sweep = f.o.Now().Add(f.o.PollInterval) // if this fails, other due tasks go first
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
	answers, c, err := f.query(ctx, parts...)
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

// endSweep ends a sweep that has read far enough.
func (f *Follower) endSweep() {
	s := &f.sweep
	all := s.packets.ended && s.transfers.ended
	status := f.Status()
	enough := s.deep && s.found > 0 && !f.watched.wanted() && status.LagRows <= f.missing.explained &&
		status.SurplusRows <= f.missing.surplus
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

// compare schedules lookups of rows that are missing here, differ, or are here but not in the page. covered means that
// the page's last row was sent before the overlap.
func (f *Follower) compare(ctx context.Context, p part, a answer) (covered bool, err error) {
	now := f.o.Now()
	since := f.Status().Newest.Add(-f.o.Overlap)
	err = view(ctx, f.o.Index, func(snap snapshot) error {
		extra, err := unlisted(ctx, snap, p.t, p.cursor, a)
		if err != nil {
			return err
		}
		for _, hash := range extra {
			if e := f.watched.by[hash]; e == nil || len(e.quarantined) == 0 {
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
			if (here.IsZero() || otherStatus(row, here)) && (e == nil || len(e.quarantined) == 0 && !e.notFound) {
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

// otherStatus reports whether the upstream's row has a different status. A null status upstream is not a difference.
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
