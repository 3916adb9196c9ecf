// Package follower keeps an index.Index in step with an upstream: another GraphQL endpoint of the same API.
//
// A Follower makes one request at a time. The next request serves the task that is due first:
//
//	tables    chains, tokens, clients, connections and channels, each read whole, every RefreshInterval
//	poll      packets and transfers above the highest cursors, and the upstream's counts, every PollInterval (live.go)
//	backfill  packets and transfers below the lowest cursors, down to the oldest (backfill.go)
//	lookups   unfinished packets and their transfers by hash, at growing intervals; missing ones at once (lookup.go)
//	restore   queues the packets that an earlier follower left unfinished for lookup, a few at a time (unfinished.go)
//	sweep     a rescan from the newest row backwards that compares keys with the index, to find late rows (sweep.go)
//
// An ingest (ingest.go) checks every row and gathers the rows into a batch. The batch is written together with the
// positions that it reaches, so a crash neither loses nor repeats rows. Cursors are opaque.
package follower

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/time/rate"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index"
)

// Options configure a Follower.
type Options struct {
	Index    index.Index
	Upstream Upstream
	Address  string // of the upstream, for Status; a new address restarts the read from the beginning
	// Chains checks packets before they are served. Packets that their chain does not confirm are quarantined. nil checks
	// none.
	Chains Chains

	// The intervals below have no defaults. Run and Sync return an error if one of them is not positive.
	PollInterval    time.Duration // between polls for newer rows when the last poll reached the top
	RefreshInterval time.Duration // of chains, tokens, channels, clients and connections
	Overlap         time.Duration // how far back, by send time, each rescan reads to find rows that arrived late

	LookupInterval time.Duration  // the longest time between lookups of an unfinished packet; zero means an hour
	Rate           appliance.Rate // of requests; zero means no limit, but requests never run concurrently
	// GiveUp is how long Sync retries without success before it returns the error; zero means forever.
	GiveUp time.Duration

	Log *slog.Logger     // nil discards the log
	Now func() time.Time // nil means time.Now
}

const defaultLookupInterval = time.Hour

// rediscover is the interval at which the upstream's schema is read again.
const rediscover = time.Hour

// Follower follows an upstream. Its methods are safe for concurrent use, but only one Run or Sync may be active.
type Follower struct {
	o      Options
	reader *reader
	turn   chan struct{} // a semaphore of one: held while a request is in flight
	pace   *rate.Limiter
	woken  chan struct{}

	mu     sync.Mutex
	status Status // guarded by mu

	// The goroutine of Run or Sync owns the fields below.
	index              string // index.Status.ID of the index that the state below describes
	packets, transfers stream // positions as written to the index
	back               backfill
	watched            watches
	unfinished         index.Row // the last packet that restoreOn has queued
	restored           bool      // restoreOn has queued every unfinished packet, or as many as fit
	sweep              sweep
	missing            missing
	table              int // position in index.TableTypes of the next table to refresh
	due                struct{ discover, tables, poll, backfill, restore, lookUps, sweep time.Time }
	saved              time.Time // when the positions were last written
	began              time.Time // when Run or Sync was called
	rechecked          time.Time // when recheck was last called; zero once the recheck is complete
	refreshed          bool      // all tables have been read since Run or Sync was called
	retry              *backoff.ExponentialBackOff
	succeeded          time.Time     // when a step last succeeded
	share              atomic.Int32  // parts per request; the read-ahead goroutine uses it, too
	limit              int           // rows to ask for per page
	steps              int           // successful steps since the upstream last refused a request
	warnings           int           // how many more unverified or removed rows may be logged; all of them are counted
	complaints         *rate.Limiter // limits log lines about unreadable rows
}

// New returns a Follower that is not running yet. It will continue from the positions in the index.
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
		o: o, reader: newReader(o.Upstream), turn: make(chan struct{}, 1), woken: make(chan struct{}, 1),
		pace: rate.NewLimiter(rate.Inf, 1), retry: backoff.NewExponentialBackOff(), limit: index.MaxLimit,
		warnings:   100,
		complaints: rate.NewLimiter(rate.Every(time.Minute), 100),
	}
	f.share.Store(maxParts)
	if (o.Rate != appliance.Rate{}) && o.Rate != appliance.Unlimited {
		f.pace = rate.NewLimiter(rate.Limit(o.Rate.PerSecond), o.Rate.Burst())
	}
	f.retry.InitialInterval = min(500*time.Millisecond, o.PollInterval)
	f.retry.MaxInterval = 15 * time.Second // bounds the delay once the upstream is back
	f.status.Upstream = o.Address
	return f
}

// Run follows the upstream until ctx ends and then returns nil. It retries if the upstream or the disk fails.
func (f *Follower) Run(ctx context.Context) error {
	return f.follow(ctx, nil)
}

// Sync follows the upstream until the index holds every row that the upstream has, and then returns nil.
//
// Errors: ctx's error; the last failure if no step has succeeded for Options.GiveUp.
func (f *Follower) Sync(ctx context.Context) error {
	if err := f.follow(ctx, f.complete); err != nil {
		return err
	}
	return ctx.Err()
}

// Wake ends a wait between polls, or after a failure unless the upstream asked for that wait. The follower then also
// looks up quarantined rows again and searches for rows that the upstream counts but has not listed. Status.InStep does
// not advance until both are done.
func (f *Follower) Wake() {
	select {
	case f.woken <- struct{}{}:
	default:
	}
}

// follow runs the tasks that are due until ctx ends or complete returns true. A nil complete never ends the loop.
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
			loaded = false // the state in memory may be ahead of the state on disk
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

