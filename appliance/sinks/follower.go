package sinks

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/attestd/attestd/appliance/journal"
)

const (
	// the first retry comes after one interval; then the delay doubles, with a jitter of half
	lastRetry    = time.Minute
	mostLater    = 10 * time.Minute // upper bound of a Later
	warnInterval = time.Minute
	readTimeout  = 30 * time.Second // per read of the journal
	maxScanned   = 100_000          // entries per read of the journal; Encode may leave out most of them
)

// Later is the error of a destination that asks for a pause.
type Later struct {
	After time.Duration
	Cause error
}

func (l *Later) Error() string { return l.Cause.Error() }
func (l *Later) Unwrap() error { return l.Cause }

// follower ships the journal to one sink. Its goroutine owns the fields that mu does not protect.
type follower struct {
	Sink
	opts   Options
	form   Form
	tail   Tail
	log    *slog.Logger
	cancel context.CancelFunc
	ctx    context.Context
	ended  chan struct{}

	at     Cursor
	placed bool // at is a valid position in this log
	most   int  // entries of the next batch; lower after a failure
	retry  *backoff.ExponentialBackOff
	warned time.Time

	mu     sync.Mutex
	status Status
	oldest time.Time // time of the oldest entry that was not shipped
}

func newFollower(o Options, sink Sink) *follower {
	tail := Tail{Journal: o.Journal, Verifier: o.Verifier}
	f := &follower{
		Sink: sink, opts: o, tail: tail, log: o.Logger.With("sink", sink.Name),
		form:  Form{Log: tail.Log(), Version: o.Version, Redact: sink.Redact},
		ended: make(chan struct{}), most: sink.Batch, retry: backoff.NewExponentialBackOff(),
		status: Status{Name: sink.Name, To: sink.To.String()},
	}
	f.retry.InitialInterval, f.retry.MaxInterval, f.retry.Multiplier = min(sink.Interval, lastRetry), lastRetry, 2
	f.ctx, f.cancel = context.WithCancel(context.Background())
	return f
}

func (f *follower) start() {
	go func() {
		defer close(f.ended)
		for f.ctx.Err() == nil {
			more, err := f.step(f.ctx)
			if f.ctx.Err() != nil {
				return
			}
			if wait := f.recordResult(err, more); wait > 0 || !more {
				sleep(f.ctx, max(wait, f.Interval))
			}
		}
	}()
}

