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
	"github.com/attestd/attestd/store/queue"
)

const (
	commitTimeout = 10 * time.Second // after which the outcome of a COMMIT is asked for on another connection
	stuckAfter    = 5 * time.Second  // how long a batch may take before nothing more is signed
)

// change is what a caller waits for: a record to append, or an event.
type change struct {
	record appliance.Record
	admits []appliance.Condition // of the record
	event  *appliance.Event      // nil for a record

	// Set by the writer.
	salted   bool // the record has its salt, by which it is known again
	entry    appliance.Entry
	replayed bool
}

type op = queue.Op[change]

// writer appends: it writes the queue's batches, one transaction each.
type writer struct {
	store      *Store
	queue      *queue.Queue[change]
	lastAppend atomic.Pointer[time.Time] // by the clock of records
	begun      atomic.Int64              // when the batch under way began, in Unix nanoseconds of the system's clock; 0 while there is none

	warned time.Time // of the goroutine that writes, as unsaid is
	unsaid int       // attempts that failed since, of which nothing was logged
}

// warnEvery is how often failed attempts are logged: where the database refuses for hours, several fail each second.
const warnEvery = 10 * time.Second

func newWriter(s *Store) *writer {
	w := &writer{store: s}
	w.queue = queue.New(queue.Options[change]{Write: w.write, Every: time.Hour, Pending: s.opts.Pending})
	return w
}

// write writes a batch of the queue. It tries again what can be, for as long as somebody may wait for it. Where a COMMIT got no
// answer, the next try begins with looking for its records, under the lock: the transaction of which nothing is known
// had it, so that by then it has ended one way or the other.
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
	w.store.opts.Logger.Warn("journal: a batch was not committed", "error", explain(err), "records", len(b.ops), "attempt", attempt+1,
		"unknown", b.unknown, "others_since", w.unsaid)
	w.warned, w.unsaid = time.Now(), 0
}

func (w *writer) appended(b *batch) {
	if n := len(b.entries); n > 0 {
		at := b.entries[n-1].Time()
		w.lastAppend.Store(&at)
	}
}

// failure is what those are told whose batch was given up.
func (w *writer) failure(b *batch, err error) error {
	err = explain(err)
	if b.unknown {
		err = fmt.Errorf("the database broke off while it committed, and could not be asked in time what became of it; the Idempotency-Key finds it later: %w", err)
	}
	return unavailable(err)
}

// responds returns an error where a batch takes longer than all that it may wait for.
func (w *writer) responds() error {
	begun := w.begun.Load()
	if begun == 0 {
		return nil
	}
	limit := w.store.opts.Timeout + commitTimeout + statementTimeout + connectTimeout
	if took := time.Since(time.Unix(0, begun)); took > limit {
		return fmt.Errorf("a batch of records takes %s", took.Round(time.Second))
	}
	return nil
}

// waitsSince is since when a change has been under way; the zero time while there is none.
func (s *Store) waitsSince() (since time.Time) {
	for _, begun := range []int64{s.writer.begun.Load(), s.keys.begun.Load()} {
		if at := time.Unix(0, begun); begun != 0 && (since.IsZero() || at.Before(since)) {
			since = at
		}
	}
	return since
}

// stuck returns an error while a batch takes so long that the next would hardly be answered.
func (w *writer) stuck() error {
	begun := w.begun.Load()
	if begun == 0 {
		return nil
	}
	if took := time.Since(time.Unix(0, begun)); took > stuckAfter {
		return unavailable(fmt.Errorf("the database has not committed for %s: does a synchronous standby not answer, or does another appliance hang?", took.Round(time.Second)))
	}
	return nil
}

// pause waits before another try, for longer each time. It returns false when there is no time left.
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

// transaction runs fn in a transaction and commits it. The COMMIT does not end with ctx.
func (s *Store) transaction(ctx context.Context, fn func(tx pgx.Tx) error) error {
	conn, err := s.write.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release() // closes one on which a transaction is left
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

// abandon ends a transaction that came to nothing because of err, if it is not nil. All connections to a server that has turned into
// a standby are made anew: the primary is elsewhere.
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

// errCancelled is a COMMIT that succeeded on the primary alone.
var errCancelled = errors.New("somebody cancelled the wait for the synchronous standby: what was committed is lost where that standby is promoted")

// replicated returns errCancelled where the COMMIT before has not waited for its standby.
func replicated(conn *pgxpool.Conn) error {
	custom := conn.Conn().PgConn().CustomData()
	if custom[cancelled] == nil {
		return nil
	}
	delete(custom, cancelled)
	return errCancelled
}
