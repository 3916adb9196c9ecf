package follower

import (
	"context"
	"time"

	"github.com/attestd/attestd/appliance/index"
)

// stream is how far one type of rows has been read. Its fields are sort_orders of the upstream. They are opaque: only
// compared for equality and sent back.
type stream struct {
	t     *index.Type
	live  string // the highest sort_order read; newer rows lie above it; empty before the first row
	back  string // the cursor from which older rows are read next
	final string // sort_order of the last row that was read backwards
	ended bool   // the oldest row has been read
}

// Names of positions in the index, in addition to the positions of streams.
const (
	positionUpstream   = "follower.upstream"
	positionInStep     = "follower.in_step"    // RFC 3339
	positionBackfilled = "follower.backfilled" // RFC 3339
	positionMissing    = "follower.missing"    // see missing
)

func (s *stream) position(of string) string { return "follower." + s.t.Name + "." + of }

// save adds the stream's positions to a batch.
func (s *stream) save(positions map[string]string) {
	positions[s.position("live")], positions[s.position("back")] = s.live, s.back
	ended := ""
	if s.ended {
		ended = "true"
	}
	positions[s.position("ended")] = ended
}

// resume returns the cursor for the page that follows. Rows may share a sort_order, and a page may end between them.
// resume therefore returns the last sort_order but one, and the rows of the last are read again. If the whole page has
// one sort_order, resume returns it.
func resume(orders []string) string {
	last := orders[len(orders)-1]
	for i := len(orders) - 2; i >= 0; i-- {
		if orders[i] != last {
			return orders[i]
		}
	}
	return last
}

// older moves the stream backwards past a page.
func (s *stream) older(orders []string) {
	known := true
	for _, order := range orders {
		known = known && order == s.final
	}
	if known { // the page is empty, or has only rows that were read again
		s.ended = true
		return
	}
	s.final, s.back = orders[len(orders)-1], resume(orders)
}

// newer moves the stream forwards past a page. Its highest row is last. full means that there may be more.
func (s *stream) newer(orders []string, full bool) {
	switch {
	case len(orders) == 0:
	case full:
		s.live = resume(orders)
	default:
		s.live = orders[len(orders)-1]
	}
}

// begin starts at the newest page: forwards from its first row, backwards from its last.
func (s *stream) begin(orders []string) {
	if len(orders) == 0 {
		s.ended = true // an empty stream has no older rows
		return
	}
	s.live, s.ended, s.final = orders[0], false, ""
	s.older(orders)
}

// Load reads how far an earlier follower got, so that Status reports it. Run and Sync do not need it.
func (f *Follower) Load(ctx context.Context) error {
	if err := f.load(ctx); err != nil {
		return err
	}
	return f.measure(ctx)
}

// load reads the positions of an earlier follower and the quarantined rows to look up. If the upstream's address has
// changed, load starts from the beginning. Rows that the index has already are then compared but not written again.
func (f *Follower) load(ctx context.Context) error {
	return view(ctx, f.o.Index, func(snap snapshot) error {
		if err := f.recognise(ctx, snap); err != nil {
			return err
		}
		get := func(name string) (value string, err error) {
			value, _, err = snap.Position(ctx, name)
			return value, err
		}
		f.packets, f.transfers = stream{t: index.PacketType}, stream{t: index.TransferType}
		before, err := get(positionUpstream)
		if err != nil {
			return err
		}
		if before == f.o.Address {
			if err := f.loadPositions(get); err != nil {
				return err
			}
		}
		f.back = backfill{packets: f.packets, transfers: f.transfers}
		f.due.poll, f.due.backfill = time.Time{}, f.backfillDue()
		if f.watched.by == nil {
			return f.loadUnverified(ctx, snap)
		}
		return nil
	})
}

// recognise resets the state in memory if the index is a different one, because a new index holds none of the rows.
func (f *Follower) recognise(ctx context.Context, snap snapshot) error {
	held, err := snap.Status(ctx)
	if err != nil || held.ID == f.index {
		return err
	}
	if f.index != "" {
		f.o.Log.Warn("the replica was recreated; all rows are read again", "upstream", f.o.Address)
		f.watched, f.sweep, f.missing = watches{}, sweep{}, missing{}
		f.table, f.due.tables = 0, time.Time{}
		f.update(func(s *Status) {
			s.InStep, s.Backfilled, s.Newest, s.Oldest = time.Time{}, time.Time{}, time.Time{}, time.Time{}
		})
	}
	f.index = held.ID
	return nil
}

func (f *Follower) loadPositions(get func(string) (string, error)) error {
	var failed error
	read := func(name string) string {
		value, err := get(name)
		if err != nil {
			failed = err
		}
		return value
	}
	for _, s := range []*stream{&f.packets, &f.transfers} {
		s.live, s.back, s.ended = read(s.position("live")), read(s.position("back")), read(s.position("ended")) != ""
	}
	f.missing.explained = parseCount(read(positionMissing))
	inStep, _ := time.Parse(time.RFC3339Nano, read(positionInStep)) // zero if the position is empty
	backfilled, _ := time.Parse(time.RFC3339Nano, read(positionBackfilled))
	f.update(func(s *Status) {
		if s.InStep.IsZero() {
			s.InStep = inStep
		}
		s.Backfilled = backfilled
	})
	return failed
}

// positions returns all positions, to be written with a batch.
func (f *Follower) positions() map[string]string {
	p := map[string]string{positionUpstream: f.o.Address, positionMissing: formatCount(f.missing.explained)}
	f.packets.save(p)
	f.transfers.save(p)
	f.mu.Lock()
	defer f.mu.Unlock()
	p[positionInStep], p[positionBackfilled] = formatTime(f.status.InStep), formatTime(f.status.Backfilled)
	return p
}

func formatTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}
