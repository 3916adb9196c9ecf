package postgres_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/postgres"
	"github.com/attestd/attestd/store/storetest"
)

// fill appends n records, each with a different idempotency key.
func fill(t *testing.T, journal audit.Journal, n int) {
	t.Helper()
	var wg sync.WaitGroup
	for w := range 32 {
		wg.Go(func() {
			for i := w; i < n; i += 32 {
				r := storetest.Record(t, "key")
				r.IdempotencyKey = fmt.Sprint(i)
				if _, _, err := journal.Append(t.Context(), r); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func leavesOf(t *testing.T, j audit.Journal) (leaves [][]byte) {
	t.Helper()
	check(t, j.Entries(t.Context(), 0, func(e journal.Entry) error {
		leaves = append(leaves, e.Leaf)
		return nil
	}))
	return leaves
}

func wantClean(t *testing.T, journal audit.Journal, size int) {
	t.Helper()
	report, err := journal.Verify(t.Context(), audit.Options{})
	check(t, err)
	for _, d := range report.Damages {
		t.Error(d)
	}
	if report.Size != int64(size) {
		t.Errorf("%d records were verified, not %d", report.Size, size)
	}
}

func TestACopyIsNoJournalBeforeItIsFinished(t *testing.T) {
	key := newLogKey(t)
	from, _ := newDatabase(t)
	source := open(t, from, options(key)).Journal()
	fill(t, source, 600)
	leaves := leavesOf(t, source)
	checkpoint, err := source.Checkpoint(t.Context())
	check(t, err)

	to, _ := newDatabase(t)
	o := options(key)
	o.Copying = true
	target := open(t, to, o)
	check(t, target.Import(t.Context(), 0, leaves[:256]))
	check(t, target.Import(t.Context(), 256, leaves[256:300]))
	if target.Import(t.Context(), 256, leaves[256:300]) == nil {
		t.Error("records were put in twice")
	}
	if target.FinishCopy(t.Context(), checkpoint) == nil {
		t.Error("half a copy was finished")
	}
	if _, _, err := target.Journal().Append(t.Context(), storetest.Record(t, "key")); err == nil {
		t.Error("a record was appended to a copy")
	}
	daemon := open(t, to, options(key))
	if err := daemon.Journal().Ready(t.Context()); !errors.Is(err, postgres.ErrOtherLog) {
		t.Errorf("a daemon takes half a copy for its journal: %v", err)
	}
	again := open(t, to, o) // after an interruption
	head, err := again.Head(t.Context())
	check(t, err)
	check(t, again.Import(t.Context(), head.Size, leaves[head.Size:]))
	check(t, again.FinishCopy(t.Context(), checkpoint))

	daemon = open(t, to, options(key))
	check(t, daemon.Journal().Ready(t.Context()))
	wantClean(t, daemon.Journal(), 600)
	if _, replayed, err := daemon.Journal().Append(t.Context(), withIdempotencyKey(t, "7")); err != nil || !replayed {
		t.Errorf("what the source had appended is appended again: %v", err)
	}
	if again.Import(t.Context(), 600, leaves[:1]) == nil {
		t.Error("records were put into a journal that is in use")
	}
}

func withIdempotencyKey(t *testing.T, name string) appliance.Record {
	t.Helper()
	r := storetest.Record(t, "key")
	r.IdempotencyKey = name
	return r
}

func TestALogGoesOnAsAnother(t *testing.T) {
	key := newLogKey(t)
	url, _ := newDatabase(t)
	const records = 300
	store := open(t, url, options(key))
	fill(t, store.Journal(), records)
	for generation := 1; generation <= 2; generation++ {
		checkpoint, err := store.Journal().Checkpoint(t.Context())
		check(t, err)
		event, err := journal.NewContinuation(key, checkpoint, nil, "the tail was lost", "a test", time.Now())
		check(t, err)
		next, _, err := key.Continue(event)
		check(t, err)
		var done, total int64
		check(t, store.Continue(t.Context(), event, next, func(d, n int64) { done, total = d, n }))
		if done != total || total < records {
			t.Errorf("progress ended at %d of %d", done, total)
		}
		if err := store.Journal().Ready(t.Context()); err == nil {
			_, _, err = store.Journal().Append(t.Context(), storetest.Record(t, "key"))
			if !errors.Is(err, postgres.ErrOtherLog) {
				t.Errorf("the old log goes on, too: %v", err)
			}
		}
		key = next
		store = open(t, url, options(key))
		e, err := store.Journal().ByID(t.Context(), event.ID)
		check(t, err)
		if e.Index != 0 || e.Event == nil {
			t.Errorf("the event is %+v", e)
		}
		wantClean(t, store.Journal(), records+2*generation-1)
		replay, replayed, err := store.Journal().Append(t.Context(), withIdempotencyKey(t, "7"))
		check(t, err)
		if !replayed {
			t.Error("what the old log had is appended again")
		}
		proof, err := store.Journal().Prove(t.Context(), replay.Index)
		check(t, err)
		check(t, proof.Verify(replay.Leaf, key.Verifier))
		_, _, err = store.Journal().Append(t.Context(), storetest.Record(t, "key"))
		check(t, err)
		wantClean(t, store.Journal(), records+2*generation)
	}
	leaves := leavesOf(t, store.Journal())
	checkpoint, err := store.Journal().Checkpoint(t.Context())
	check(t, err)
	to, _ := newDatabase(t)
	o := options(key)
	o.Copying = true
	target := open(t, to, o)
	check(t, target.Import(t.Context(), 0, leaves))
	check(t, target.FinishCopy(t.Context(), checkpoint))
	wantClean(t, open(t, to, options(key)).Journal(), records+4)
}

// TestAppliancesRefuseADatabaseThatWasLeft ends the journal in a database under an appliance that runs.
func TestAppliancesRefuseADatabaseThatWasLeft(t *testing.T) {
	raw, _ := newDatabase(t)
	key := newLogKey(t)
	running := open(t, raw, options(key))
	_, _, err := running.Journal().Append(t.Context(), storetest.Record(t, "key"))
	check(t, err)
	head, err := running.Head(t.Context())
	check(t, err)
	source := open(t, raw, postgres.Options{Signer: key.Signer, Verifier: key.Verifier, ReadOnly: true})
	check(t, source.Leave(t.Context(), tlog.Tree{N: head.Size, Hash: head.Root}))

	refused := func(err error) bool {
		return errors.Is(err, postgres.ErrOtherLog) && strings.Contains(err.Error(),
			"was copied to another store and continues there. Set store.url to that store")
	}
	if _, _, err := running.Journal().Append(t.Context(), storetest.Record(t, "key")); !refused(err) {
		t.Errorf("the appliance that runs appends: %v", err)
	}
	await(t, "the appliance that runs is not ready", func() bool {
		return refused(running.Journal().Ready(t.Context()))
	})
	if err := open(t, raw, options(key)).Journal().Ready(t.Context()); !refused(err) {
		t.Errorf("an appliance that starts is ready: %v", err)
	}
}
