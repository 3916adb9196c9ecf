package bolt_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/bolt"
	"github.com/attestd/attestd/store/storetest"
)

// leavesOf returns the leaves of a journal.
func leavesOf(t *testing.T, s *bolt.Store) (leaves [][]byte) {
	t.Helper()
	err := s.Journal().Entries(t.Context(), 0, func(e journal.Entry) error {
		leaves = append(leaves, e.Leaf)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return leaves
}

func TestImportedLeavesMakeTheSameJournal(t *testing.T) {
	t.Parallel()
	key := newLogKey(t)
	from, to := mustOpen(t, newPath(t), options(key)), mustOpen(t, newPath(t), options(key))
	var last journal.Entry
	for range 300 {
		r := storetest.Record(t, "a")
		r.IdempotencyKey = r.ID.String()
		var err error
		if last, _, err = from.Journal().Append(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	leaves := leavesOf(t, from)
	for first := 0; first < len(leaves); first += 100 {
		if err := to.Import(t.Context(), int64(first), leaves[first:first+100]); err != nil {
			t.Fatal(err)
		}
	}
	one, err := from.Journal().Checkpoint(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	other, err := to.Journal().Checkpoint(t.Context())
	if err != nil || !bytes.Equal(one, other) {
		t.Errorf("the checkpoint is\n%s\nwant\n%s%v", other, one, err)
	}
	if e, err := to.Journal().ByIdempotencyKey(t.Context(), "a", last.Record.IdempotencyKey); err != nil ||
		e.Index != last.Index {
		t.Errorf("the last record by its idempotency key: %v, %v", e.Index, err)
	}
	report, err := audited(t.Context(), to, nil)
	if err != nil || !report.OK() || report.Size != 300 {
		t.Errorf("%+v, %v", report, err)
	}
	if e, _, err := to.Journal().Append(t.Context(), storetest.Record(t, "a")); err != nil || e.Index != 300 ||
		e.Record.Time.Before(last.Record.Time) {
		t.Errorf("the next record: %v, %v", e, err)
	}
}

func TestWhatDoesNotGoOnIsNotImported(t *testing.T) {
	t.Parallel()
	key := newLogKey(t)
	from, to := mustOpen(t, newPath(t), options(key)), mustOpen(t, newPath(t), options(key))
	for range 2 {
		if _, _, err := from.Journal().Append(t.Context(), storetest.Record(t, "a")); err != nil {
			t.Fatal(err)
		}
	}
	leaves := leavesOf(t, from)
	if err := to.Import(t.Context(), 0, leaves[:1]); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		first  int64
		leaves [][]byte
		want   string
	}{
		{0, leaves[:1], "has index 0, the next index of the journal is 1"},
		{2, leaves[1:], "has index 2, the next index of the journal is 1"},
		{1, leaves[:1], "exists already"},
		{1, [][]byte{leaves[1], []byte("{}")}, "import record 2"},
	} {
		if err := to.Import(t.Context(), test.first, test.leaves); err == nil ||
			!strings.Contains(err.Error(), test.want) {
			t.Errorf("%v, want %s", err, test.want)
		}
	}
	if n := len(leavesOf(t, to)); n != 1 {
		t.Errorf("%d records are there, want 1", n)
	}
}
