package follower

import (
	"context"
	"strconv"
	"time"

	"github.com/attestd/attestd/appliance/index"
)

// pollTime is the time after which a poll writes its rows even if more are available, so that readers see them.
const pollTime = time.Second / 10

// poll reads packets and transfers above the highest cursors, both in one request, and decides whether the index is in
// step. It reads on while pages are full, and writes all pages as one batch. If a page fails, the pages before it are
// written. The first poll reads the newest page, and the backfill continues from there.
func (f *Follower) poll(ctx context.Context) error {
	in := f.newIngest()
	var p polled
	var failed error
	began := f.o.Now()
	for {
		if p, failed = f.pollPage(ctx, in); !p.more || failed != nil || in.full() || f.o.Now().Sub(began) >= pollTime {
			break
		}
	}
	if err := in.write(ctx); err != nil {
		return err
	}
	now := f.o.Now()
	// rows that arrived during this poll wait less than a full interval
	f.due.poll = later(began.Add(f.o.PollInterval), now.Add(f.o.PollInterval/4))
	switch {
	case failed != nil:
		f.due.poll = now.Add(f.o.PollInterval)
		return failed
	case p.more:
		f.due.poll = p.started // more rows are available: poll again at once, in turn with the other tasks
		return nil
	}
	return f.compareCounts(ctx, p.started, p.counts)
}

// polled is the result of one poll request.
type polled struct {
	started time.Time
	counts  counts
	more    bool // there may be newer rows
}

// pollPage reads the next page of newer rows into the ingest.
func (f *Follower) pollPage(ctx context.Context, in *ingest) (p polled, err error) {
	p.started = f.o.Now()
	limit := f.limit
	answers, c, err := f.query(ctx, f.packets.above(limit), f.transfers.above(limit))
	if err != nil {
		f.shrink()
		return p, err
	}
	f.grow()
	f.noteCounts(c)
	p.counts = c
	if err := in.add(ctx, answers[0].rows, answers[1].rows); err != nil {
		return p, err
	}
	packets, transfers := f.packets, f.transfers
	p.more = packets.advance(answers[0], limit)
	p.more = transfers.advance(answers[1], limit) || p.more
	if f.packets == packets && f.transfers == transfers {
		p.more = false // a page without a readable sort_order would be read forever
		return p, nil
	}
	begun := f.packets.live == "" || f.transfers.live == ""
	f.packets, f.transfers = packets, transfers
	if begun { // true on every poll until both streams have a first row
		f.drop()
		f.back = backfill{packets: packets, transfers: transfers, readPackets: answers[0].count,
			readTransfers: answers[1].count}
		f.due.backfill = f.backfillDue()
		f.noteBackfilled()
	}
	in.batch.Positions = f.positions()
	return p, nil
}

// above is the part that asks for newer rows.
func (s *stream) above(limit int) part {
	return part{t: s.t, cursor: s.live, direction: index.Newer, limit: limit}
}

// advance moves the stream past the rows of a poll and reports whether there may be more.
func (s *stream) advance(a answer, limit int) (more bool) {
	if s.live == "" {
		s.begin(a.orders)
		return false
	}
	full := a.count >= limit
	s.newer(a.orders, full)
	return full
}

// missing compares the upstream's counts with the rows of the index.
type missing struct {
	// explained is how many rows the upstream counts that a full rescan did not find. surplus is how many rows the
	// index has beyond the upstream's counts although a full rescan found them listed.
	explained, surplus int64
	suspected          int  // consecutive polls after which the counts differed by more
	reopened           bool // the backfill has read past its end since the counts last agreed
}

func parseCount(s string) int64 {
	n, _ := strconv.ParseInt(s, 10, 64) // zero if s is empty
	return n
}

func formatCount(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

// compareCounts runs after a poll that reached the top. The index is in step if the backfill has ended and no row is
// missing. Rows that stay missing lie below the highest cursor, and a rescan finds them.
func (f *Follower) compareCounts(ctx context.Context, started time.Time, c counts) error {
	if err := f.measure(ctx); err != nil {
		return err
	}
	status := f.Status()
	f.suspect(status.LagRows, status.SurplusRows, c)
	inStep := f.packets.ended && f.transfers.ended && f.missing.suspected == 0 && !f.rechecking()
	f.update(func(s *Status) {
		if s.UnlistedRows = f.missing.explained; inStep {
			s.InStep = started
		}
	})
	return f.saveSometimes(ctx)
}

// suspect decides whether to search for missing or surplus rows. It compares both numbers with those that were
// explained before.
func (f *Follower) suspect(behind, surplus int64, c counts) {
	m := &f.missing
	if f.sweep.exhausted && !f.watched.wanted() {
		f.sweep.exhausted = false
		f.explain(behind, surplus)
	}
	if behind <= m.explained && surplus <= m.surplus {
		m.suspected, m.reopened = 0, false
		if c.packets+c.transfers > 0 {
			m.explained, m.surplus = behind, surplus
		}
		if !f.o.Now().Before(f.sweep.again) {
			f.searchGap()
		}
		return
	}
	m.suspected++
	f.due.poll = f.o.Now().Add(f.o.PollInterval / 4) // the missing rows are probably just arriving
	switch {
	case m.suspected < manyPolls || !f.packets.ended || !f.transfers.ended || f.watched.wanted():
	case !m.reopened && behind > m.explained:
		m.reopened = true
		f.reopen()
	default:
		f.sweep.want(f.o.Now())
	}
}

// explain accepts a difference of the counts as the upstream's own after a full rescan. The rows are searched for again
// after searchAgain.
func (f *Follower) explain(behind, surplus int64) {
	m := &f.missing
	f.sweep.again = f.o.Now().Add(searchAgain)
	if behind > m.explained {
		f.o.Log.Warn("the upstream counts rows that it does not list or that cannot be read", "upstream", f.o.Address,
			"rows", behind, "searched_again", searchAgain.String())
		m.explained = behind
	}
	if surplus > m.surplus {
		f.o.Log.Warn("the upstream counts fewer rows than it lists, or has removed the oldest", "upstream", f.o.Address,
			"rows", surplus, "searched_again", searchAgain.String())
		m.surplus = surplus
	}
}

// savedEvery is how often Status.InStep is written between batches with rows.
const savedEvery = 10 * time.Second

func (f *Follower) saveSometimes(ctx context.Context) error {
	if f.o.Now().Sub(f.saved) < savedEvery {
		return nil
	}
	if err := f.write(ctx, index.Batch{Positions: f.positions()}); err != nil {
		return err
	}
	f.saved = f.o.Now()
	return nil
}

// complete reports whether the index has every row of the upstream, and every packet that was unfinished at the start
// was looked up.
func (f *Follower) complete() bool {
	s := f.Status()
	return !s.Backfilled.IsZero() && s.InStep.After(f.began) && f.table == 0 && f.refreshed && f.restored &&
		f.watched.seen(f.began) && !f.sweep.deep && !f.sweep.wanted
}

// minLimit is the smallest page, in rows. A network too slow for a full page may manage a smaller one.
const minLimit = 10

func (f *Follower) shrink() { f.limit = max(minLimit, f.limit/2) }
func (f *Follower) grow()   { f.limit = min(index.MaxLimit, f.limit*2) }
