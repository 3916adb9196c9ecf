// Package follower keeps an index.Index in step with an upstream: another GraphQL endpoint of the same API.
//
// A Follower makes one request at a time. The next is for the task that is due first:
//
//	tables    chains, tokens, clients, connections and channels, each whole, every RefreshInterval
//	poll      packets and transfers above the highest cursors, and the upstream's counts, every PollInterval (live.go)
//	backfill  packets and transfers below the lowest cursors, until the oldest (backfill.go)
//	look-ups  unfinished packets with their transfers by hash, at growing intervals; what is missing, at once (lookup.go)
//	restore   what an earlier follower has left unfinished, to be looked up, some packets at a time (unfinished.go)
//	sweep     keys from the newest row backwards, compared with what is here, for rows that came late (sweep.go)
//
// An intake (intake.go) checks each row that was read and gathers the rows into a batch. A batch is written together with the
// positions to which it brings the index, so that a crash loses nothing and repeats nothing. Cursors are opaque.
package follower

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/time/rate"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index"
)

// Options say what to follow and how.
type Options struct {
	Index    index.Index
	Upstream Upstream
	Address  string // of the upstream, for Status; with another one than before, all is read again

	// These have no defaults here; Run and Sync refuse those that are zero.
	PollInterval    time.Duration // between looks for newer rows when there are none
	RefreshInterval time.Duration // of chains, tokens, channels, clients and connections
	Overlap         time.Duration // how far back, by the time of sending, is read again for rows that come late

	LookupInterval time.Duration  // the longest between look-ups of an unfinished packet; zero means an hour
	Rate           appliance.Rate // of requests; zero means no bound but one at a time
	// GiveUp is for how long Sync tries again without any success; zero means for ever.
	GiveUp time.Duration

	Log *slog.Logger     // nil means none
	Now func() time.Time // nil means time.Now
}

const defaultLookupInterval = time.Hour

// rediscover is how often the upstream's schema is looked at again.
const rediscover = time.Hour

// Follower follows an upstream. Its methods are safe for concurrent use, except that only one Run or Sync may be under way.
type Follower struct {
	o      Options
	reader *reader
	gate   chan struct{} // holds a token while a request is under way: there is one at a time
	pace   *rate.Limiter
	woken  chan struct{}

	mu     sync.Mutex
	status Status // protected by mu

	// The rest belongs to the goroutine of Run or Sync.
	index              string // index.Status.ID of the one that all below is about
	packets, transfers stream // as written
	back               backfill
	watched            watches
	unfinished         index.Row // the last that was watched of those that an earlier follower has left; see restoreOn
	restored           bool      // all of those were watched, or as many as there is room for
	sweep              sweep
	missing            missing
	table              int // which of the tables is next
	due                struct{ discover, tables, poll, backfill, restore, lookUps, sweep time.Time }
	saved              time.Time // when the positions were last written
	began              time.Time // when Run or Sync was called
	rechecked          time.Time // when recheck was called
	refreshed          bool      // all tables have been read since
	retry              *backoff.ExponentialBackOff
	succeeded          time.Time     // when a request last was answered
	share              atomic.Int32  // how many parts a request has; the goroutine that reads ahead uses it, too
	limit              int           // how many rows to ask for in a page
	steps              int           // that succeeded since the upstream last refused a request
	warnings           int           // how many unverified or removed rows may be logged still; all are counted
	complaints         *rate.Limiter // of rows that cannot be read, in the log
}

