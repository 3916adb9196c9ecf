package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	watchEvery  = 500 * time.Millisecond
	readTimeout = 3 * time.Second
	staleAfter  = 3 * time.Second  // age at which the last poll no longer counts
	beatEvery   = 2 * time.Second  // between heartbeats in members
	liveFor     = 10 * time.Second // after its last heartbeat, a member no longer counts as running
	flushEvery  = 30 * time.Second // between writes and reads of last uses
)

// watch polls the head twice a second, so that a key revoked elsewhere is refused early. Ready returns the result of
// the last poll.
type watch struct {
	store  *Store
	state  atomic.Pointer[pollResult]
	first  chan struct{} // closed after the first poll
	ending chan struct{}
	ended  chan struct{}

	flushed time.Time // owned by run
}

// pollResult is the result of a poll.
type pollResult struct {
	at  time.Time // by this process's own clock
	err error
}

func newWatch(s *Store) *watch {
	return &watch{store: s, first: make(chan struct{}), ending: make(chan struct{}), ended: make(chan struct{})}
}

func (w *watch) run() {
	defer close(w.ended)
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	var once sync.Once
	for {
		ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
		err := w.poll(ctx)
		w.saw(err)
		once.Do(func() { close(w.first) })
		if err == nil && !w.store.opts.ReadOnly {
			w.free(ctx)
			w.flushKeyUse(ctx)
		}
		cancel()
		select {
		case <-tick.C:
		case <-w.ending:
			return
		}
	}
}

// close ends the watch and stores the last uses.
func (w *watch) close() {
	close(w.ending)
	<-w.ended
	if !w.store.opts.ReadOnly && w.state.Load().err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
		defer cancel()
		_ = w.store.keys.flush(ctx) // best effort: the database may be gone
	}
}

// saw records the result of a poll and logs a change.
func (w *watch) saw(err error) {
	before := w.state.Swap(&pollResult{at: time.Now(), err: err})
	logger := w.store.opts.Logger
	switch {
	case err != nil && (before == nil || before.err == nil):
		logger.Error("journal: the database is unavailable; signing stops until it is back", "error", err)
	case err == nil && before != nil && before.err != nil:
		logger.Info("journal: the database is available again")
	}
}

// poll polls: it reads, verifies and confirms the head, and refreshes the keys.
func (w *watch) poll(ctx context.Context) error {
	s := w.store
	known := s.safe.Load()
	h, err := w.readHead(ctx)
	if err != nil {
		if stateOf(err) == stateReadOnly || !aborted(err) {
			s.read.Reset() // a demoted primary has an old journal
		}
		return explain(err)
	}
	err = s.check(h, known)
	if errors.Is(err, errUnclaimed) && !s.opts.ReadOnly {
		if err := s.claim(ctx); err != nil {
			return explain(err)
		}
		return w.poll(ctx)
	}
	if err != nil {
		return err
	}
	s.observe(h)
	if err := errors.Join(s.confirm(ctx, h), s.probe(ctx)); err != nil {
		return explain(err)
	}
	s.head.Store(s.safe.Load()) // drops a head that was never confirmed
	if err := s.seen.store(h); err != nil {
		return err
	}
	return s.keys.refresh(ctx, h)
}

// readHead reads the head and the clock in one query.
func (w *watch) readHead(ctx context.Context) (*head, error) {
	s := w.store
	var r row
	var clock time.Time
	var readOnly string
	before := s.opts.Now()
	const query = "SELECT " + headColumns +
		", clock_timestamp(), current_setting('transaction_read_only') FROM log_head WHERE id = 1"
	if err := s.write.QueryRow(ctx, query).Scan(append(r.into(), &clock, &readOnly)...); err != nil {
		return nil, err
	}
	if readOnly == "on" {
		s.write.Reset()
		return nil, errors.New("the database is read-only: it is a standby now, or its disk is not writable")
	}
	after := s.opts.Now()
	s.offset.Store(int64(clock.Sub(before.Add(after.Sub(before) / 2))))
	return r.head()
}

// free terminates a backend that blocks the head's lock and has received no data for idleTimeout, if this appliance has
// waited long. PostgreSQL has a timeout for a transaction that is idle between two statements, but none for a statement
// of which only a part has arrived. A COMMIT that waits for a standby is left alone.
func (w *watch) free(ctx context.Context) {
	if begun := w.store.waitsSince(); begun.IsZero() || time.Since(begun) < idleTimeout-time.Second {
		return
	}
	const query = "SELECT a.pid, pg_terminate_backend(a.pid) FROM pg_stat_activity AS a WHERE a.usename = current_user AND a.datname = current_database() " +
		"AND a.wait_event = 'ClientRead' AND a.xact_start IS NOT NULL AND greatest(a.query_start, a.state_change) < clock_timestamp() - $1::interval " +
		"AND a.pid IN (SELECT unnest(pg_blocking_pids(b.pid)) FROM pg_stat_activity AS b WHERE b.datname = current_database() AND b.wait_event_type = 'Lock')"
	rows, err := w.store.write.Query(ctx, query, idleTimeout)
	if err != nil {
		return
	}
	var pid int
	var ended bool
	_, err = pgx.ForEachRow(rows, []any{&pid, &ended}, func() error {
		w.store.opts.Logger.Warn("journal: ended the database session of an appliance that hung inside its transaction",
			"backend", pid, "ended", ended)
		return nil
	})
	if err != nil { // other databases that speak the protocol may lack these views
		w.store.opts.Logger.Debug("journal: cannot find the session that blocks the head", "error", err)
	}
}

