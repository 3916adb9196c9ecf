package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/google/uuid"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// OpenJournal returns an empty journal with now as its clock, which the journal may call concurrently.
type OpenJournal func(t *testing.T, now func() time.Time) audit.Journal

// TestJournal tests an implementation of journal.Journal. verifier verifies its checkpoints.
func TestJournal(t *testing.T, open OpenJournal, verifier note.Verifier) {
	tests := map[string]func(t *testing.T, s suite){
		"an empty journal answers":                                emptyJournal,
		"an appended record is found unchanged":                   recordIsFound,
		"indexes count from 0 in the order of appending":          indexesCount,
		"a missing record is not found":                           nothingFound,
		"time does not go back when the clock does":               timeIsMonotonic,
		"pages are newest first":                                  listPages,
		"a list can select one API key":                           listOfKey,
		"a list can select a time":                                listOfTime,
		"entries are read in order from any index":                entriesInOrder,
		"an idempotency key appends once":                         idempotent,
		"concurrent requests with an idempotency key append once": idempotentConcurrent,
		"idempotency keys of different API keys are separate":     idempotentPerKey,
		"an id is appended once":                                  idAppendedOnce,
		"an invalid record does not affect others":                badRecord,
		"many goroutines append":                                  concurrentAppends,
		"an ended context does not append":                        endedContext,
		"each record is proven in each tree":                      everyProof,
		"a standard client checks consistency through tiles":      tilesProveConsistency,
		"tiles outside the tree are not found":                    noSuchTile,
		"an intact journal verifies":                              verifies,
	}
	maps.Copy(tests, eventTests)
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			clock := &clock{}
			clock.set(epoch())
			test(t, suite{journal: open(t, clock.now), verifier: verifier, clock: clock})
		})
	}
}

type suite struct {
	journal  audit.Journal
	verifier note.Verifier
	clock    *clock
}

// clock stands still until it is set.
type clock struct{ at atomic.Pointer[time.Time] }

func (c *clock) now() time.Time      { return *c.at.Load() }
func (c *clock) set(t time.Time)     { c.at.Store(&t) }
func (c *clock) add(d time.Duration) { c.set(c.now().Add(d)) }
func sameEntry(a, b journal.Entry) bool {
	return a.Index == b.Index && bytes.Equal(a.Leaf, b.Leaf) && reflect.DeepEqual(a.Record, b.Record) &&
		reflect.DeepEqual(a.Event, b.Event)
}

func (s suite) append(t *testing.T, r appliance.Record) journal.Entry {
	t.Helper()
	e, replayed, err := s.journal.Append(t.Context(), r)
	check(t, err)
	if replayed {
		t.Fatal("a new record is said to be a replay")
	}
	return e
}

func (s suite) appendMany(t *testing.T, n int) []journal.Entry {
	t.Helper()
	entries := make([]journal.Entry, n)
	for i := range entries {
		entries[i] = s.append(t, Record(t, "key"))
	}
	return entries
}

func (s suite) tree(t *testing.T) tlog.Tree {
	t.Helper()
	signed, err := s.journal.Checkpoint(t.Context())
	check(t, err)
	tree, err := journal.OpenCheckpoint(signed, s.verifier)
	check(t, err)
	return tree
}

func emptyJournal(t *testing.T, s suite) {
	check(t, s.journal.Ready(t.Context()))
	if tree := s.tree(t); tree.N != 0 {
		t.Errorf("the checkpoint is of %d records", tree.N)
	}
	list, err := s.journal.List(t.Context(), journal.Query{})
	check(t, err)
	if len(list) != 0 {
		t.Errorf("%d entries are listed", len(list))
	}
	verifies(t, s)
}

