package follower

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/dataset"
	"github.com/attestd/attestd/store/replica"
)

// TestWhatWasLeftUnfinishedDoesNotHoldUpPolls: it is restored some packets at a time, and all of it.
func TestWhatWasLeftUnfinishedDoesNotHoldUpPolls(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 20, 12, 0, 0, 0, time.UTC)
	r, err := replica.Open(filepath.Join(t.TempDir(), "replica.db"), replica.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	world, err := dataset.NewWorld(t.Context(), dataset.GenerateOptions{Transfers: 10, Seed: 1, Now: now, Chains: 4}, dataset.Sink(t.Context(), r))
	if err != nil {
		t.Fatal(err)
	}
	rows, err := world.Advance(now.Add(time.Second), 500) // all of them under way
	if err == nil {
		_, err = r.Write(t.Context(), index.Batch{Rows: rows})
	}
	if err != nil {
		t.Fatal(err)
	}
	unfinished := 0
	err = r.View(t.Context(), func(s index.Snapshot) error {
		return s.Unfinished(t.Context(), index.Row{}, func(index.Row) error { unfinished++; return nil })
	})
	if err != nil {
		t.Fatal(err)
	}

	const pace = restoreTime / 50 // which each look at the clock takes
	f := New(Options{Index: r, Now: func() time.Time { now = now.Add(pace); return now }})
	if err := f.load(context.Background()); err != nil || len(f.watched.by) > 0 || f.due.poll.After(f.due.restore) {
		t.Fatalf("%v; %d packets are watched before the first poll", err, len(f.watched.by))
	}
	for steps := 1; !f.due.restore.Equal(never); steps++ {
		before := len(f.watched.by)
		if err := f.restoreOn(t.Context()); err != nil || len(f.watched.by) > before+50 || steps > unfinished {
			t.Fatalf("step %d: %v; of %d packets %d were watched, %d are", steps, err, unfinished, before, len(f.watched.by))
		}
	}
	if len(f.watched.by) != unfinished || unfinished < 200 {
		t.Errorf("of %d packets %d are watched", unfinished, len(f.watched.by))
	}
}