// wait returns true once the follower has ended, and false if ctx ends first.
func (f *follower) wait(ctx context.Context) bool {
	select {
	case <-f.ended:
		return true
	case <-ctx.Done():
		f.log.Warn("sink: it hangs; attestd stops without waiting for it")
		return false
	}
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// finish ships the remaining entries, unless the sink is failing.
func (f *follower) finish(ctx context.Context) {
	for more := f.standing().Failing == ""; more; {
		var err error
		if more, err = f.step(ctx); err != nil {
			f.log.Warn("sink: stopped before all entries were shipped; the next start continues", "error", err.Error())
			return
		}
	}
}

// step ships one batch. more reports whether entries remain, or, after an error, whether a smaller batch may succeed.
func (f *follower) step(ctx context.Context) (more bool, err error) {
	size, err := f.checkpointSize(ctx)
	if err != nil {
		return false, fmt.Errorf("journal: %w", err)
	}
	if f.Before != nil {
		if err := f.Before(ctx); err != nil {
			return false, err
		}
	}
	batch, next, err := f.gather(ctx, size)
	if err != nil {
		return false, fmt.Errorf("journal: %w", err)
	}
	if next == f.at.Next {
		return false, nil
	}
	if len(batch) > 0 {
		if err := f.send(ctx, batch); err != nil {
			f.most = max(1, len(batch)/2)
			return len(batch) > 1, err
		}
		f.most = min(2*f.most, f.Batch)
	}
	f.at = f.at.To(next)
	f.moved(size, uint64(len(batch)))
	return f.at.Left(size) > 0, f.opts.Cursors.WriteCursor(ctx, f.Name, f.at)
}

// checkpointSize returns how many entries the newest checkpoint covers. Its first call also finds the sink's position.
func (f *follower) checkpointSize(ctx context.Context) (size int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	if size, err = f.tail.Size(ctx); err != nil {
		return 0, err
	}
	if !f.placed {
		if err := f.findPosition(ctx, size); err != nil {
			return 0, err
		}
	}
	if f.at.Next > size {
		return 0,
			fmt.Errorf("the journal has %d records, but the sink has %d: the journal lost records or was replaced",
				size, f.at.Next)
	}
	f.moved(size, 0)
	return size, nil
}

// findPosition finds the position at which the sink continues.
func (f *follower) findPosition(ctx context.Context, size int64) error {
	at, known, err := f.opts.Cursors.ReadCursor(ctx, f.Name)
	if err != nil {
		return err
	}
	switch {
	case known && at.Log == f.form.Log:
	case known:
		carried, lost, continued, err := f.tail.Carry(ctx, at)
		if err != nil {
			return err
		}
		if known = continued; continued {
			f.log.Warn("sink: the journal continues as another log; the sink continues with it", "before", at.Log,
				"log", f.form.Log, "shipped_but_lost", lost)
			at = carried
			break
		}
		f.log.Warn("sink: its cursor belongs to a log that this journal does not continue; the sink starts over",
			"before", at.Log, "log", f.form.Log)
	}
	if !known {
		at = Cursor{Log: f.form.Log}
		if f.FromNow {
			at.Next = size
		}
	}
	if err := f.opts.Cursors.WriteCursor(ctx, f.Name, at); err != nil {
		return err
	}
	f.at, f.placed = at, true
	return nil
}

// gather reads the next batch. next is the index after it.
func (f *follower) gather(ctx context.Context, size int64) (batch []Message, next int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	next, bytes := f.at.Next, 0
	err = f.tail.Read(ctx, f.at, size, func(e journal.Entry) error {
		if len(batch) == f.most || e.Index >= f.at.Next+maxScanned {
			return ErrEnough
		}
		m, ok, err := f.encode(ctx, e)
		if err != nil {
			return err
		}
		if !ok {
			next = e.Index + 1
			return nil
		}
		if bytes += len(m.Text); len(batch) > 0 && bytes > f.Bytes {
			return ErrEnough
		}
		batch, next = append(batch, m), e.Index+1
		return nil
	})
	return batch, next, err
}

func (f *follower) encode(ctx context.Context, e journal.Entry) (m Message, ok bool, err error) {
	if f.Encode != nil {
		return f.Encode(ctx, e)
	}
	m, err = f.message(e)
	return m, true, err
}

func (f *follower) message(e journal.Entry) (Message, error) {
	t := f.form.fieldsOf(e)
	text, err := t.line(f.Format, f.form.Version)
	m := Message{Log: t.Log, Index: t.Index, Kind: t.kind(), Time: t.Time, Text: text, severity: t.severity}
	if err == nil && len(t.Details) > 0 {
		t.Details = map[string]string{"truncated": "attestd log show " + t.ID.String() + " shows all details"}
		m.brief, err = t.line(f.Format, f.form.Version)
	}
	return m, err
}

func (f *follower) send(ctx context.Context, batch []Message) error {
	f.mu.Lock()
	f.oldest = batch[0].Time
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, f.Timeout)
	defer cancel()
	return f.To.Send(ctx, batch)
}

// recordResult logs and counts the result of a step. It returns the delay before the next step; 0 means the usual
// interval.
func (f *follower) recordResult(err error, more bool) (wait time.Duration) {
	if errors.Is(err, errUnsized) && more {
		return 0
	}
	now := f.opts.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		f.retry.Reset()
		if f.status.Failing != "" {
			f.log.Info("sink: it works again", "after", now.Sub(f.status.Since).Round(time.Second).String(),
				"next", f.status.Next)
			f.status.Failing, f.status.Since = "", time.Time{}
		}
		return 0
	}
	f.status.Failures++
	if f.status.Failing == "" {
		f.status.Since = now
	}
	f.status.Failing = err.Error()
	if now.Sub(f.warned) >= warnInterval {
		f.warned = now
		f.log.Warn("sink: shipping fails and is retried; attesting continues", "error", err.Error(),
			"next", f.status.Next, "failing_since", f.status.Since.UTC().Format(time.RFC3339))
	}
	wait = f.retry.NextBackOff()
	if later, ok := errors.AsType[*Later](err); ok {
		wait = max(wait, min(later.After, mostLater))
	}
	return wait
}

// moved updates the status after reading the journal or shipping a batch.
func (f *follower) moved(size int64, shipped uint64) {
	left := f.at.Left(size)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status.Next, f.status.LagRecords = f.at.Next, &left
	f.status.Shipped += shipped
	if left == 0 {
		f.oldest = time.Time{}
	}
}

func (f *follower) standing() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.status
	if !f.oldest.IsZero() {
		s.LagSeconds = max(0, f.opts.Now().Sub(f.oldest).Seconds())
	}
	return s
}
