package sinks_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/sinks"
)

func TestEachEntryComesInOrderOverRestarts(t *testing.T) {
	t.Parallel()
	j, dir, to := newJournal(t), t.TempDir(), newBox()
	j.attest(t, 25)
	first := j.ship(t, dir, sink("siem", to))
	to.has(t, 25)
	until(t, first, "at the head", func(s sinks.Status) bool {
		return s.Next == 25 && *s.LagRecords == 0 && s.Shipped == 25
	})
	stop(first)
	j.attest(t, 5)
	j.ship(t, dir, sink("siem", to))
	if got := to.has(t, 30); !slices.Equal(got, from(0, 30)) {
		t.Errorf("%v came", got)
	}
}

// A stuck or failing sink does not affect the other sinks.
func TestASinkThatTakesNothingHoldsUpNothing(t *testing.T) {
	t.Parallel()
	j, well, stuck, failing := newJournal(t), newBox(), newBox(), newBox()
	stuck.does(func(ctx context.Context, _ []sinks.Message) error { <-ctx.Done(); return ctx.Err() })
	failing.does(func(context.Context, []sinks.Message) error { return errAway })
	s := j.ship(t, t.TempDir(), sink("failing", failing), sink("stuck", stuck), sink("well", well))
	j.attest(t, 40)
	if got := well.has(t, 40); !slices.Equal(got, from(0, 40)) {
		t.Errorf("%v came", got)
	}
	status := until(t, s, "failing", func(s sinks.Status) bool {
		return s.Failures > 1 && s.LagRecords != nil && *s.LagRecords == 40
	})
	if !strings.Contains(status.Failing, errAway.Error()) || status.Since.IsZero() || status.LagSeconds <= 0 ||
		status.Shipped != 0 {
		t.Errorf("%+v", status)
	}
	failing.does(nil)
	if got := failing.has(t, 40); !slices.Equal(got, from(0, 40)) {
		t.Errorf("once it is back, %v came", got)
	}
	until(t, s, "well again", func(s sinks.Status) bool {
		return s.Failing == "" && *s.LagRecords == 0 && s.LagSeconds == 0
	})
}

func TestABatchIsBounded(t *testing.T) {
	t.Parallel()
	j, few, small := newJournal(t), newBox(), newBox()
	j.attest(t, 30)
	byCount, bySize := sink("few", few), sink("small", small)
	byCount.Batch, bySize.Bytes = 7, 1000
	j.ship(t, t.TempDir(), byCount, bySize)
	for _, b := range []*box{few, small} {
		if got := b.has(t, 30); !slices.Equal(got, from(0, 30)) {
			t.Errorf("%v came", got)
		}
		for _, batch := range b.batches {
			size := 0
			for _, m := range batch {
				size += len(m.Text)
			}
			if b == few && len(batch) > 7 || b == small && size > 1000 && len(batch) > 1 {
				t.Errorf("a batch of %d messages, %d bytes", len(batch), size)
			}
		}
	}
}

// After a failure the batch is smaller, so that a slow sink makes progress within its timeout.
func TestABatchIsSmallerAfterAFailure(t *testing.T) {
	t.Parallel()
	j, to := newJournal(t), newBox()
	to.does(func(_ context.Context, batch []sinks.Message) error {
		if len(batch) > 2 {
			return errAway
		}
		return nil
	})
	j.attest(t, 20)
	j.ship(t, t.TempDir(), sink("slow", to))
	if got := to.has(t, 20); !slices.Equal(got, from(0, 20)) {
		t.Errorf("%v came", got)
	}
}

func TestANewSinkMayBeginNow(t *testing.T) {
	t.Parallel()
	j, dir, to := newJournal(t), t.TempDir(), newBox()
	j.attest(t, 3)
	late := sink("late", to)
	late.FromNow = true
	s := j.ship(t, dir, late)
	until(t, s, "placed", func(s sinks.Status) bool { return s.LagRecords != nil })
	stop(s)
	j.attest(t, 2) // while the sink is stopped: its cursor exists from the first moment
	j.ship(t, dir, late)
	if got := to.has(t, 2); !slices.Equal(got, from(3, 5)) {
		t.Errorf("%v came, want what came after it began", got)
	}
}

func TestASinkThatIsRemovedAndAddedGoesOn(t *testing.T) {
	t.Parallel()
	j, to, other := newJournal(t), newBox(), newBox()
	s := j.ship(t, t.TempDir(), sink("one", to))
	j.attest(t, 3)
	to.has(t, 3)
	until(t, s, "at the head", func(s sinks.Status) bool { return s.Next == 3 })
	s.Set([]sinks.Sink{sink("other", other)})
	j.attest(t, 3)
	other.has(t, 6)
	if got := to.indexes(); len(got) != 3 {
		t.Errorf("a removed sink got %v", got)
	}
	s.Set([]sinks.Sink{sink("other", other), sink("one", to)})
	if got := to.has(t, 6); !slices.Equal(got, from(0, 6)) {
		t.Errorf("%v came", got)
	}
}

// Closing ships the remaining entries.
func TestCloseShipsWhatIsLeft(t *testing.T) {
	t.Parallel()
	j, to := newJournal(t), newBox()
	slow := sink("slow", to)
	slow.Interval = time.Hour
	s := j.ship(t, t.TempDir(), slow)
	until(t, s, "placed", func(s sinks.Status) bool { return s.LagRecords != nil })
	j.attest(t, 25)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s.Close(ctx)
	if got := to.indexes(); !slices.Equal(got, from(0, 25)) {
		t.Errorf("%v came", got)
	}
}

// lines counts warnings.
type lines struct {
	slog.Handler
	count *atomic.Int64
}

