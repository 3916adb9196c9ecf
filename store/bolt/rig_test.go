package bolt_test

import (
	"context"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/bolt"
	"github.com/attestd/attestd/store/storetest"
	"go.etcd.io/bbolt"
)

func newPath(t testing.TB) string { return filepath.Join(t.TempDir(), "attestd.db") }

func newLogKey(t testing.TB) journal.LogKey {
	t.Helper()
	key, _, err := journal.NewLogKey("example.com/attestd")
	check(t, err)
	return key
}

// options wait long for a lock. A process forked by another test holds the lock, too, until it executes its program.
func options(key journal.LogKey) bolt.Options {
	return bolt.WithWAL(bolt.Options{Signer: key.Signer, Verifier: key.Verifier, MinFree: 1, LockTimeout: time.Minute}, 128<<10)
}

func mustOpen(t testing.TB, path string, o bolt.Options) *bolt.Store {
	t.Helper()
	s, err := bolt.Open(path, o)
	check(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// fill appends records of two API keys, every third with an idempotency key.
func fill(t testing.TB, s *bolt.Store, n int) (entries []journal.Entry) {
	t.Helper()
	for i := range n {
		r := storetest.Record(t, []string{"aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb"}[i%2])
		if i%3 == 0 {
			r.IdempotencyKey = r.ID.String()
		}
		e, _, err := s.Journal().Append(t.Context(), r)
		check(t, err)
		entries = append(entries, e)
	}
	return entries
}

func verify(t testing.TB, s *bolt.Store, earlier []byte) audit.Report {
	t.Helper()
	report, err := audited(t.Context(), s, earlier)
	check(t, err)
	return report
}

// audit verifies a journal but not its API keys, because these tests create keys without events. storetest tests that
// part.
func audited(ctx context.Context, s *bolt.Store, earlier []byte) (audit.Report, error) {
	report, err := s.Journal().Verify(ctx, audit.Options{Earlier: earlier})
	report.Damages = slices.DeleteFunc(report.Damages, func(d audit.Damage) bool { return d.Part == "api_key" })
	return report, err
}

func wantClean(t testing.TB, s *bolt.Store, earlier []byte) {
	t.Helper()
	for _, damage := range verify(t, s, earlier).Damages {
		t.Errorf("a sound journal: %s", damage)
	}
}

// edit changes a file as an attacker with write access could.
func edit(t testing.TB, path string, change func(tx *bbolt.Tx) error) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second})
	check(t, err)
	defer db.Close()
	check(t, db.Update(change))
}

func putMeta(name string, value []byte) func(t *testing.T, path string) {
	return func(t *testing.T, path string) {
		edit(t, path, func(tx *bbolt.Tx) error { return tx.Bucket([]byte("meta")).Put([]byte(name), value) })
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantCode(t testing.TB, err error, code appliance.Code) {
	t.Helper()
	if got := appliance.CodeOf(err); got != code {
		t.Fatalf("error code is %q (%v), not %q", got, err, code)
	}
}
