package bolt_test

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/bolt"
	"github.com/attestd/attestd/store/storetest"
)

// continued is a log in its own file that continues another log.
type continued struct {
	*bolt.Store
	path  string
	key   journal.LogKey
	event journal.Event
}

func openContinued(t *testing.T, path string, key journal.LogKey) *bolt.Store {
	t.Helper()
	s, err := bolt.Open(path, bolt.Options{Signer: key.Signer, Verifier: key.Verifier})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// goOn continues a store's journal as a new log.
func goOn(t *testing.T, from *bolt.Store, key journal.LogKey) (c continued) {
	t.Helper()
	head, err := from.Journal().Checkpoint(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if c.event, err = journal.NewContinuation(key, head, nil, "a test", "root", time.Now()); err != nil {
		t.Fatal(err)
	}
	if c.key, _, err = key.Continue(c.event); err != nil {
		t.Fatal(err)
	}
	c.path = filepath.Join(t.TempDir(), "continued.db")
	var last int64
	if err := from.ContinueTo(t.Context(), c.path, c.event, c.key, func(done, _ int64) { last = done }); err != nil {
		t.Fatal(err)
	}
	if tree, _ := journal.OpenCheckpoint(head, key.Verifier); last != tree.N {
		t.Errorf("the progress ends at %d of %d", last, tree.N)
	}
	c.Store = openContinued(t, c.path, c.key)
	return c
}

func allOf(t *testing.T, s *bolt.Store) (leaves [][]byte, entries []journal.Entry) {
	t.Helper()
	err := s.Journal().Entries(t.Context(), 0, func(e journal.Entry) error {
		leaves, entries = append(leaves, e.Leaf), append(entries, e)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return leaves, entries
}

func newLog(t *testing.T) (*bolt.Store, journal.LogKey) {
	t.Helper()
	key, _, err := journal.NewLogKey("example.com/log")
	if err != nil {
		t.Fatal(err)
	}
	return openContinued(t, filepath.Join(t.TempDir(), "attestd.db"), key), key
}

func appendRecords(t *testing.T, s *bolt.Store, n int) {
	t.Helper()
	for range n {
		r := storetest.Record(t, "key")
		r.IdempotencyKey = r.ID.String()
		if _, _, err := s.Journal().Append(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
}

func TestALogGoesOnAsAnother(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 1, 300} {
		from, key := newLog(t)
		apiKey, _, err := appliance.NewAPIKey(appliance.KeyRequest{Name: "a"}, time.Now())
		if err == nil {
			err = from.Keys().Create(t.Context(), apiKey)
		}
		if err != nil {
			t.Fatal(err)
		}
		var records []appliance.Record
		for range size {
			records = append(records, storetest.Record(t, "key"))
		}
		concurrently(t, from, records)
		before, _ := allOf(t, from)
		to := goOn(t, from, key)

		event, err := journal.EncodeEvent(to.event)
		if err != nil {
			t.Fatal(err)
		}
		after, entries := allOf(t, to.Store)
		if !reflect.DeepEqual(after, append([][]byte{event}, before...)) {
			t.Fatalf("%d records: the leaves are not the event and those of before", size)
		}
		if e := entries[0]; e.Event == nil || !reflect.DeepEqual(*e.Event, to.event) || e.Index != 0 {
			t.Errorf("the first leaf is %+v", e)
		}
		verifies(t, to.Store, int64(size)+1)
		keys, err := to.Keys().List(t.Context())
		if err != nil || len(keys) != 1 || keys[0].ID != apiKey.ID {
			t.Errorf("the API keys are %v (%v)", keys, err)
		}
		isAsBefore(t, to, entries[1:])
		appendRecords(t, to.Store, 3)
		verifies(t, to.Store, int64(size)+4)
	}
}

// concurrently appends records in parallel, so that a commit has many of them.
func concurrently(t *testing.T, s *bolt.Store, records []appliance.Record) {
	t.Helper()
	failed := make(chan error, len(records))
	for _, r := range records {
		r.IdempotencyKey = r.ID.String()
		go func() {
			_, _, err := s.Journal().Append(context.WithoutCancel(t.Context()), r)
			failed <- err
		}()
	}
	for range records {
		if err := <-failed; err != nil {
			t.Fatal(err)
		}
	}
}

// isAsBefore checks that records are found, proven and replayed as in the old log.
func isAsBefore(t *testing.T, to continued, entries []journal.Entry) {
	t.Helper()
	for i := 0; i < len(entries); i += 1 + len(entries)/20 {
		e := entries[i]
		byID, idErr := to.Journal().ByID(t.Context(), e.Record.ID)
		byKey, keyErr := to.Journal().ByIdempotencyKey(t.Context(), "key", e.Record.IdempotencyKey)
		if idErr != nil || keyErr != nil || byID.Index != int64(i)+1 || byKey.Index != int64(i)+1 ||
			!bytes.Equal(byID.Leaf, e.Leaf) {
			t.Errorf("record %d: %v, %v, at %d and %d", i, idErr, keyErr, byID.Index, byKey.Index)
		}
		proof, err := to.Journal().Prove(t.Context(), byID.Index)
		if err == nil {
			err = proof.Verify(e.Leaf, to.key.Verifier)
		}
		if err != nil {
			t.Errorf("proof of record %d: %v", i, err)
		}
		again, replayed, err := to.Journal().Append(t.Context(), e.Record)
		if err != nil || !replayed || again.Index != byID.Index {
			t.Errorf("record %d again: %d, %v (%v)", i, again.Index, replayed, err)
		}
	}
}

func verifies(t *testing.T, s *bolt.Store, size int64) {
	t.Helper()
	report, err := audited(t.Context(), s, nil)
	if err != nil || !report.OK() || report.Size != size {
		t.Fatalf("of %d leaves: %+v (%v)", size, report, err)
	}
}

// A log may continue one that is itself a continuation.
func TestALogGoesOnTwice(t *testing.T) {
	t.Parallel()
	from, key := newLog(t)
	appendRecords(t, from, 10)
	second := goOn(t, from, key)
	appendRecords(t, second.Store, 5)
	third := goOn(t, second.Store, second.key)
	appendRecords(t, third.Store, 2)
	verifies(t, third.Store, 19)

	if err := third.Close(); err != nil {
		t.Fatal(err)
	}
	log, events, err := bolt.Beginning(third.path)
	if err != nil || log != journal.LogName(third.key.Verifier) || len(events) != 2 ||
		events[1].ID != second.event.ID {
		t.Fatalf("it begins with %v of %s (%v)", events, log, err)
	}
	for name, held := range map[string]journal.LogKey{"the first key": key, "the second": second.key} {
		if next, _, err := held.Follow(events); err != nil || next.VerifierText != third.key.VerifierText {
			t.Errorf("%s leads to %s (%v)", name, next.VerifierText, err)
		}
	}
	other, _, err := journal.NewLogKey("example.com/log")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := other.Follow(events); err == nil {
		t.Error("another log's key follows")
	}
}

// Times never decrease, except after the continuation event, which is newer than the entries that follow it.
func TestAListOfAContinuedLog(t *testing.T) {
	t.Parallel()
	from, key := newLog(t)
	appendRecords(t, from, 5)
	for last := time.Now(); time.Since(last) < 2*time.Millisecond; { // times have a resolution of a millisecond
	}
	to := goOn(t, from, key)
	appendRecords(t, to.Store, 2)
	_, entries := allOf(t, to.Store)
	for name, test := range map[string]struct {
		query journal.Query
		want  []int64
	}{
		"all":             {journal.Query{}, []int64{7, 6, 5, 4, 3, 2, 1, 0}},
		"attestations":    {journal.Query{AttestationsOnly: true}, []int64{7, 6, 5, 4, 3, 2, 1}},
		"of the API key":  {journal.Query{KeyID: "key"}, []int64{7, 6, 5, 4, 3, 2, 1}},
		"a page":          {journal.Query{Before: 2}, []int64{1, 0}},
		"since the event": {journal.Query{From: to.event.Time}, []int64{7, 6, 0}},
		"until the event": {journal.Query{Until: to.event.Time, From: entries[1].Record.Time},
			[]int64{5, 4, 3, 2, 1}},
		"long before":        {journal.Query{Until: entries[1].Record.Time}, nil},
		"after all":          {journal.Query{From: time.Now().Add(time.Hour)}, nil},
		"from the beginning": {journal.Query{From: entries[1].Record.Time, Limit: 3}, []int64{7, 6, 5}},
	} {
		got, err := to.Journal().List(t.Context(), test.query)
		var indexes []int64
		for _, e := range got {
			indexes = append(indexes, e.Index)
		}
		if err != nil || !reflect.DeepEqual(indexes, test.want) {
			t.Errorf("%s: %v, not %v (%v)", name, indexes, test.want, err)
		}
	}
}

func TestOnlyItsHeadIsContinued(t *testing.T) {
	t.Parallel()
	from, key := newLog(t)
	appendRecords(t, from, 2)
	other, err := journal.SignCheckpoint(tlog.Tree{N: 2}, key.Signer)
	if err != nil {
		t.Fatal(err)
	}
	event, err := journal.NewContinuation(key, other, nil, "a test", "root", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	next, _, err := key.Continue(event)
	if err != nil {
		t.Fatal(err)
	}
	if err := from.ContinueTo(t.Context(), filepath.Join(t.TempDir(), "next.db"), event, next, nil); err == nil {
		t.Error("an event of another head was taken")
	}
}

// A journal that is kept elsewhere is made into a file up to its checkpoint. Records beyond it are left out, and
// records that are not those of the checkpoint are an error.
func TestAFileIsMadeOfTheRecordsOfACheckpoint(t *testing.T) {
	t.Parallel()
	from, key := newLog(t)
	for range 5 {
		if _, _, err := from.Journal().Append(t.Context(), storetest.Record(t, "a")); err != nil {
			t.Fatal(err)
		}
	}
	checkpoint, err := from.Journal().Checkpoint(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := from.Journal().Append(t.Context(), storetest.Record(t, "a")); err != nil {
		t.Fatal(err)
	}
	_, entries := allOf(t, from)
	apiKey, token, err := appliance.NewAPIKey(appliance.KeyRequest{Name: "payments"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	make := func(path string, entries ...journal.Entry) error {
		return bolt.Make(t.Context(), path, key.Verifier, checkpoint, []appliance.APIKey{apiKey},
			func(yield func(journal.Entry) error) error {
				for _, e := range entries {
					if err := yield(e); err != nil {
						return err
					}
				}
				return nil
			})
	}
	path := filepath.Join(t.TempDir(), "made.db")
	if err := make(path, entries...); err != nil {
		t.Fatal(err)
	}
	made := openContinued(t, path, key)
	if got, err := made.Journal().Checkpoint(t.Context()); err != nil || !bytes.Equal(got, checkpoint) {
		t.Errorf("the checkpoint is %s, %v", got, err)
	}
	if report, err := made.Journal().Verify(t.Context(), audit.Options{AnySigner: true}); err != nil ||
		!report.OK() || report.Size != 5 {
		t.Errorf("%+v, %v", report, err)
	}
	if got, err := appliance.Authenticate(t.Context(), made.Keys(), token); err != nil || got.Name != "payments" {
		t.Errorf("the API key is %+v, %v", got, err)
	}
	entries[0], entries[1] = entries[1], entries[0]
	for name, wrong := range map[string][]journal.Entry{"order": entries, "missing": entries[:4]} {
		path := filepath.Join(t.TempDir(), "wrong.db")
		if err := make(path, wrong...); !errors.Is(err, bolt.ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
		if s, err := bolt.Open(path, bolt.Options{Verifier: key.Verifier, Signer: key.Signer}); err == nil {
			_ = s.Close()
			t.Errorf("%s: the file can be used", name)
		}
	}
}

// A copy writes the entries of idempotency late, in sorted steps. None is lost, whether the last step is full or not.
func TestACopyHasTheIdempotencyKeysOfAllSteps(t *testing.T) {
	t.Cleanup(bolt.CopyInSteps(10, 30))
	for _, records := range []int{9, 30, 95} {
		from, key := newLog(t)
		appendRecords(t, from, records)
		to := goOn(t, from, key)
		if report, err := to.Journal().Verify(t.Context(), audit.Options{AnySigner: true}); err != nil || !report.OK() {
			t.Errorf("%d records: %+v, %v", records, report, err)
		}
		_, entries := allOf(t, from)
		for _, e := range entries {
			found, err := to.Journal().ByIdempotencyKey(t.Context(), e.Record.KeyID, e.Record.IdempotencyKey)
			if err != nil || found.Record.ID != e.Record.ID {
				t.Fatalf("%d records: the idempotency key of record %d leads to record %s, %v", records, e.Index, found.ID(), err)
			}
		}
	}
}
