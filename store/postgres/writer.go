package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/queue"
)

const (
	commitTimeout = 10 * time.Second // after it, another connection looks up the outcome of a COMMIT
	stuckAfter    = 5 * time.Second  // how long a batch may take before Ready fails
)

// change is a record or an event to append.
type change struct {
	record appliance.Record
	admits []journal.Condition // of the record
	event  *journal.Event      // nil for a record

	// Set by the writer.
	salted   bool // the record has its salt, which identifies it in later attempts
	entry    journal.Entry
	replayed bool
}

type op = queue.Op[change]

// writer writes the queue's batches, one transaction each.
type writer struct {
	store      *Store
	queue      *queue.Queue[change]
	lastAppend atomic.Pointer[time.Time] // by the clock of records
	// start of the running batch, in Unix nanoseconds of the system's clock; 0 if no batch is running
	begun atomic.Int64

	warned time.Time // owned by the goroutine that writes, like unsaid
	unsaid int       // number of later failed attempts that were not logged
}

// warnEvery limits the log: several attempts may fail each second for hours.
const warnEvery = 10 * time.Second

func newWriter(s *Store) *writer {
	w := &writer{store: s}
	w.queue = queue.New(queue.Options[change]{Write: w.write, Every: time.Hour, Pending: s.opts.Pending})
	return w
}

// write writes a batch and retries transient failures until Options.Timeout. After a COMMIT without an answer, the next
// attempt looks for its records under the head's lock. The earlier transaction held that lock, so that its outcome is
// final by then.
func (w *writer) write(ops []*op, _ bool) error {
	if len(ops) == 0 {
		return nil
	}
	w.begun.Store(time.Now().UnixNano())
	defer w.begun.Store(0)
	ctx, cancel := context.WithTimeout(context.Background(), w.store.opts.Timeout)
	defer cancel()
	b := &batch{store: w.store, ops: ops}
	for attempt := 0; ; attempt++ {
		err := b.write(ctx)
		if err == nil {
			w.appended(b)
			return nil
		}
		if _, refused := errors.AsType[*appliance.Error](err); refused {
			return err // by Options.Accept
		}
		w.warn(b, attempt, err)
		if !passes(err) || !pause(ctx, attempt) {
			return w.failure(b, err)
		}
	}
}

func (w *writer) warn(b *batch, attempt int, err error) {
	if time.Since(w.warned) < warnEvery {
		w.unsaid++
		return
	}
	w.store.opts.Logger.Warn("journal: a batch was not committed", "error", explain(err), "records", len(b.ops),
		"attempt", attempt+1,
		"unknown", b.unknown, "others_since", w.unsaid)
	w.warned, w.unsaid = time.Now(), 0
}

func (w *writer) appended(b *batch) {
	if n := len(b.entries); n > 0 {
		at := b.entries[n-1].Time()
		w.lastAppend.Store(&at)
	}
}

// failure is the error for the callers of an abandoned batch.
func (w *writer) failure(b *batch, err error) error {
	err = explain(err)
	if b.unknown {
		err = fmt.Errorf("the database connection broke during the commit, so its outcome is unknown; repeat the "+
			"request with the same Idempotency-Key: %w", err)
	}
	return unavailable(err)
}

// responds returns an error if a batch takes longer than all of its timeouts together.
func (w *writer) responds() error {
	begun := w.begun.Load()
	if begun == 0 {
		return nil
	}
	limit := w.store.opts.Timeout + commitTimeout + statementTimeout + connectTimeout
	if took := time.Since(time.Unix(0, begun)); took > limit {
		return fmt.Errorf("a batch of records has been pending for %s", took.Round(time.Second))
	}
	return nil
}

// waitsSince returns when the oldest change under way began, or the zero time.
func (s *Store) waitsSince() (since time.Time) {
	for _, begun := range []int64{s.writer.begun.Load(), s.keys.begun.Load()} {
		if at := time.Unix(0, begun); begun != 0 && (since.IsZero() || at.Before(since)) {
			since = at
		}
	}
	return since
}

// stuck returns an error if the current batch has taken longer than stuckAfter.
func (w *writer) stuck() error {
	begun := w.begun.Load()
	if begun == 0 {
		return nil
	}
	if took := time.Since(time.Unix(0, begun)); took > stuckAfter {
		return unavailable(fmt.Errorf("the database has not committed for %s: check its synchronous standby, and "+
			"whether another appliance hangs", took.Round(time.Second)))
	}
	return nil
}

// pause waits before another attempt, with exponential backoff. It returns false if ctx has ended.
func pause(ctx context.Context, attempt int) bool {
	wait := min(10*time.Millisecond<<min(attempt, 6), 500*time.Millisecond)
	timer := time.NewTimer(wait/2 + rand.N(wait/2))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// transaction runs fn in a transaction and commits. ctx does not cancel the COMMIT.
func (s *Store) transaction(ctx context.Context, fn func(tx pgx.Tx) error) error {
	conn, err := s.write.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release() // closes a connection with an open transaction
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		s.abandon(conn, err)
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), commitTimeout)
	defer cancel()
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	return replicated(conn)
}

// abandon rolls back. If err says that the server has become a standby, all connections are replaced, because the
// primary is elsewhere.
func (s *Store) abandon(conn *pgxpool.Conn, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
	defer cancel()
	if stateOf(err) == stateReadOnly {
		s.write.Reset()
		s.read.Reset()
	}
	if conn.Conn().IsClosed() {
		return
	}
	if _, err := conn.Exec(ctx, "ROLLBACK"); err != nil {
		_ = conn.Conn().Close(ctx)
	}
}

// errCancelled is returned for a COMMIT that succeeded on the primary only.
var errCancelled = errors.New(
	"the wait for the synchronous standby was cancelled: the commit is lost if that standby is promoted")

// replicated returns errCancelled if the last COMMIT did not wait for its standby.
func replicated(conn *pgxpool.Conn) error {
	custom := conn.Conn().PgConn().CustomData()
	if custom[cancelled] == nil {
		return nil
	}
	delete(custom, cancelled)
	return errCancelled
}
