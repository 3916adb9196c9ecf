package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// PostgreSQL shows a transaction to readers before its synchronous standby has it, if an operator cancels the wait or
// if the primary crashes and restarts. If the standby is promoted then, the transaction is lost. A reader therefore
// commits its own transaction before it answers. The standby has received all earlier WAL once that COMMIT succeeds.

// confirmer runs these COMMITs on its own connection, one at a time. Concurrent readers share one.
type confirmer struct {
	store  *Store
	pool   *pgxpool.Pool
	shared sharedCall[time.Time]
	last   atomic.Int64  // time of the last success, Unix nanoseconds of the system clock
	left   atomic.Uint32 // process ID of a backend that still waits in an abandoned COMMIT, 0 if none
}

// errMoved is returned if the database failed over between a read and the COMMIT that was to confirm it.
var errMoved = errors.New("the database failed over during the read")

// errUnconfirmed is returned if no COMMIT succeeds in time.
var errUnconfirmed = errors.New("the database does not commit: check its synchronous standby")

// confirm returns nil once the synchronous standbys have h and everything that was committed before it.
func (s *Store) confirm(ctx context.Context, h *head) error {
	if s.isConfirmed(h) {
		return nil
	}
	server, err := s.confirmer.shared.do(ctx, s.confirmer.commit)
	if err != nil {
		return fmt.Errorf("%w: %w", errUnconfirmed, err)
	}
	if !server.Equal(h.server) { // a COMMIT on the new primary says nothing about the old one's records
		s.read.Reset()
		return errMoved
	}
	if s.check(h, s.safe.Load()) == nil {
		s.confirmed(h)
	}
	return nil
}

// published calls confirm with the deadline of a read, and returns an error for clients.
func (s *Store) published(ctx context.Context, h *head) error {
	limited, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	if err := s.confirm(limited, h); err != nil {
		return answer(ctx, "confirm the read with the synchronous standby", err)
	}
	return nil
}

// isConfirmed reports whether a COMMIT has succeeded since h was written.
func (s *Store) isConfirmed(h *head) bool {
	c := s.safe.Load()
	return c != nil && c.log == h.log && c.server.Equal(h.server) && h.tree.N <= c.tree.N && h.keys <= c.keys &&
		h.stops <= c.stops
}

// confirmed records h, which was checked, as the newest head that the standbys have.
func (s *Store) confirmed(h *head) {
	for {
		known := s.safe.Load()
		if known != nil && known.log == h.log &&
			(h.tree.N < known.tree.N || h.keys < known.keys || h.stops < known.stops) {
			return
		}
		if s.safe.CompareAndSwap(known, h) {
			return
		}
	}
}

// probe commits if the last COMMIT is older than beatEvery, so that an idle appliance notices a missing standby.
func (s *Store) probe(ctx context.Context) error {
	if s.opts.ReadOnly || time.Since(time.Unix(0, s.confirmer.last.Load())) < beatEvery {
		return nil
	}
	if _, err := s.confirmer.shared.do(ctx, s.confirmer.commit); err != nil {
		return fmt.Errorf("%w: %w", errUnconfirmed, err)
	}
	return nil
}

// commit writes this appliance's heartbeat into members. A store that is no member writes a WAL message instead. It
// returns the start time of the server.
func (c *confirmer) commit() (server time.Time, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), commitTimeout)
	defer cancel()
	for range 2 { // the connection may have ended with its server since the last COMMIT
		var ended bool
		if server, ended, err = c.commitOn(ctx); err == nil || !ended || ctx.Err() != nil {
			break
		}
	}
	return server, err
}

// commitOn makes one attempt. ended reports that the connection has ended.
func (c *confirmer) commitOn(ctx context.Context) (server time.Time, ended bool, err error) {
	conn, err := c.pool.Acquire(ctx)
	if err != nil {
		return server, false, err
	}
	defer conn.Release()
	if left := c.left.Swap(0); left != 0 {
		// on failure, the backend ends with its wait
		_, _ = conn.Exec(ctx,
			"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'SyncRep'",
			int32(left))
	}
	pid, _ := conn.Conn().PgConn().CustomData()[backend].(uint32)
	if c.store.opts.Member.Name != "" && !c.store.opts.ReadOnly {
		server, err = c.store.beat(ctx, conn)
	} else {
		err = conn.QueryRow(ctx,
			"SELECT pg_postmaster_start_time() FROM pg_logical_emit_message(true, 'attestd', '')").Scan(&server)
	}
	if err == nil {
		err = replicated(conn)
	} else if ctx.Err() != nil {
		c.left.Store(pid)
	}
	if err == nil {
		c.last.Store(time.Now().UnixNano())
	}
	return server, conn.Conn().IsClosed(), err
}