// flushKeyUse stores the last uses of API keys every flushEvery.
func (w *watch) flushKeyUse(ctx context.Context) {
	now := time.Now()
	if now.Sub(w.flushed) >= flushEvery {
		w.flushed = now
		if err := w.store.keys.flush(ctx); err != nil {
			w.store.opts.Logger.Warn("journal: the last uses of API keys were not written", "error", explain(err))
		}
	}
}

// ready returns the result of the last poll. It waits for the first poll.
func (w *watch) ready(ctx context.Context) error {
	select {
	case <-w.first:
	case <-ctx.Done():
		return timeout(ctx, "wait for the database")
	}
	seen := w.state.Load()
	if seen.err != nil {
		return unavailable(seen.err)
	}
	if age := time.Since(seen.at); age > staleAfter {
		return unavailable(fmt.Errorf("the database has not answered for %s", age.Round(time.Second)))
	}
	return nil
}

// beat writes this appliance's heartbeat. If another process has replaced the row since the last heartbeat of this one,
// both use the same name, and the row says so.
func (s *Store) beat(ctx context.Context, conn *pgxpool.Conn) (server time.Time, err error) {
	member, size := s.opts.Member, int64(0)
	if h := s.head.Load(); h != nil {
		size = h.tree.N
	}
	var now Settings
	if member.Settings != nil {
		now = member.Settings()
	}
	var last *time.Time
	if at := s.writer.lastAppend.Load(); at != nil {
		last = at
	}
	err = conn.QueryRow(ctx,
		"INSERT INTO members (name, version, signer, size, last_append, last_seen, instance, scheme, policy, screening) "+
			"VALUES ($1, $2, $3, $4, $5, clock_timestamp(), $6, $7, $8, $9) "+
			"ON CONFLICT (name) DO UPDATE SET version = excluded.version, signer = excluded.signer, size = excluded.size, "+
			"last_append = coalesce(excluded.last_append, members.last_append), last_seen = excluded.last_seen, "+
			"instance = excluded.instance, scheme = excluded.scheme, policy = excluded.policy, screening = excluded.screening, "+
			"shared_seen = CASE WHEN $10 AND members.instance <> excluded.instance THEN excluded.last_seen ELSE members.shared_seen END "+
			"RETURNING pg_postmaster_start_time()",
		member.Name, member.Version, now.Signer, size, last, s.instance, now.Scheme, now.Policy, now.Screening,
		s.beaten.Load()).Scan(&server)
	if err == nil {
		s.beaten.Store(true)
	}
	return server, err
}

// Member is an appliance as of its last heartbeat.
type Member struct {
	Name, Version string
	Instance      string // random, of the process
	Settings
	Size       int64     // of the head that it saw last
	LastAppend time.Time // zero if it has not appended
	LastSeen   time.Time // by the database's clock
	Live       bool      // it was seen in the last 10 s
	Shared     bool      // in the last 10 s, two processes have used the name
}

// Members returns the appliances that were seen in the last day, sorted by name.
func (s *Store) Members(ctx context.Context) ([]Member, error) {
	rows, err := s.read.Query(ctx,
		"SELECT name, version, instance, signer, scheme, policy, screening, size, last_append, last_seen, "+
			"last_seen > clock_timestamp() - $1::interval, coalesce(shared_seen > clock_timestamp() - $1::interval, false) "+
			"FROM members WHERE last_seen > clock_timestamp() - interval '1 day' ORDER BY name", liveFor)
	if err != nil {
		return nil, answer(ctx, "read the members", err)
	}
	members, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (m Member, err error) {
		var last *time.Time
		err = row.Scan(&m.Name, &m.Version, &m.Instance, &m.Signer, &m.Scheme, &m.Policy, &m.Screening, &m.Size, &last,
			&m.LastSeen, &m.Live, &m.Shared)
		if last != nil {
			m.LastAppend = last.UTC()
		}
		m.LastSeen = m.LastSeen.UTC()
		return m, err
	})
	if err != nil {
		return nil, answer(ctx, "read the members", err)
	}
	return members, nil
}
