package bolt_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/bolt"
	"github.com/attestd/attestd/store/storetest"
)

// TestJournal runs the suite with records in the write-ahead log, in the file, and in both.
func TestJournal(t *testing.T) {
	t.Parallel()
	key := newLogKey(t)
	for name, every := range map[string]int64{"not filed": 0, "filed": 1, "partly filed": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			storetest.TestJournal(t, func(t *testing.T, now func() time.Time) audit.Journal {
				o := bolt.WithWAL(options(key), 8<<20)
				o.Now = now
				// The suite tests that time does not go back. How far it may stand still is tested elsewhere.
				o.MaxAhead = 24 * time.Hour
				if every == 0 {
					return held(t, newPath(t), o).Journal()
				}
				s := mustOpen(t, newPath(t), o)
				return &settling{Journal: s.Journal(), store: s, every: every}
			}, key.Verifier)
		})
	}
}

// TestConditions runs the suite of conditions with records in the same places.
func TestConditions(t *testing.T) {
	t.Parallel()
	for name, every := range map[string]int64{"not filed": 0, "filed": 1, "partly filed": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			storetest.TestConditions(t, func(t *testing.T, now func() time.Time) (appliance.Keys, audit.Journal) {
				o := bolt.WithWAL(options(newLogKey(t)), 8<<20)
				o.Now = now
				if every == 0 {
					s := held(t, newPath(t), o)
					return s.Keys(), s.Journal()
				}
				s := mustOpen(t, newPath(t), o)
				return s.Keys(), &settling{Journal: s.Journal(), store: s, every: every}
			})
		})
	}
}

// settling flushes everything into the file after each so many records or events.
type settling struct {
	audit.Journal
	store    *bolt.Store
	every    int64
	appended atomic.Int64
}

func (j *settling) settle(err error) error {
	if j.appended.Add(1)%j.every != 0 {
		return err
	}
	return errors.Join(err, j.store.Settle())
}

func (j *settling) Append(ctx context.Context, r appliance.Record,
	conditions ...journal.Condition) (journal.Entry, bool, error) {
	e, replayed, err := j.Journal.Append(ctx, r, conditions...)
	return e, replayed, j.settle(err)
}

func (j *settling) AppendEvent(ctx context.Context, event journal.Event) (journal.Entry, error) {
	e, err := j.Journal.AppendEvent(ctx, event)
	return e, j.settle(err)
}