// New returns a Follower that has not begun. It reads from the index where an earlier one has ended.
func New(o Options) *Follower {
	if o.LookupInterval == 0 {
		o.LookupInterval = defaultLookupInterval
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	f := &Follower{
		o: o, reader: newReader(o.Upstream), gate: make(chan struct{}, 1), woken: make(chan struct{}, 1),
		pace: rate.NewLimiter(rate.Inf, 1), retry: backoff.NewExponentialBackOff(), limit: index.MaxLimit, warnings: 100,
		complaints: rate.NewLimiter(rate.Every(time.Minute), 100),
	}
	f.share.Store(maxParts)
	if (o.Rate != appliance.Rate{}) && o.Rate != appliance.Unlimited {
		f.pace = rate.NewLimiter(rate.Limit(o.Rate.PerSecond), o.Rate.Burst())
	}
	f.retry.InitialInterval = min(500*time.Millisecond, o.PollInterval)
	f.retry.MaxInterval = 15 * time.Second // soon enough after the upstream is back
	f.status.Upstream = o.Address
	return f
}

// Run follows until ctx ends, and then returns nil. When the upstream or the disk fails it tries again.
func (f *Follower) Run(ctx context.Context) error {
	return f.follow(ctx, nil)
}

// Sync follows until the index has all that the upstream has, and returns nil then.
//
// Errors: ctx's; the last one where Options.GiveUp has passed.
func (f *Follower) Sync(ctx context.Context) error {
	if err := f.follow(ctx, f.complete); err != nil {
		return err
	}
	return ctx.Err()
}

// Wake ends a wait between polls, or after a failure unless the upstream has asked for it. The follower then also looks again at rows
// that are kept apart and searches for rows that the upstream counts and has not listed; Status.InStep does not advance before.
func (f *Follower) Wake() {
	select {
	case f.woken <- struct{}{}:
	default:
	}
}

// follow does what is due until ctx ends or, unless it is nil, complete says so.
func (f *Follower) follow(ctx context.Context, complete func() bool) error {
	if min(f.o.PollInterval, f.o.RefreshInterval, f.o.Overlap) <= 0 {
		return errors.New("follower.Options: PollInterval, RefreshInterval and Overlap must be set")
	}
	f.began, f.succeeded, f.refreshed = f.o.Now(), f.o.Now(), false
	defer f.drop()
	loaded, started := false, false
	for ctx.Err() == nil {
		var err error
		acted := false
		if loaded {
			acted, err = f.step(ctx)
		} else {
			err = f.load(ctx)
			if loaded = err == nil; loaded && !started {
				started = true
				f.searchGap()
			}
		}
		if err != nil {
			f.drop()
			loaded = false // what is in memory may be ahead of what is written
		}
		switch {
		case ctx.Err() != nil:
		case err != nil:
			if complete != nil && f.o.GiveUp > 0 && f.o.Now().Sub(f.succeeded) > f.o.GiveUp {
				return err
			}
			f.noteFailure(ctx, err)
		case acted:
			f.noteSuccess()
			if complete != nil && complete() {
				f.leave(ctx)
				return nil
			}
		}
	}
	if loaded {
		f.leave(ctx)
	}
	return nil
}

// leave writes the last moment of being in step, though ctx has ended. It is not for a panic: what is in memory then may be ahead
// of what is written.
func (f *Follower) leave(ctx context.Context) {
	const patience = 5 * time.Second
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	if err := f.write(ctx, index.Batch{Positions: f.positions()}); err != nil {
		f.o.Log.Debug("the moment of being in step is not kept", "error", err.Error())
	}
}

// step does what is due first, or waits for it.
func (f *Follower) step(ctx context.Context) (acted bool, err error) {
	select {
	case <-f.woken: // a busy follower never sleeps
		f.wokenUp()
	default:
	}
	now := f.o.Now()
	do, due := f.discover, f.due.discover
	for _, task := range []struct {
		due time.Time
		do  func(context.Context) error
	}{
		{f.due.tables, f.refresh}, {f.due.poll, f.poll}, {f.due.backfill, f.backfillOn}, {f.restoreDue(), f.restoreOn}, {later(f.watched.due(), f.due.lookUps), f.lookUp}, {f.sweep.due(f), f.sweepOn},
	} {
		if task.due.Before(due) {
			do, due = task.do, task.due
		}
	}
	if wait := due.Sub(now); wait > 0 {
		f.sleep(ctx, wait)
		return false, nil
	}
	return true, do(ctx)
}

// later is the later of two times: what is overdue in bulk takes turns with the rest.
func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// never is when what has no reason is due.
var never = time.Unix(1<<40, 0)

// sleep waits, unless it is woken: then the next poll is due.
func (f *Follower) sleep(ctx context.Context, wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-f.woken:
		f.wokenUp()
	}
}