// leave writes the positions and the time of Status.InStep although ctx has ended. It must not run after a panic or a
// failure: the state in memory may then be ahead of the state on disk.
func (f *Follower) leave(ctx context.Context) {
	const patience = 5 * time.Second
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	if err := f.write(ctx, index.Batch{Positions: f.positions()}); err != nil {
		f.o.Log.Debug("the time of the last full synchronisation cannot be stored", "error", err.Error())
	}
}

// step runs the task that is due first, or waits until one is due.
func (f *Follower) step(ctx context.Context) (acted bool, err error) {
	select {
	case <-f.woken: // a busy follower never reaches the receive in sleep
		f.wokenUp()
	default:
	}
	now := f.o.Now()
	do, due := f.discover, f.due.discover
	for _, task := range []struct {
		due time.Time
		do  func(context.Context) error
	}{
		{f.due.tables, f.refresh}, {f.due.poll, f.poll}, {f.due.backfill, f.backfillOn}, {f.restoreDue(), f.restoreOn},
		{later(f.watched.due(), f.due.lookUps), f.lookUp}, {f.sweep.due(f), f.sweepOn},
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

// later returns the later of two times. step uses it so that overdue lookups alternate with the other tasks.
func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// never is the due time of an idle task.
var never = time.Unix(1<<40, 0)

// sleep waits, but Wake ends the wait and makes the next poll due.
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

// wokenUp makes the poll, the tables and the recheck due that Wake asks for.
func (f *Follower) wokenUp() {
	f.due.poll, f.due.tables = time.Time{}, time.Time{}
	f.recheck()
}

// recheck queues lookups of quarantined rows, and a full rescan if the upstream's counts differ from the index.
// Status.InStep does not advance until both are done.
func (f *Follower) recheck() {
	now := f.o.Now()
	f.rechecked = now
	for _, e := range f.watched.by {
		if len(e.quarantined) > 0 {
			f.watched.set(e, now)
		}
	}
	f.searchGap()
}

// searchGap asks for a full rescan if an earlier rescan left a difference between the upstream's counts and the index
// unexplained.
func (f *Follower) searchGap() {
	f.sweep.wanted = f.sweep.wanted || f.missing.explained+f.missing.surplus > 0
}

// rechecking reports whether a recheck is still incomplete.
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
		if len(e.quarantined) > 0 && e.looked.Before(f.rechecked) {
			return true
		}
	}
	f.rechecked = time.Time{}
	return false
}

// noteFailure records a failure and waits. The wait grows exponentially and is at least as long as the upstream asked
// for.
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
		f.due.discover = time.Time{} // the upstream may have changed its schema
		f.share.Store(max(1, f.share.Load()/2))
		f.steps = 0
	}
	level := slog.LevelDebug
	if first { // log repeated failures at debug level only
		level = slog.LevelWarn
	}
	f.o.Log.Log(ctx, level, "the upstream cannot be followed and is retried", "upstream", f.o.Address,
		"error", err.Error(), "retry", max(wait, asked).Round(time.Millisecond).String())
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

// trustAfter is the number of successful steps after which requests ask for more parts again.
const trustAfter = 10

// noteSuccess records a successful step: the upstream answered, and the index accepted the write.
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

// noteCounts stores the upstream's counts in the status.
func (f *Follower) noteCounts(c counts) {
	if c.packets+c.transfers == 0 {
		return
	}
	f.update(func(s *Status) {
		packet, transfer := index.PacketType.Name, index.TransferType.Name
		s.Rows = map[string]Count{packet: {s.Rows[packet].Here, c.packets},
			transfer: {s.Rows[transfer].Here, c.transfers}}
	})
}

// query requests the parts, f.share of them per request. It returns the counts of the last request.
func (f *Follower) query(ctx context.Context, parts ...part) (answers []answer, c counts, err error) {
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

// inTurn makes one request. Requests never run concurrently and keep to the rate limit.
func (f *Follower) inTurn(ctx context.Context, request func() error) error {
	if err := f.pace.Wait(ctx); err != nil {
		return fmt.Errorf("wait for the rate limit: %w", err)
	}
	select {
	case f.turn <- struct{}{}:
		defer func() { <-f.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	f.update(func(s *Status) { s.Requests++ })
	return request()
}

// report records rows that cannot be read. Such rows are left out and do not hold up the others.
func (f *Follower) report(bad []error) {
	for _, err := range bad {
		if f.complaints.Allow() {
			f.o.Log.Warn("a row of the upstream cannot be read and is skipped", "upstream", f.o.Address,
				"error", err.Error())
		}
		f.update(func(s *Status) { s.LastError, s.LastErrorAt = "a row cannot be read: "+err.Error(), f.o.Now() })
	}
}

// discover reads the upstream's schema and plans the queries.
func (f *Follower) discover(ctx context.Context) error {
	if err := f.inTurn(ctx, func() error { return f.reader.discover(ctx) }); err != nil {
		if !f.due.discover.IsZero() {
			f.due.discover = f.o.Now().Add(f.o.RefreshInterval) // the schema known so far stays in use
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
		f.o.Log.Warn("the upstream lacks fields; they stay null in the replica", "upstream", f.o.Address,
			"fields", f.reader.missing())
	}
	return nil
}

// refresh reads the next table. If the upstream refuses the query, refresh skips the table until the next round.
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
		f.due.tables = f.o.Now().Add(f.o.PollInterval) // other due tasks go first
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

// jitter lengthens d at random by up to half, so that lookups do not bunch up.
func jitter(d time.Duration) time.Duration {
	return d + time.Duration(rand.Float64()*float64(d)/2)
}
