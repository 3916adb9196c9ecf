package bolt_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/bolt"
	"github.com/attestd/attestd/store/counts"
	"github.com/attestd/attestd/store/storetest"
)

// pastCount returns how many attestations an API key has since a time.
func pastCount(t *testing.T, s *bolt.Store, since time.Time) int64 {
	t.Helper()
	past, err := s.Journal().Past(t.Context(), journal.PastQuery{KeyID: "a", Since: []time.Time{since}})
	check(t, err)
	return past.Counts[0]
}

// After a restart, only the records after the stored count are counted. The stored count is changed here, to see it.
func TestARestartCountsOnlyNewRecords(t *testing.T) {
	key, path := newLogKey(t), filepath.Join(t.TempDir(), "attestd.db")
	since := time.Now().Add(-time.Hour)
	attest := func(s *bolt.Store, n int) {
		for range n {
			_, _, err := s.Journal().Append(t.Context(), storetest.Record(t, "a"))
			check(t, err)
		}
	}
	s := mustOpen(t, path, options(key))
	attest(s, 5)
	if n := pastCount(t, s, since); n != 5 {
		t.Fatalf("%d attestations are counted, not 5", n)
	}
	signed, err := s.Journal().Checkpoint(t.Context())
	check(t, err)
	tree, err := journal.OpenCheckpoint(signed, key.Verifier)
	check(t, err)
	attest(s, 2)
	check(t, s.Close())

	storeCount := func(tree tlog.Tree, n int64) {
		t.Helper()
		var c counts.Counts
		secret, err := journal.StoreSecret(key.Signer)
		check(t, err)
		check(t, c.Load(func() (counts.File, error) {
			head := func(context.Context) (tlog.Tree, int64, error) { return tree, tree.N, nil }
			return counts.File{Path: path + "-counts", Log: journal.LogName(key.Verifier), Secret: secret,
				Head: head}, nil
		}, func(tlog.Tree) (bool, error) { return false, nil }))
		c.Keep(counts.Of("a", since), counts.Count{N: n, Below: tree.N})
		check(t, c.Close())
	}
	storeCount(tree, 100)
	s = mustOpen(t, path, options(key))
	if n := pastCount(t, s, since); n != 102 {
		t.Errorf("%d attestations are counted, not the 100 that are stored and the two after them", n)
	}
	check(t, s.Close())

	other := tree
	other.Hash[0]++
	storeCount(other, 100)
	s = mustOpen(t, path, options(key))
	if n := pastCount(t, s, since); n != 7 {
		t.Errorf("%d attestations are counted with the file of another journal, not 7", n)
	}
}