// wokenUp makes due at once what Wake asks for.
func (f *Follower) wokenUp() {
	f.due.poll, f.due.tables = time.Time{}, time.Time{}
	f.recheck()
}

// recheck has the follower look again at rows that are kept apart, and search everywhere if the upstream's counts are not those of the
// index. Status.InStep does not advance before that is done.
func (f *Follower) recheck() {
	now := f.o.Now()
	f.rechecked = now
	for _, e := range f.watched.by {
		if len(e.apart) > 0 {
			f.watched.set(e, now)
		}
	}
	f.searchGap()
}

// searchGap has rows searched for everywhere that the upstream counts and that an earlier search did not find, or the other way round.
func (f *Follower) searchGap() {
	f.sweep.wanted = f.sweep.wanted || f.missing.explained+f.missing.surplus > 0
}

// rechecking reports whether the follower has still to do what recheck asked for.
func (f *Follower) rechecking() bool {
	if len(f.woken) > 0 {
		return true
	}
	if f.rechecked.IsZero() {
		return false
	}
	if f.sweep.wanted || f.sweep.deep {
		return true
	}
	for _, e := range f.watched.by {
		if len(e.apart) > 0 && e.looked.Before(f.rechecked) {
			return true
		}
	}
	f.rechecked = time.Time{}
	return false
}

// noteFailure notes a failure and waits: longer each time, and as long as the upstream asks.
func (f *Follower) noteFailure(ctx context.Context, err error) {
	var first bool
	f.update(func(s *Status) {
		first = !s.Failing
		s.Failing, s.LastError, s.LastErrorAt = true, err.Error(), f.o.Now()
		s.Failures++
	})
	wait := f.retry.NextBackOff()
	asked := time.Duration(0)
	if known, ok := errors.AsType[*appliance.Error](err); ok {
		asked = min(known.RetryAfter, time.Hour)
	}
	if refused := new(QueryError); errors.As(err, &refused) {
		f.due.discover = time.Time{} // it may have become another
		f.share.Store(max(1, f.share.Load()/2))
		f.steps = 0
	}
	level := slog.LevelDebug
	if first { // what goes on failing need not be said each time
		level = slog.LevelWarn
	}
	f.o.Log.Log(ctx, level, "the upstream cannot be followed now", "upstream", f.o.Address, "error", err.Error(), "retry", max(wait, asked).Round(time.Millisecond).String())
	if asked > 0 {
		timer := time.NewTimer(asked)
		defer timer.Stop()
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
	}
	if wait > asked {
		f.sleep(ctx, wait-asked)
	}
}

// trustAfter is after how many steps without a refusal a request asks for more parts again.
const trustAfter = 10

// noteSuccess notes that a step has succeeded: the upstream answers, and the index can be written.
func (f *Follower) noteSuccess() {
	f.retry.Reset()
	f.succeeded = f.o.Now()
	if f.steps++; f.steps%trustAfter == 0 {
		f.share.Store(min(maxParts, 2*f.share.Load()))
	}
	recovered := false
	f.update(func(s *Status) { recovered, s.Failing = s.Failing, false })
	if recovered {
		f.o.Log.Info("the upstream is followed again", "upstream", f.o.Address)
	}
}

// noteCounts notes the upstream's counts.
func (f *Follower) noteCounts(c counts) {
	if c.packets+c.transfers == 0 {
		return
	}
	f.update(func(s *Status) {
		packet, transfer := index.PacketType.Name, index.TransferType.Name
		s.Rows = map[string]Count{packet: {s.Rows[packet].Here, c.packets}, transfer: {s.Rows[transfer].Here, c.transfers}}
	})
}

