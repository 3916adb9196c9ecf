package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/queue"
)

const (
	entriesStep = 512 // entries per query, which bounds a reader's memory

	clockJitter  = time.Second // how far time synchronisation may set a clock back
	warnInterval = time.Minute // between warnings that the newest record is ahead of the clock
)

// Journal implements journal.Journal. Appends go through the store's writer; reads have separate connections.
type Journal struct {
	store  *Store
	warned atomic.Int64 // last time of the warning that the newest record is ahead of the clock, in Unix nanoseconds
}

var _ audit.Journal = (*Journal)(nil)

// Append implements journal.Journal. If ctx ends while the record is queued, the record is not appended.
func (j *Journal) Append(ctx context.Context, r appliance.Record,
	conditions ...journal.Condition) (journal.Entry, bool, error) {
	if j.store.writer == nil || j.store.opts.Copying {
		return journal.Entry{}, false, errReadOnly()
	}
	o := &queue.Op[change]{Value: change{record: r, admits: conditions}}
	if err := j.store.writer.queue.Do(ctx, o); err != nil {
		return journal.Entry{}, false, err
	}
	return o.Value.entry, o.Value.replayed, nil
}

// AppendEvent implements journal.Journal. If ctx ends while the event is queued, the event is not appended.
func (j *Journal) AppendEvent(ctx context.Context, e journal.Event) (journal.Entry, error) {
	if j.store.writer == nil || j.store.opts.Copying {
		return journal.Entry{}, errReadOnly()
	}
	if err := e.Prepare(); err != nil {
		return journal.Entry{}, err
	}
	o := &queue.Op[change]{Value: change{event: &e}}
	err := j.store.writer.queue.Do(ctx, o)
	return o.Value.entry, err
}

// Ready implements journal.Journal. It returns nil if the primary answers and commits, the schema is supported and
// the head is good. The answer comes from memory and is at most three seconds old.
func (j *Journal) Ready(ctx context.Context) error {
	s := j.store
	if s.writer == nil || s.opts.Copying {
		return errReadOnly()
	}
	if err := s.watch.ready(ctx); err != nil {
		return err
	}
	if err := s.writer.stuck(); err != nil {
		return err
	}
	if h := s.head.Load(); h != nil {
		return s.checkClock(h.last)
	}
	return nil
}

// checkClock returns an error if a new record would get a wrong time. Times never decrease: a record would take over a
// newest record's time in the future, and a fast clock here would bind all other appliances.
func (s *Store) checkClock(last time.Time) error {
	now := s.opts.Now()
	if fast := -time.Duration(s.offset.Load()); fast > s.opts.MaxAhead {
		return unavailable(fmt.Errorf("this machine's clock is %s ahead of the database's, more than "+
			"journal.max_ahead (%s): correct the wrong clock",
			fast.Round(time.Second), s.opts.MaxAhead))
	}
	ahead := last.Sub(now)
	if ahead <= clockJitter {
		return nil
	}
	refused := ahead > s.opts.MaxAhead
	if since := now.UnixNano() - s.journal.warned.Load(); since < 0 || since >= int64(warnInterval) {
		s.journal.warned.Store(now.UnixNano())
		level, what := slog.LevelWarn, "new records get that time until the clock has caught up"
		if refused {
			level, what = slog.LevelError, "signing stops until the clock has caught up or journal.max_ahead is raised"
		}
		s.opts.Logger.Log(context.Background(), level, "journal: the newest record is ahead of the clock: "+what,
			"ahead", ahead.Round(time.Second).String(), "max_ahead", s.opts.MaxAhead.String())
	}
	if !refused {
		return nil
	}
	return unavailable(fmt.Errorf("the newest record is %s ahead of the clock, more than journal.max_ahead (%s): set "+
		"the clock, "+
		"or raise journal.max_ahead if the clock was wrong when that record was made", ahead.Round(time.Second),
		s.opts.MaxAhead))
}

// ByID implements journal.Journal.
func (j *Journal) ByID(ctx context.Context, id uuid.UUID) (journal.Entry, error) {
	resets := j.store.resets.Load()
	e, err := j.one(ctx, "id = $1", id)
	if errors.Is(err, pgx.ErrNoRows) { // also on a connection to a demoted primary, which reading the head finds
		if _, failed := j.store.trusted(ctx); failed != nil {
			return e, failed
		}
		if j.store.resets.Load() != resets {
			e, err = j.one(ctx, "id = $1", id)
		}
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return e, appliance.Errorf(appliance.CodeNotFound, "no attestation %s", id)
	}
	return e, err
}

// ByIdempotencyKey implements journal.Journal.
func (j *Journal) ByIdempotencyKey(ctx context.Context, keyID, idempotencyKey string) (journal.Entry, error) {
	e, err := j.one(ctx, "key_id = $1 AND idempotency_key = $2", keyID, idempotencyKey)
	if errors.Is(err, pgx.ErrNoRows) {
		return e, appliance.Errorf(appliance.CodeNotFound, "no attestation with this Idempotency-Key")
	}
	return e, err
}

// one reads, proves and confirms the entry that matches a condition. It returns pgx.ErrNoRows if no entry matches.
func (j *Journal) one(ctx context.Context, condition string, args ...any) (e journal.Entry, err error) {
	limited, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var index int64
	var leaf []byte
	err = j.store.read.QueryRow(limited,
		"SELECT index + (SELECT continued FROM log_head WHERE id = 1), leaf FROM records WHERE "+condition,
		args...).Scan(&index, &leaf)
	if errors.Is(err, pgx.ErrNoRows) {
		return e, err
	}
	if err == nil {
		e, err = entry(index, leaf)
	}
	if err == nil {
		var h *head
		if h, err = j.store.trusted(ctx); err == nil { // newer than the record
			err = j.store.prove(limited, h, []journal.Entry{e})
		}
		if err == nil {
			err = j.store.confirm(limited, h)
		}
	}
	if err != nil {
		return e, answer(ctx, "read a record", err)
	}
	return e, nil
}