func recordIsFound(t *testing.T, s suite) {
	r := Record(t, "key")
	r.IdempotencyKey = `<&>"\` // JSON has several encodings of these characters
	r.Coordinator = "geneva.example/<log>"
	r.Quorum = appliance.NewQuorum(appliance.Address{1}, []appliance.MemberSignature{r.By("here")})
	e := s.append(t, r)
	want := r
	want.Time, want.Salt = e.Record.Time, e.Record.Salt
	if !reflect.DeepEqual(e.Record, want) {
		t.Errorf("appended %+v, returned %+v", want, e.Record)
	}
	if e.Record.Salt == (appliance.Salt{}) {
		t.Error("there is no salt")
	}
	if wantTime := epoch().UTC().Truncate(time.Millisecond); !e.Record.Time.Equal(wantTime) ||
		e.Record.Time.Location() != time.UTC {
		t.Errorf("the time is %v, not %v", e.Record.Time, wantTime)
	}
	leaf, err := journal.EncodeLeaf(e.Record)
	check(t, err)
	if !bytes.Equal(leaf, e.Leaf) {
		t.Errorf("the leaf is %s, not %s", e.Leaf, leaf)
	}
	byID, err := s.journal.ByID(t.Context(), r.ID)
	check(t, err)
	byKey, err := s.journal.ByIdempotencyKey(t.Context(), r.KeyID, r.IdempotencyKey)
	check(t, err)
	for _, got := range []journal.Entry{byID, byKey} {
		if !sameEntry(got, e) {
			t.Errorf("appended %+v, found %+v", e, got)
		}
	}
}

func indexesCount(t *testing.T, s suite) {
	salts := make(map[appliance.Salt]bool)
	for i, e := range s.appendMany(t, 10) {
		if e.Index != int64(i) {
			t.Errorf("record %d has index %d", i, e.Index)
		}
		if tree := s.tree(t); i == 9 && tree.N != 10 {
			t.Errorf("the checkpoint is of %d records, not 10", tree.N)
		}
		salts[e.Record.Salt] = true
	}
	if len(salts) != 10 {
		t.Errorf("10 records have %d salts", len(salts))
	}
}

func nothingFound(t *testing.T, s suite) {
	s.append(t, Record(t, "key"))
	_, err := s.journal.ByID(t.Context(), uuid.New())
	wantCode(t, err, appliance.CodeNotFound)
	_, err = s.journal.ByIdempotencyKey(t.Context(), "key", "never used")
	wantCode(t, err, appliance.CodeNotFound)
	for _, index := range []int64{-1, 1, 1 << 62} {
		_, err = s.journal.Prove(t.Context(), index)
		wantCode(t, err, appliance.CodeNotFound)
	}
}

func timeIsMonotonic(t *testing.T, s suite) {
	var last time.Time
	for _, step := range []time.Duration{0, time.Second, -time.Hour, time.Millisecond, 2 * time.Hour,
		-time.Nanosecond} {
		s.clock.add(step)
		e := s.append(t, Record(t, "key"))
		if e.Record.Time.Before(last) {
			t.Errorf("record %d is of %s, the one before of %s", e.Index, e.Record.Time, last)
		}
		last = e.Record.Time
	}
	verifies(t, s)
}

func (s suite) list(t *testing.T, q journal.Query) (indexes []int64) {
	t.Helper()
	entries, err := s.journal.List(t.Context(), q)
	check(t, err)
	for _, e := range entries {
		indexes = append(indexes, e.Index)
	}
	return indexes
}

func wantIndexes(t *testing.T, got []int64, want ...int64) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("listed %v, not %v", got, want)
	}
}

func listPages(t *testing.T, s suite) {
	s.appendMany(t, 120)
	if got := s.list(t, journal.Query{}); len(got) != 100 || got[0] != 119 || got[99] != 20 {
		t.Errorf("without a limit %d are listed, %v", len(got), got)
	}
	wantIndexes(t, s.list(t, journal.Query{Limit: 3}), 119, 118, 117)
	wantIndexes(t, s.list(t, journal.Query{Limit: 3, Before: 117}), 116, 115, 114)
	wantIndexes(t, s.list(t, journal.Query{Limit: 3, Before: 2}), 1, 0)
	wantIndexes(t, s.list(t, journal.Query{Limit: 2, Before: 1000}), 119, 118)
	if got := s.list(t, journal.Query{Limit: 5000}); len(got) != 120 {
		t.Errorf("with a large limit %d are listed", len(got))
	}
}

func listOfKey(t *testing.T, s suite) {
	for _, keyID := range []string{"b", "a", "c", "b", "b", "a", "bb"} {
		s.append(t, Record(t, keyID))
	}
	wantIndexes(t, s.list(t, journal.Query{KeyID: "b"}), 4, 3, 0)
	wantIndexes(t, s.list(t, journal.Query{KeyID: "b", Limit: 1, Before: 4}), 3)
	wantIndexes(t, s.list(t, journal.Query{KeyID: "a"}), 5, 1)
	wantIndexes(t, s.list(t, journal.Query{KeyID: "bb"}), 6)
	wantIndexes(t, s.list(t, journal.Query{KeyID: "c", Before: 2}))
	wantIndexes(t, s.list(t, journal.Query{KeyID: "d"}))
}

func listOfTime(t *testing.T, s suite) {
	start := epoch().Truncate(time.Second)
	s.clock.set(start)
	for i := range 10 { // two in each second
		keyID := []string{"even", "odd"}[i%2]
		s.append(t, Record(t, keyID))
		if i%2 == 1 {
			s.clock.add(time.Second)
		}
	}
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	wantIndexes(t, s.list(t, journal.Query{From: at(1), Until: at(3)}), 5, 4, 3, 2)
	wantIndexes(t, s.list(t, journal.Query{From: at(1), Until: at(3), KeyID: "odd"}), 5, 3)
	wantIndexes(t, s.list(t, journal.Query{From: at(1), Until: at(3), Before: 4}), 3, 2)
	wantIndexes(t, s.list(t, journal.Query{From: at(4)}), 9, 8)
	wantIndexes(t, s.list(t, journal.Query{From: at(3).Add(time.Millisecond)}), 9, 8)
	wantIndexes(t, s.list(t, journal.Query{Until: at(1)}), 1, 0)
	wantIndexes(t, s.list(t, journal.Query{Until: at(0)}))
	wantIndexes(t, s.list(t, journal.Query{From: at(99)}))
	wantIndexes(t, s.list(t, journal.Query{From: at(3), Until: at(1)}))
}

func entriesInOrder(t *testing.T, s suite) {
	appended := s.appendMany(t, 300)
	for _, first := range []int64{0, 1, 255, 256, 299, 300, 1000} {
		next := first
		check(t, s.journal.Entries(t.Context(), first, func(e journal.Entry) error {
			if e.Index != next || !sameEntry(e, appended[next]) {
				t.Errorf("entry %d is %d, or another than was appended", next, e.Index)
			}
			next++
			return nil
		}))
		if next != max(first, 300) {
			t.Errorf("from %d on, entries end at %d", first, next)
		}
	}
	stop := errors.New("stop")
	err := s.journal.Entries(t.Context(), 0, func(journal.Entry) error { return stop })
	if !errors.Is(err, stop) {
		t.Errorf("the error of yield came back as %v", err)
	}
}

func idempotent(t *testing.T, s suite) {
	r := Record(t, "key")
	r.IdempotencyKey = "once"
	first := s.append(t, r)
	second := Record(t, "key")
	second.IdempotencyKey = "once"
	e, replayed, err := s.journal.Append(t.Context(), second)
	check(t, err)
	if !replayed || !sameEntry(e, first) {
		t.Errorf("replayed %v: %+v, not %+v", replayed, e, first)
	}
	if n := s.tree(t).N; n != 1 {
		t.Errorf("%d records were appended", n)
	}
	_, err = s.journal.ByID(t.Context(), second.ID)
	wantCode(t, err, appliance.CodeNotFound)
}

func idempotentConcurrent(t *testing.T, s suite) {
	const callers, names = 64, 4
	var entries [callers]journal.Entry
	var appended atomic.Int64
	var wg sync.WaitGroup
	for i := range callers {
		r := Record(t, "key")
		r.IdempotencyKey = fmt.Sprint(i % names)
		wg.Go(func() {
			e, replayed, err := s.journal.Append(t.Context(), r)
			if err != nil {
				t.Error(err)
			}
			if !replayed {
				appended.Add(1)
			}
			entries[i] = e
		})
	}
	wg.Wait()
	for i, e := range entries {
		if !sameEntry(e, entries[i%names]) {
			t.Errorf("caller %d got record %d, caller %d got %d", i, e.Index, i%names, entries[i%names].Index)
		}
	}
	if n := s.tree(t).N; n != names || appended.Load() != names {
		t.Errorf("%d records are in the tree and %d callers appended, not %d", n, appended.Load(), names)
	}
	verifies(t, s)
}

func idempotentPerKey(t *testing.T, s suite) {
	for i, r := range []struct{ keyID, idempotencyKey string }{{"a", "bc"}, {"ab", "c"}, {"abc", "c"}, {"a", "b c"},
		{"a b", "c"}} {
		record := Record(t, r.keyID)
		record.IdempotencyKey = r.idempotencyKey
		s.append(t, record)
		e, err := s.journal.ByIdempotencyKey(t.Context(), r.keyID, r.idempotencyKey)
		check(t, err)
		if e.Index != int64(i) {
			t.Errorf("%q %q leads to record %d, not %d", r.keyID, r.idempotencyKey, e.Index, i)
		}
	}
}

func idAppendedOnce(t *testing.T, s suite) {
	r := Record(t, "key")
	first := s.append(t, r)
	if _, _, err := s.journal.Append(t.Context(), r); err == nil {
		t.Error("the same id was appended twice")
	}
	e, err := s.journal.ByID(t.Context(), r.ID)
	check(t, err)
	if !sameEntry(e, first) || s.tree(t).N != 1 {
		t.Errorf("the first record is now %+v of %d", e, s.tree(t).N)
	}
}

func badRecord(t *testing.T, s suite) {
	bad := map[string]func(r *appliance.Record){
		"no id":                        func(r *appliance.Record) { r.ID = uuid.Nil },
		"no API key":                   func(r *appliance.Record) { r.KeyID = "" },
		"an idempotency key not UTF-8": func(r *appliance.Record) { r.IdempotencyKey = "\xff" },
		"an API key that is not UTF-8": func(r *appliance.Record) { r.KeyID = "\xff" },
		"an API key's id with a NUL":   func(r *appliance.Record) { r.KeyID = "a\x00b" },
		"a domain that is not UTF-8":   func(r *appliance.Record) { r.Domain = &appliance.EIP712Domain{Name: "\xff"} },
		"an API key's id without bound": func(r *appliance.Record) {
			r.KeyID = string(bytes.Repeat([]byte("a"), 1<<16))
		},
	}
	var wg sync.WaitGroup
	for name, spoil := range bad {
		good, spoilt := Record(t, "key"), Record(t, "key")
		spoil(&spoilt)
		wg.Go(func() {
			if _, _, err := s.journal.Append(t.Context(), spoilt); err == nil {
				t.Errorf("%s: was appended", name)
			}
		})
		wg.Go(func() {
			if _, _, err := s.journal.Append(t.Context(), good); err != nil {
				t.Errorf("beside %s: %v", name, err)
			}
		})
	}
	wg.Wait()
	if n := s.tree(t).N; n != int64(len(bad)) {
		t.Errorf("%d records were appended, not %d", n, len(bad))
	}
	verifies(t, s)
}

func concurrentAppends(t *testing.T, s suite) {
	const callers, each = 64, 8
	var entries [callers * each]journal.Entry
	var wg sync.WaitGroup
	for c := range callers {
		var records []appliance.Record
		for range each {
			records = append(records, Record(t, fmt.Sprint("key", c%5)))
		}
		wg.Go(func() {
			for i, r := range records {
				e, _, err := s.journal.Append(t.Context(), r)
				if err != nil {
					t.Error(err)
					return
				}
				entries[c*each+i] = e
				// The newest checkpoint covers every returned entry at once.
				if proof, err := s.journal.Prove(t.Context(), e.Index); err != nil {
					t.Error(err)
				} else if err := proof.Verify(e.Leaf, s.verifier); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	seen := make(map[int64]bool)
	for _, e := range entries {
		got, err := s.journal.ByID(t.Context(), e.Record.ID)
		check(t, err)
		if !sameEntry(got, e) || seen[e.Index] {
			t.Errorf("record %d is %+v, or was given twice", e.Index, got)
		}
		seen[e.Index] = true
	}
	if n := s.tree(t).N; n != callers*each {
		t.Errorf("the checkpoint is of %d records, not %d", n, callers*each)
	}
	verifies(t, s)
}

func endedContext(t *testing.T, s suite) {
	s.append(t, Record(t, "key"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := Record(t, "key")
	_, _, err := s.journal.Append(ctx, r)
	wantCode(t, err, appliance.CodeTimeout)
	_, err = s.journal.ByID(ctx, r.ID)
	wantCode(t, err, appliance.CodeTimeout)
	s.append(t, Record(t, "key"))
	_, err = s.journal.ByID(t.Context(), r.ID)
	wantCode(t, err, appliance.CodeNotFound)
	_, err = s.journal.Verify(ctx, audit.Options{})
	wantCode(t, err, appliance.CodeTimeout)
}
