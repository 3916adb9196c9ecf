package follower

import (
	"context"
	"strconv"
	"time"

	"github.com/attestd/attestd/appliance/index"
)

// pollTime is after how long a poll writes what it has, though there be more above: reads wait for it.
const pollTime = time.Second / 10

// poll reads what is newer than the highest rows, packets and transfers in one request, and judges whether all is here. Pages that
// are full are followed by those above them, and written as one batch: also when one fails, those before it. The first poll reads
// the newest page, from which the backfill goes on.
func (f *Follower) poll(ctx context.Context) error {
	in := f.intake()
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
	f.due.poll = later(began.Add(f.o.PollInterval), now.Add(f.o.PollInterval/4)) // what comes while it reads and writes need not wait longer
	switch {
	case failed != nil:
		f.due.poll = now.Add(f.o.PollInterval)
		return failed
	case p.more:
		f.due.poll = p.started // there is more above this page: at once, in turn with what else is due
		return nil
	}
	return f.judge(ctx, p.started, p.counts)
}

// polled is what one request of a poll has told.
type polled struct {
	started time.Time
	counts  counts
	more    bool // there may be more above
}

// pollPage takes in the next page of what is newer.
func (f *Follower) pollPage(ctx context.Context, in *intake) (p polled, err error) {
	p.started = f.o.Now()
	limit := f.limit
	answers, c, err := f.ask(ctx, f.packets.above(limit), f.transfers.above(limit))
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
	p.more = packets.take(answers[0], limit)
	p.more = transfers.take(answers[1], limit) || p.more
	if f.packets == packets && f.transfers == transfers {
		p.more = false // a page that has no row that can be read would come again and again
		return p, nil
	}
	begun := f.packets.live == "" || f.transfers.live == ""
	f.packets, f.transfers = packets, transfers
	if begun { // also where there was nothing yet to begin with
		f.drop()
		f.back = backfill{packets: packets, transfers: transfers, readPackets: answers[0].count, readTransfers: answers[1].count}
		f.due.backfill = f.backfillDue()
		f.noteBackfilled()
	}
	in.batch.Positions = f.positions()
	return p, nil
}

// above is the part that asks for what is newer.
func (s *stream) above(limit int) part {
	return part{t: s.t, cursor: s.live, direction: index.Newer, limit: limit}
}

// take moves the stream behind the rows that a poll has brought, and tells whether there may be more.
func (s *stream) take(a answer, limit int) (more bool) {
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
	// explained is how many rows the upstream counts that a sweep of everything has not found: it counts otherwise than it lists.
	// surplus is how many rows are here that it does not count, and that such a sweep has found to be listed.
	explained, surplus int64
	suspected          int  // polls in a row after which the counts differed by more
	reopened           bool // the end of the backfill has been looked behind since
}

func parseCount(s string) int64 {
	n, _ := strconv.ParseInt(s, 10, 64) // zero where there is none
	return n
}

func formatCount(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

// judge says, after a poll that found nothing more above, whether the index was in step when it was started: nothing is left to
// backfill, and no row is missing. Rows that stay missing have come below the highest: a sweep finds them.
func (f *Follower) judge(ctx context.Context, started time.Time, c counts) error {
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

// suspect decides, from the rows that the upstream counts beyond those here and the other way round, whether to search for them.
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
	f.due.poll = f.o.Now().Add(f.o.PollInterval / 4) // likely they are just coming
	switch {
	case m.suspected < manyPolls || !f.packets.ended || !f.transfers.ended || f.watched.wanted():
	case !m.reopened && behind > m.explained:
		m.reopened = true
		f.reopen()
	default:
		f.sweep.want(f.o.Now())
	}
}

// explain takes a difference of the counts as the upstream's own, after a search of everything. It is searched for again after
// searchAgain.
func (f *Follower) explain(behind, surplus int64) {
	m := &f.missing
	f.sweep.again = f.o.Now().Add(searchAgain)
	if behind > m.explained {
		f.o.Log.Warn("the upstream counts rows that it does not list, or that cannot be read", "upstream", f.o.Address, "rows", behind, "searched_again", searchAgain.String())
		m.explained = behind
	}
	if surplus > m.surplus {
		f.o.Log.Warn("the upstream counts fewer rows than it lists, or no longer has the oldest", "upstream", f.o.Address, "rows", surplus, "searched_again", searchAgain.String())
		m.surplus = surplus
	}
}

// savedEvery is how often the moment of being in step is written where there are no rows to write it with.
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

// complete tells that all that the upstream has is here, and that what was unfinished at the start has been looked up.
func (f *Follower) complete() bool {
	s := f.Status()
	return !s.Backfilled.IsZero() && s.InStep.After(f.began) && f.table == 0 && f.refreshed && f.restored && f.watched.seen(f.began) && !f.sweep.deep && !f.sweep.wanted
}

// What is asked for at once. A slow network that cannot bring a full page in time may bring a part of one.
const minLimit = 10

func (f *Follower) shrink() { f.limit = max(minLimit, f.limit/2) }
func (f *Follower) grow()   { f.limit = min(index.MaxLimit, f.limit*2) }