// List implements journal.Journal.
func (j *Journal) List(ctx context.Context, q journal.Query) ([]journal.Entry, error) {
	h, err := j.store.trusted(ctx)
	if err == nil {
		err = j.store.published(ctx, h)
	}
	if err != nil {
		return nil, err
	}
	first, end, err := j.indexRange(ctx, h, q)
	if err != nil || first >= end {
		return nil, err
	}
	where, args := "", []any{first - h.continued, end - h.continued, q.Size()}
	and := func(condition string, value any) {
		args = append(args, value)
		where += fmt.Sprintf(" AND "+condition, len(args))
	}
	if q.KeyID != "" {
		and("key_id = $%d", q.KeyID)
	}
	if q.Hash != nil {
		and("digest = $%d", q.Hash[:])
	}
	if q.Unspendable != nil {
		and("unspendable = $%d", q.Unspendable[:])
	}
	if q.AttestationsOnly {
		where += " AND key_id IS NOT NULL"
	}
	if q.EventsOnly {
		where += " AND key_id IS NULL"
	}
	if !q.From.IsZero() { // EventLogContinued is not ordered by time
		and("time >= $%d", q.From)
	}
	if !q.Until.IsZero() {
		and("time < $%d", q.Until)
	}
	return j.entries(ctx, h, "index >= $1 AND index < $2"+where+" ORDER BY index DESC LIMIT $3", args...)
}

// entries reads and proves entries with one query.
func (j *Journal) entries(ctx context.Context, h *head, condition string,
	args ...any) (entries []journal.Entry, err error) {
	limited, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	rows, err := j.store.read.Query(limited, "SELECT index, leaf FROM records WHERE "+condition, args...)
	if err == nil {
		err = eachEntry(rows, h.continued, func(e journal.Entry) { entries = append(entries, e) })
		rows.Close()
	}
	if err == nil {
		err = j.store.prove(limited, h, entries)
	}
	if err != nil {
		return nil, answer(ctx, "read records", err)
	}
	return entries, nil
}

// indexRange returns the range of indexes that can match a query. end is exclusive.
func (j *Journal) indexRange(ctx context.Context, h *head, q journal.Query) (first, end int64, err error) {
	end = h.tree.N
	if q.Before > 0 {
		end = min(end, q.Before)
	}
	if !q.Until.IsZero() {
		until, err := j.searchTime(ctx, h, q.Until)
		if err != nil {
			return 0, 0, err
		}
		end = min(end, until)
	}
	if !q.From.IsZero() {
		if first, err = j.searchTime(ctx, h, q.From); first == h.continued {
			first = 0 // EventLogContinued entries come before all records
		}
	}
	return first, end, err
}

// searchTime returns the index of the first record that is not earlier than t. Times never decrease, so that a binary
// search in the database needs no index on time.
func (j *Journal) searchTime(ctx context.Context, h *head, t time.Time) (i int64, err error) {
	const halve = `WITH RECURSIVE range (lo, hi) AS (
		SELECT 0::bigint, $1::bigint
		UNION ALL
		SELECT CASE WHEN earlier THEN mid + 1 ELSE lo END, CASE WHEN earlier THEN hi ELSE mid END FROM (
			SELECT lo, hi, (lo + hi) / 2 AS mid, (SELECT time FROM records WHERE index = (lo + hi) / 2) < $2 AS earlier FROM range WHERE lo < hi
		) AS step
	) SELECT lo FROM range WHERE lo >= hi`
	limited, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	if err := j.store.read.QueryRow(limited, halve, h.tree.N-h.continued, t).Scan(&i); err != nil {
		return 0, answer(ctx, "find the records of a time", err)
	}
	return i + h.continued, nil
}

// Entries implements journal.Journal. It ends at the head that was read first. It reads ahead with several
// connections, but yield runs without one.
func (j *Journal) Entries(ctx context.Context, first int64, yield func(journal.Entry) error) error {
	h, err := j.store.trusted(ctx)
	if err == nil {
		err = j.store.published(ctx, h)
	}
	if err != nil {
		return err
	}
	first = max(first, 0)
	return audit.Ahead((h.tree.N-first+entriesStep-1)/entriesStep, func(n int64) ([]journal.Entry, error) {
		begin := first + n*entriesStep
		end := min(h.tree.N, begin+entriesStep)
		step, err := j.entries(ctx, h, "index >= $1 AND index < $2 ORDER BY index", begin-h.continued, end-h.continued)
		for next := begin; err == nil && next < end; next++ {
			if i := next - begin; i >= int64(len(step)) || step[i].Index != next {
				err = unavailable(fmt.Errorf("%w: record %d is missing", ErrDamaged, next))
			}
		}
		return step, err
	}, func(_ int64, step []journal.Entry) error {
		for _, e := range step {
			if err := yield(e); err != nil {
				return err
			}
		}
		return nil
	})
}

// Checkpoint implements journal.Journal. It returns the committed checkpoint from the database, which covers the
// answers of all appliances.
func (j *Journal) Checkpoint(ctx context.Context) ([]byte, error) {
	h, err := j.store.begun(ctx)
	if err == nil {
		err = j.store.published(ctx, h)
	}
	if err != nil {
		return nil, err
	}
	return slices.Clone(h.checkpoint), nil
}
