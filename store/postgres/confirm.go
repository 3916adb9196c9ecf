package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// A COMMIT that waits for a synchronous standby can be seen by others before the standby has it: when somebody cancels the wait, or when
// the primary crashes and comes back. Where the standby is promoted then, it never was. So what was read is answered only once another
// COMMIT, begun after the read, has succeeded: the standby has what stands before that in the write-ahead log.

// confirmer makes these COMMITs, one at a time, on a connection of its own: those who wait share them.
type confirmer struct {
	store  *Store
	pool   *pgxpool.Pool
	shared flight[struct{}]
	last   atomic.Int64  // when one succeeded last, in Unix nanoseconds of the system's clock
	left   atomic.Uint32 // backend of a COMMIT that was given up; it holds a connection of the server for as long as it waits
}

// errUnconfirmed is what those are told who wait for a COMMIT in vain.
var errUnconfirmed = errors.New("the database does not commit: does its synchronous standby answer?")

// confirm returns once a head, and what was read before it, is known to be on the synchronous standbys.
func (s *Store) confirm(ctx context.Context, h *head) error {
	if s.isConfirmed(h) {
		return nil
	}
	if _, err := s.confirmer.shared.do(ctx, s.confirmer.commit); err != nil {
		return fmt.Errorf("%w: %w", errUnconfirmed, err)
	}
	if s.check(h, s.safe.Load()) == nil {
		s.confirmed(h)
	}
	return nil
}

// published is confirm for what is answered to whoever asks.
func (s *Store) published(ctx context.Context, h *head) error {
	limited, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	if err := s.confirm(limited, h); err != nil {
		return answer(ctx, "make sure that the synchronous standby has what was read", err)
	}
	return nil
}

// isConfirmed says whether a COMMIT after this head has succeeded.
func (s *Store) isConfirmed(h *head) bool {
	c := s.safe.Load()
	return c != nil && c.log == h.log && h.tree.N <= c.tree.N && h.keys <= c.keys && h.stops <= c.stops
}

// confirmed takes note of a head after which a COMMIT has succeeded, and which was checked.
func (s *Store) confirmed(h *head) {
	for {
		known := s.safe.Load()
		if known != nil && known.log == h.log && (h.tree.N < known.tree.N || h.keys < known.keys || h.stops < known.stops) {
			return
		}
		if s.safe.CompareAndSwap(known, h) {
			return
		}
	}
}

// probe makes sure, now and then, that the database commits where nothing else has a COMMIT made.
func (s *Store) probe(ctx context.Context) error {
	if s.opts.ReadOnly || time.Since(time.Unix(0, s.confirmer.last.Load())) < beatEvery {
		return nil
	}
	if _, err := s.confirmer.shared.do(ctx, s.confirmer.commit); err != nil {
		return fmt.Errorf("%w: %w", errUnconfirmed, err)
	}
	return nil
}

// commit commits this appliance's sign of life, or, where it is no member, a message in the write-ahead log that no table has.
func (c *confirmer) commit() (none struct{}, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), commitTimeout)
	defer cancel()
	conn, err := c.pool.Acquire(ctx)
	if err != nil {
		return none, err
	}
	defer conn.Release()
	if left := c.left.Swap(0); left != 0 {
		_, _ = conn.Exec(ctx, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'SyncRep'", int32(left)) // else the next end it
	}
	pid := conn.Conn().PgConn().PID()
	if c.store.opts.Member.Name != "" && !c.store.opts.ReadOnly {
		err = c.store.beat(ctx, conn)
	} else {
		_, err = conn.Exec(ctx, "SELECT pg_logical_emit_message(true, 'attestd', '')")
	}
	if err == nil {
		err = replicated(conn)
	} else if ctx.Err() != nil {
		c.left.Store(pid)
	}
	if err == nil {
		c.last.Store(time.Now().UnixNano())
	}
	return none, err
}