// ask makes requests for the parts, f.share in each. The counts are those of the last.
func (f *Follower) ask(ctx context.Context, parts ...part) (answers []answer, c counts, err error) {
	for len(parts) > 0 {
		n := min(len(parts), int(f.share.Load()))
		var some []answer
		err := f.inTurn(ctx, func() (err error) {
			some, c, err = f.reader.fetch(ctx, parts[:n]...)
			return err
		})
		if err != nil {
			return nil, c, err
		}
		for _, a := range some {
			f.report(a.bad)
		}
		answers, parts = append(answers, some...), parts[n:]
	}
	return answers, c, nil
}

// inTurn makes a request when it is its turn: there is one at a time, and no more than the rate allows.
func (f *Follower) inTurn(ctx context.Context, request func() error) error {
	if err := f.pace.Wait(ctx); err != nil {
		return fmt.Errorf("wait for the rate: %w", err)
	}
	select {
	case f.gate <- struct{}{}:
		defer func() { <-f.gate }()
	case <-ctx.Done():
		return ctx.Err()
	}
	f.update(func(s *Status) { s.Requests++ })
	return request()
}

// report notes rows that cannot be read. They are left out, and do not hold up the others.
func (f *Follower) report(bad []error) {
	for _, err := range bad {
		if f.complaints.Allow() {
			f.o.Log.Warn("a row of the upstream cannot be read, and is left out", "upstream", f.o.Address, "error", err.Error())
		}
		f.update(func(s *Status) { s.LastError, s.LastErrorAt = "a row cannot be read: "+err.Error(), f.o.Now() })
	}
}

// discover settles what the upstream can be asked for.
func (f *Follower) discover(ctx context.Context) error {
	if err := f.inTurn(ctx, func() error { return f.reader.discover(ctx) }); err != nil {
		if !f.due.discover.IsZero() {
			f.due.discover = f.o.Now().Add(f.o.RefreshInterval) // what is known of it will do meanwhile
		}
		return err
	}
	f.due.discover = f.o.Now().Add(rediscover)
	var fresh bool
	f.update(func(s *Status) {
		fresh = len(s.Missing) != len(f.reader.missing())
		s.Missing = f.reader.missing()
	})
	if fresh {
		f.o.Log.Warn("the upstream lacks fields, which stay null here", "upstream", f.o.Address, "fields", f.reader.missing())
	}
	return nil
}

// refresh reads the next of the tables. One that the upstream refuses is passed over until the next time.
func (f *Follower) refresh(ctx context.Context) error {
	t := index.TableTypes[f.table]
	var rows []index.Row
	var bad []error
	err := f.inTurn(ctx, func() (err error) {
		rows, bad, err = f.reader.table(ctx, t)
		return err
	})
	if refused := new(QueryError); errors.As(err, &refused) {
		bad, err = append(bad, fmt.Errorf("%ss: %w", t.Name, err)), nil
	}
	if err != nil {
		f.due.tables = f.o.Now().Add(f.o.PollInterval) // what else is due goes first
		return err
	}
	f.report(bad)
	removed, err := f.removedFrom(ctx, t, rows, bad)
	if err != nil {
		return err
	}
	if err := f.write(ctx, index.Batch{Rows: rows, Removed: removed}); err != nil {
		return err
	}
	f.table = (f.table + 1) % len(index.TableTypes)
	if f.table == 0 {
		f.refreshed = true
		f.due.tables = f.o.Now().Add(f.o.RefreshInterval)
	}
	return nil
}

// removedFrom returns the rows of a small table that the upstream no longer has. A row counts as removed if two readings of the whole
// table lack it.
func (f *Follower) removedFrom(ctx context.Context, t *index.Type, rows []index.Row, bad []error) ([]index.RowID, error) {
	ids, err := f.absent(ctx, t, rows)
	if len(ids) == 0 || len(bad) > 0 || err != nil {
		return nil, err
	}
	var again []index.Row
	err = f.inTurn(ctx, func() (err error) {
		again, bad, err = f.reader.table(ctx, t)
		return err
	})
	if err != nil || len(bad) > 0 {
		return nil, err
	}
	still, err := f.absent(ctx, t, again)
	return slices.DeleteFunc(ids, func(id index.RowID) bool { return !slices.Contains(still, id) }), err
}

