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

// underWay returns a replica with some unfinished packets.
func underWay(t *testing.T, now time.Time) (r *replica.Store, unfinished int) {
	t.Helper()
	r, err := replica.Open(filepath.Join(t.TempDir(), "replica.db"), replica.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	world, err := dataset.NewWorld(t.Context(), dataset.GenerateOptions{Transfers: 10, Seed: 1, Now: now, Chains: 4},
		dataset.Sink(t.Context(), r))
	if err != nil {
		t.Fatal(err)
	}
	rows, err := world.Advance(now.Add(time.Second), 500) // all of them unfinished
	if err == nil {
		_, err = r.Write(t.Context(), index.Batch{Rows: rows})
	}
	if err != nil {
		t.Fatal(err)
	}
	err = r.View(t.Context(), func(s index.Snapshot) error {
		return s.Unfinished(t.Context(), index.Row{}, func(index.Row) error { unfinished++; return nil })
	})
	if err != nil {
		t.Fatal(err)
	}
	return r, unfinished
}

// Unfinished packets are restored a few at a time, so that they do not delay polls, and all of them are restored.
func TestWhatWasLeftUnfinishedDoesNotHoldUpPolls(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 20, 12, 0, 0, 0, time.UTC)
	r, unfinished := underWay(t, now)
	const pace = restoreTime / 50 // the time that each reading of the clock takes
	f := New(Options{Index: r, Now: func() time.Time { now = now.Add(pace); return now }})
	if err := f.load(context.Background()); err != nil || len(f.watched.by) > 0 || f.due.poll.After(f.due.restore) {
		t.Fatalf("%v; %d packets are watched before the first poll", err, len(f.watched.by))
	}
	for steps := 1; !f.due.restore.Equal(never); steps++ {
		before := len(f.watched.by)
		if err := f.restoreOn(t.Context()); err != nil || len(f.watched.by) > before+50 || steps > unfinished {
			t.Fatalf("step %d: %v; of %d packets %d were watched, %d are", steps, err, unfinished, before,
				len(f.watched.by))
		}
	}
	if len(f.watched.by) != unfinished || unfinished < 200 {
		t.Errorf("of %d packets %d are watched", unfinished, len(f.watched.by))
	}
}

// If more packets are unfinished than there is room for watches, all of them are still looked up in turn.
func TestPacketsThatThereIsNoRoomForAreWatchedWhenOthersHaveEnded(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 20, 12, 0, 0, 0, time.UTC)
	r, unfinished := underWay(t, now)
	f := New(Options{Index: r, Now: func() time.Time { return now }})
	if err := f.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	room := unfinished * (&watch{hash: string(make([]byte, 66))}).bytes() / 3
	ended := make(map[string]bool)
	f.watched.size = maxWatched - room
	for round := 1; ; round++ {
		if err := f.restoreOn(t.Context()); err != nil || !f.restored {
			t.Fatalf("round %d: %v, restored is %t", round, err, f.restored)
		}
		for len(f.watched.heap) > 0 {
			e := f.watched.heap[0]
			ended[e.hash] = true
			f.watched.remove(e)
		}
		if len(ended) == unfinished {
			return
		}
		if wait := f.restoreDue().Sub(now); wait <= 0 || wait > defaultLookupInterval || round > 10 {
			t.Fatalf("round %d: of %d packets %d were watched; the next round is in %s", round, unfinished, len(ended),
				wait)
		}
		now = now.Add(defaultLookupInterval)
	}
}

// Packets that never end do not keep others from being looked up.
func TestWhatIsLookedUpRarelyMakesRoomWhereThereIsNone(t *testing.T) {
	t.Parallel()
	for _, full := range []bool{false, true} {
		f := New(Options{})
		f.watched = watches{by: make(map[string]*watch), full: full}
		e := &watch{hash: "0x01", interval: defaultLookupInterval}
		f.watched.set(e, time.Now())
		f.postpone([]*watch{e}, []answer{{}}, f.newIngest())
		if watched := len(f.watched.by) == 1; watched == full {
			t.Errorf("there is no room is %t, and it is watched further on is %t", full, watched)
		}
	}
}
