package dataset

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/attestd/attestd/appliance/index"
)

// World is a generated index that continues. Advance moves its clock, sends more packets and advances those in
// progress. It keeps only the packets that have not ended. Its methods are not safe for concurrent use. The same
// options and calls give the same rows.
type World struct {
	g         generator
	underWay  []*flight // sorted by the time of the next event
	refreshed time.Time // when chains and clients were last returned

	late   int           // how many of the next packets are withheld
	lateBy time.Duration // for how long
}

// NewWorld generates the same index as Generate, passes it to sink in the same way, and returns a World that continues
// it.
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

// Sink returns a sink that writes to an index.
func Sink(ctx context.Context, to index.Index) func([]index.Row) error {
	return func(rows []index.Row) error {
		_, err := to.Write(ctx, index.Batch{Rows: rows})
		return err
	}
}

// Now returns the time of the world's clock.
func (w *World) Now() time.Time { return w.g.now }

// UnderWay returns how many packets have a future event. Packets that are stuck forever do not count.
func (w *World) UnderWay() int { return len(w.underWay) }

// Advance moves the clock to now and returns the new and changed rows, complete: packets sent in between, with about
// this many transfers (over several calls exact to one packet's transfers); packets with new events, with all of their
// transfers; and now and then chains and clients with their newest status. New packets have sort_orders above all
// earlier ones, except those that were Late. The clock never moves backwards.
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

// Late withholds the next n packets, with their transfers, until this long after they are sent, and at least until the
// following Advance. Their sort_orders are then below others that were returned earlier.
func (w *World) Late(n int, by time.Duration) { w.late, w.lateBy = n, by }

// due returns when the flight has new rows to return; zero: never.
func (f *flight) due() time.Time {
	if !f.seen.IsZero() {
		return f.seen
	}
	return f.journey.next()
}

// emit returns a packet in its current state, unless it is withheld, and keeps it until its last event.
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

// refreshEvery is how often chains are returned again, with the clients updated since. It exceeds the age of a chain's
// status, so that timestamps never move backwards.
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

// take returns the rows generated since the last call.
func (w *World) take() ([]index.Row, error) {
	rows := w.g.rows
	w.g.rows = nil
	return rows, w.g.err
}