// write writes a batch and notes what came of it.
func (f *Follower) write(ctx context.Context, b index.Batch) error {
	if len(b.Rows)+len(b.Unverified)+len(b.Withdrawn)+len(b.Removed)+len(b.Positions) == 0 {
		return nil
	}
	b.Index = f.index
	written, err := f.o.Index.Write(ctx, b)
	if appliance.CodeOf(err) == appliance.CodeInvalidField {
		written, err = f.writeSingly(ctx, b)
	}
	if err != nil {
		return err
	}
	f.update(func(s *Status) {
		s.Written += uint64(written.Inserted + written.Updated)
		s.Removed += uint64(written.Removed)
	})
	for _, id := range b.Removed[:min(len(b.Removed), f.warnings)] {
		f.warnings--
		f.o.Log.Warn("the upstream no longer has a row, which is removed", "upstream", f.o.Address, "kind", id.Type.Name, "key", id.Key)
	}
	for _, u := range b.Unverified[:min(len(b.Unverified), f.warnings)] {
		f.warnings--
		f.o.Log.Warn("a row of the upstream does not verify, and is kept apart", "kind", u.Row.Type().Name, "key", u.Row.Key(), "reason", u.Reason)
	}
	return f.measure(ctx)
}

// writeSingly writes a batch of which the index refuses a row, so that it alone is kept apart. The positions come last.
func (f *Follower) writeSingly(ctx context.Context, b index.Batch) (all index.Written, err error) {
	rest := index.Batch{Index: b.Index, Positions: b.Positions, Unverified: b.Unverified, Withdrawn: b.Withdrawn, Removed: b.Removed}
	for _, row := range b.Rows {
		written, err := f.o.Index.Write(ctx, index.Batch{Index: b.Index, Rows: []index.Row{row}})
		switch {
		case appliance.CodeOf(err) != appliance.CodeInvalidField:
		case row.Type() == index.PacketType || row.Type() == index.TransferType:
			rest.Unverified = append(rest.Unverified, index.Unverified{Row: row, Reason: err.Error()})
			err = nil
		default:
			f.report([]error{err})
			err = nil
		}
		if err != nil {
			return all, err
		}
		all.Add(written)
	}
	written, err := f.o.Index.Write(ctx, rest)
	all.Add(written)
	return all, err
}

// measure brings the status up to what the index has.
func (f *Follower) measure(ctx context.Context) error {
	return view(ctx, f.o.Index, func(snap snapshot) error {
		here, err := snap.Status(ctx)
		if err != nil {
			return err
		}
		f.update(func(s *Status) {
			s.Newest, s.Oldest, s.Unverified, s.Unfinished = here.Newest, here.Oldest, here.Unverified, len(f.watched.by)
			if s.Rows == nil {
				return
			}
			for _, t := range []*index.Type{index.PacketType, index.TransferType} {
				s.Rows[t.Name] = Count{Here: here.Rows[t.Name], Upstream: s.Rows[t.Name].Upstream}
			}
			s.LagRows = f.behind(here)
			s.SurplusRows = surplus(s.Rows)
		})
		return nil
	})
}

// behind is how many rows the upstream has that are not here, f.mu being held. What is kept apart is here, too.
func (f *Follower) behind(here index.Status) int64 {
	upstream, have := uint64(0), here.Unverified
	for _, n := range f.status.Rows {
		upstream += n.Upstream
	}
	have += here.Rows[index.PacketType.Name] + here.Rows[index.TransferType.Name]
	if upstream <= have {
		return 0
	}
	return int64(upstream - have)
}

// surplus is the number of rows here that the upstream does not count.
func surplus(rows map[string]Count) (n int64) {
	for _, count := range rows {
		if count.Upstream > 0 && count.Here > count.Upstream {
			n += int64(count.Here - count.Upstream)
		}
	}
	return n
}

// jitter spreads a duration over half as much again, so that many do not come together.
func jitter(d time.Duration) time.Duration {
	return d + time.Duration(rand.Float64()*float64(d)/2)
}
