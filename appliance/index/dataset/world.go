package dataset

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/attestd/attestd/appliance/index"
)

// World is a made-up index that goes on: Advance moves its clock, sends more packets and lets those under way come further.
// It keeps only the packets to which something is still to happen. Its methods are not safe for concurrent use. The same options
// and calls give the same rows.
type World struct {
	g         generator
	underWay  []*flight // the one to which something happens soonest first
	refreshed time.Time // when chains and clients were handed out last

	late   int           // of the next packets so many are withheld
	lateBy time.Duration // for so long
}

// NewWorld makes up what Generate does, hands it to sink as Generate does, and returns it to be gone on with.
func NewWorld(ctx context.Context, o GenerateOptions, sink func([]index.Row) error) (*World, error) {
	if o.BatchRows == 0 {
		o.BatchRows = 10_000
	}
	chains := len(chainTable)
	if o.Chains > 0 {
		chains = min(max(o.Chains, 2), chains)
	}
	now := o.Now.UTC().Truncate(time.Microsecond)
	w := &World{refreshed: now, g: generator{
		rng: rand.New(rand.NewPCG(o.Seed, 0x9e3779b97f4a7c15)), now: now, left: o.Transfers, exact: true,
		accounts: max(20, o.Transfers/8),
	}}
	g := &w.g
	g.world(chains)
	g.span()
	for g.left > 0 && g.err == nil {
		if len(g.rows) >= o.BatchRows {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			if err := sink(g.rows); err != nil {
				return nil, err
			}
			g.rows = nil
		}
		w.emit(g.send())
	}
	g.exact = false
	rows, err := w.take()
	if err != nil || len(rows) == 0 {
		return w, err
	}
	return w, sink(rows)
}

// Sink hands rows on to an index.
func Sink(ctx context.Context, to index.Index) func([]index.Row) error {
	return func(rows []index.Row) error {
		_, err := to.Write(ctx, index.Batch{Rows: rows})
		return err
	}
}

// Now returns where the world's clock stands.
func (w *World) Now() time.Time { return w.g.now }

// UnderWay returns how many packets something is still to happen to. Those that are stuck for ever do not count.
func (w *World) UnderWay() int { return len(w.underWay) }

// Advance moves the clock to now and returns the rows that are new or have changed since, whole: packets that were sent
// between, with about so many transfers (over several calls exact to a packet's); packets to which something has happened,
// with all of their transfers; and now and then chains and clients, with their newest status. Packets have sort_orders above all
// earlier ones, but for those that were Late. A clock that would go back stands still.
//
// Errors: as index.NewRow.
func (w *World) Advance(now time.Time, transfers int) ([]index.Row, error) {
	g := &w.g
	g.at = g.now
	if now = now.UTC().Truncate(time.Microsecond); now.After(g.now) {
		g.now = now
	}
	g.latest = g.now
	for len(w.underWay) > 0 && !w.underWay[0].due().After(g.now) {
		f := w.underWay[0]
		w.underWay = w.underWay[1:]
		g.travel(f)
		w.emit(f)
	}
	g.left += transfers
	g.spread(g.now.Sub(g.at))
	for g.left > 0 && g.err == nil {
		f := g.send()
		if w.late > 0 {
			w.late--
			f.seen = g.at.Add(w.lateBy)
			if !f.seen.After(g.now) {
				f.seen = g.now.Add(time.Microsecond)
			}
		}
		w.emit(f)
	}
	w.refresh()
	return w.take()
}

// Late withholds the next n packets that are sent, with their transfers, until so long after their sending, and at least until
// the Advance after the one that sends them. They are then below others that were handed out before.
func (w *World) Late(n int, by time.Duration) { w.late, w.lateBy = n, by }

// due returns when there is something new to hand out; zero: never.
func (f *flight) due() time.Time {
	if !f.seen.IsZero() {
		return f.seen
	}
	return f.journey.next()
}

// emit hands out a packet as it is now, unless it is withheld, and keeps it while something is still to happen to it.
func (w *World) emit(f *flight) {
	if !f.seen.After(w.g.now) {
		f.seen = time.Time{}
		w.g.addFlight(f)
	}
	if f.due().IsZero() {
		return
	}
	i, _ := slices.BinarySearchFunc(w.underWay, f, func(a, b *flight) int { return a.due().Compare(b.due()) })
	w.underWay = slices.Insert(w.underWay, i, f)
}

// refreshEvery is how often chains are handed out again, and clients that were updated since. It is more than the age that a
// chain's status has, so that none goes back.
const refreshEvery = 30 * time.Second

func (w *World) refresh() {
	g := &w.g
	if g.now.Sub(w.refreshed) < refreshEvery {
		return
	}
	w.refreshed = g.now
	g.addChains()
	for i := range g.routes {
		if g.rng.IntN(4) == 0 {
			g.add(g.clientRow(i, g.now))
		}
	}
}

// take returns the rows that were made since the last time.
func (w *World) take() ([]index.Row, error) {
	rows := w.g.rows
	w.g.rows = nil
	return rows, w.g.err
}