func (l lines) Handle(_ context.Context, r slog.Record) error {
	if r.Level == slog.LevelWarn {
		l.count.Add(1)
	}
	return nil
}
func (l lines) WithAttrs([]slog.Attr) slog.Handler { return l }

func TestAFailureIsToldOnceAMinute(t *testing.T) {
	t.Parallel()
	j, to := newJournal(t), newBox()
	j.attest(t, 1)
	to.does(func(context.Context, []sinks.Message) error { return errAway })
	var warnings, clock atomic.Int64
	clock.Store(time.Now().Unix())
	s := sinks.New(sinks.Options{
		Journal: j.Journal(), Verifier: j.key.Verifier, Cursors: sinks.Folder(t.TempDir()),
		Logger: slog.New(lines{slog.NewTextHandler(io.Discard, nil), &warnings}),
		Now:    func() time.Time { return time.Unix(clock.Load(), 0) },
	})
	s.Set([]sinks.Sink{sink("away", to)})
	defer stop(s)
	for minute := int64(1); minute <= 2; minute++ {
		failed := until(t, s, "failing", func(sinks.Status) bool { return warnings.Load() == minute }).Failures
		until(t, s, "failing again", func(s sinks.Status) bool { return s.Failures > failed+2 })
		if n := warnings.Load(); n != minute {
			t.Errorf("%d warnings within minute %d", n, minute)
		}
		clock.Add(60)
	}
}

func TestACursorThatCannotBeReadIsTold(t *testing.T) {
	t.Parallel()
	j, dir, to := newJournal(t), t.TempDir(), newBox()
	j.attest(t, 1)
	check(t, os.WriteFile(sinks.CursorPath(dir, "siem"), []byte("{"), 0o600))
	s := j.ship(t, dir, sink("siem", to))
	status := until(t, s, "failing", func(s sinks.Status) bool { return s.Failing != "" })
	if !strings.Contains(status.Failing, "siem.json") ||
		!strings.Contains(status.Failing, "remove the file to start the sink over") {
		t.Error(status.Failing)
	}
	check(t, os.Remove(sinks.CursorPath(dir, "siem")))
	to.has(t, 1)
}

// In a journal that continues another log, records have new indexes. The sink gets the continuation event and no record
// twice.
func TestACursorFollowsTheJournalToAnotherLog(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		shipped, lost int // shipped records, and how many of them the journal lost
	}{
		"all was shipped":               {5, 0},
		"some was shipped":              {3, 0},
		"more was shipped than is left": {7, 2},
		"nothing was shipped":           {0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j, dir, to := newJournal(t), t.TempDir(), newBox()
			j.attest(t, 5)
			cursor, err := json.Marshal(map[string]any{"log": logName(j), "next": test.shipped})
			check(t, err)
			check(t, os.WriteFile(sinks.CursorPath(dir, "siem"), cursor, 0o600))
			twice := j.continued(t).continued(t)
			twice.attest(t, 2)
			twice.ship(t, dir, sink("siem", to))
			want := append(from(0, 2), from(2+int64(test.shipped-test.lost), 9)...)
			if got := to.has(t, len(want)); !slices.Equal(got, want) {
				t.Errorf("%v came, want the two events and what it has not: %v", got, want)
			}
			if to.logs[0] != logName(twice) {
				t.Errorf("they are told as of %s, want %s", to.logs[0], logName(twice))
			}
		})
	}
}

func TestACursorOfAnUnknownLogBeginsAnew(t *testing.T) {
	t.Parallel()
	j, dir, to := newJournal(t), t.TempDir(), newBox()
	check(t, os.WriteFile(sinks.CursorPath(dir, "siem"), []byte(`{"log":"another+00000000","next":2}`), 0o600))
	j.attest(t, 3)
	j.ship(t, dir, sink("siem", to))
	if got := to.has(t, 3); !slices.Equal(got, from(0, 3)) {
		t.Errorf("%v came", got)
	}
}

// If an older copy replaces the journal, no entry is shipped under an index that the sink has already.
func TestAJournalThatIsShorterThanWhatWasShippedIsTold(t *testing.T) {
	t.Parallel()
	j, dir, to := newJournal(t), t.TempDir(), newBox()
	check(t, os.WriteFile(sinks.CursorPath(dir, "siem"), []byte(`{"log":"`+logName(j)+`","next":4}`), 0o600))
	j.attest(t, 3)
	s := j.ship(t, dir, sink("siem", to))
	status := until(t, s, "failing", func(s sinks.Status) bool { return s.Failing != "" })
	if !strings.Contains(status.Failing, "the journal has 3 records, but the sink has 4") {
		t.Error(status.Failing)
	}
	j.attest(t, 2)
	if got := to.has(t, 1); !slices.Equal(got, from(4, 5)) {
		t.Errorf("%v came", got)
	}
}

// The cursor on disk is never ahead of the sink, and at most one batch behind.
func TestTheCursorIsOnTheDiskBehindTheSink(t *testing.T) {
	t.Parallel()
	j, dir, to := newJournal(t), t.TempDir(), newBox()
	var mu sync.Mutex
	taken := int64(0)
	to.does(func(_ context.Context, batch []sinks.Message) error {
		text, err := os.ReadFile(sinks.CursorPath(dir, "siem"))
		check(t, err)
		var at struct{ Next int64 }
		check(t, json.Unmarshal(bytes.TrimSpace(text), &at))
		mu.Lock()
		defer mu.Unlock()
		if at.Next != taken {
			t.Errorf("the cursor is at %d before entry %d is sent", at.Next, taken)
		}
		taken += int64(len(batch))
		return nil
	})
	j.attest(t, 35)
	j.ship(t, dir, sink("siem", to))
	to.has(t, 35)
}
