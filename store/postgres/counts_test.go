package postgres_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/postgres"
	"github.com/attestd/attestd/store/storetest"
)

// After a restart, only the records after the stored counts are counted. So whoever owns the database cannot lower a
// count by hiding older records.
func TestARestartCountsOnlyNewRecords(t *testing.T) {
	url, database := newDatabase(t)
	o := options(newLogKey(t))
	o.Counts = filepath.Join(t.TempDir(), "counts")
	query := journal.PastQuery{KeyID: "a", Since: []time.Time{time.Now().Add(-time.Hour)}}
	counted := func(s *postgres.Store) int64 {
		past, err := s.Journal().Past(t.Context(), query)
		check(t, err)
		return past.Counts[0]
	}
	attest := func(s *postgres.Store, n int) {
		for range n {
			_, _, err := s.Journal().Append(t.Context(), storetest.Record(t, "a"))
			check(t, err)
		}
	}
	s := open(t, url, o)
	attest(s, 5)
	if n := counted(s); n != 5 {
		t.Fatalf("%d attestations are counted, not 5", n)
	}
	check(t, s.Close())

	database.Exec(t, "UPDATE records SET key_id = 'b' WHERE index < 3")
	s = open(t, url, o)
	attest(s, 2)
	if n := counted(s); n != 7 {
		t.Errorf("%d attestations are counted, not the 5 that are stored and the 2 after them", n)
	}
	check(t, s.Close())

	check(t, os.Remove(o.Counts))
	if n := counted(open(t, url, o)); n != 4 {
		t.Errorf("%d attestations are counted without the file, not the 4 that the database shows", n)
	}
}
