package archive_test

import (
	"context"
	"crypto/rand"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/bolt"
	"github.com/attestd/attestd/store/storetest"
)

// stores are two files of one log.
type stores struct {
	from, to *bolt.Store
	key      journal.LogKey
	finished bool
}

func newStores(t *testing.T) *stores {
	t.Helper()
	key, _, err := journal.NewLogKey("example.com/copy")
	if err != nil {
		t.Fatal(err)
	}
	return &stores{from: openStore(t, key), to: openStore(t, key), key: key}
}

func openStore(t *testing.T, key journal.LogKey) *bolt.Store {
	t.Helper()
	s, err := bolt.Open(filepath.Join(t.TempDir(), "attestd.db"),
		bolt.Options{Signer: key.Signer, Verifier: key.Verifier})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func (s *stores) attest(t *testing.T, records int) {
	t.Helper()
	for range records {
		if _, _, err := s.from.Journal().Append(t.Context(), storetest.Record(t, "a")); err != nil {
			t.Fatal(err)
		}
	}
}

func (s *stores) newKey(t *testing.T) appliance.APIKey {
	t.Helper()
	key, _, err := appliance.NewAPIKey(appliance.KeyRequest{Name: "a-" + rand.Text(), Expires: time.Now().Add(time.Hour)}, time.Now())
	if err == nil {
		err = s.from.Keys().Create(t.Context(), key)
	}
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (s *stores) copy(ctx context.Context, progress func(done, total int64)) (archive.Copied, error) {
	s.finished = false
	return archive.Copy(ctx,
		archive.CopySource{Keys: s.from.Keys(), Leaves: archive.LeavesOf(s.from.Journal()), Verifier: s.key.Verifier},
		archive.CopyTarget{Keys: s.to.Keys(), Journal: s.to.Journal(), Import: s.to.Import,
			Tree: func(ctx context.Context) (tlog.Tree, error) {
				return archive.TreeOf(ctx, s.to.Journal(), s.key.Verifier)
			},
			Finish: func(context.Context, []byte) error { s.finished = true; return nil }},
		progress)
}

func ignore(int64, int64) {}

// watchedLeaves counts the leaves that are read, of a source or of a target.
type watchedLeaves struct {
	audit.Journal
	read int
}

func (w *watchedLeaves) Entries(ctx context.Context, first int64, yield func(journal.Entry) error) error {
	return w.Journal.Entries(ctx, first, func(e journal.Entry) error {
		w.read++
		return yield(e)
	})
}

// A source that serves is prepared, with interruptions. Then only the newest records are read, copied and read back.
func TestAPreparedCopyLeavesOnlyTheNewestRecordsForTheDowntime(t *testing.T) {
	t.Parallel()
	s := newStores(t)
	s.attest(t, 2500)
	source, target := &watchedLeaves{Journal: s.from.Journal()}, &watchedLeaves{Journal: s.to.Journal()}
	from := archive.CopySource{Leaves: archive.LeavesOf(source), Verifier: s.key.Verifier}
	to := archive.CopyTarget{
		Keys: s.to.Keys(), Journal: target, Import: s.to.Import,
		Tree: func(ctx context.Context) (tlog.Tree, error) {
			return archive.TreeOf(ctx, s.to.Journal(), s.key.Verifier)
		},
		Finish: func(context.Context, []byte) error { s.finished = true; return nil },
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err := archive.Prepare(ctx, from, to, func(done, _ int64) {
		if s.attest(t, 1); done == 1000 {
			cancel()
		}
	})
	if interrupted, is := errors.AsType[*archive.Interrupted](err); !is || interrupted.Kept != 1000 {
		t.Fatalf("interrupted after 1000 records: %v", err)
	}
	prepared, err := archive.Prepare(t.Context(), from, to, func(int64, int64) { s.attest(t, 1) })
	if err != nil || prepared.N != 2501 || target.read != 2501 || s.finished {
		t.Fatalf("%d records are prepared, %d read back, finished: %v, %v", prepared.N, target.read, s.finished, err)
	}
	key := s.newKey(t)
	whole, err := archive.TreeOf(t.Context(), s.from.Journal(), s.key.Verifier)
	if err != nil {
		t.Fatal(err)
	}
	rest := int(whole.N - prepared.N)
	for name, test := range map[string]struct {
		verified tlog.Tree
		readBack int
	}{
		"of these records": {prepared, rest},
		"of other records": {tlog.Tree{N: prepared.N, Hash: whole.Hash}, int(whole.N)},
		"of more records":  {tlog.Tree{N: whole.N + 1, Hash: whole.Hash}, int(whole.N)},
	} {
		source.read, target.read = 0, 0
		from.Keys, to.Verified = s.from.Keys(), test.verified
		c, err := archive.Copy(t.Context(), from, to, ignore)
		if err != nil || c.Records != whole.N || c.Keys != 1 || source.read > rest || target.read != test.readBack ||
			!s.finished {
			t.Errorf("Verified %s: %+v, %v; %d records were read and %d read back, want %d and %d", name, c, err,
				source.read, target.read, rest, test.readBack)
		}
	}
	if k, err := s.to.Keys().Key(t.Context(), key.ID); err != nil || k.Name != key.Name {
		t.Errorf("the API key: %+v, %v", k, err)
	}
}

func TestPrepareRefusesATargetThatIsNoCopy(t *testing.T) {
	t.Parallel()
	s := newStores(t)
	s.attest(t, 3)
	if _, _, err := s.to.Journal().Append(t.Context(), storetest.Record(t, "a")); err != nil {
		t.Fatal(err)
	}
	from := archive.CopySource{Leaves: archive.LeavesOf(s.from.Journal()), Verifier: s.key.Verifier}
	_, err := archive.Prepare(t.Context(), from, archive.CopyTarget{
		Journal: s.to.Journal(), Import: s.to.Import,
		Tree: func(ctx context.Context) (tlog.Tree, error) {
			return archive.TreeOf(ctx, s.to.Journal(), s.key.Verifier)
		},
	}, ignore)
	if err == nil || !strings.Contains(err.Error(), "the 1 records in the target differ from the source's first") {
		t.Error(err)
	}
}

func TestACopyGoesOnWhereItWasInterrupted(t *testing.T) {
	t.Parallel()
	s := newStores(t)
	s.attest(t, 2500)
	one, other := s.newKey(t), s.newKey(t)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := s.copy(ctx, func(done, _ int64) {
		if done == 1000 {
			cancel()
		}
	})
	interrupted, is := errors.AsType[*archive.Interrupted](err)
	if !is || interrupted.Kept != 1000 || interrupted.Of != 2500 || s.finished {
		t.Fatalf("%v, finished: %v", err, s.finished)
	}
	c, err := s.copy(t.Context(), ignore)
	if err != nil || c.Records != 2500 || c.Resumed != 1000 || c.Keys != 2 || !s.finished {
		t.Fatalf("%+v, %v, finished: %v", c, err, s.finished)
	}
	// Again, after more was attested and a key was revoked.
	s.attest(t, 3)
	if _, err := s.from.Keys().Revoke(t.Context(), one.ID, time.Now()); err != nil {
		t.Fatal(err)
	}
	if c, err = s.copy(t.Context(), ignore); err != nil || c.Records != 2503 || c.Resumed != 2500 {
		t.Fatalf("%+v, %v", c, err)
	}
	for want, key := range map[appliance.KeyState]appliance.APIKey{appliance.KeyRevoked: one,
		appliance.KeyActive: other} {
		if k, err := s.to.Keys().Key(t.Context(), key.ID); err != nil || k.State(time.Now()) != want ||
			!k.Expires.Equal(key.Expires) {
			t.Errorf("%+v, %v, want it to be %s", k, err, want)
		}
	}
}

func TestATargetThatIsNoCopyIsRefused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		there func(s *stores, t *testing.T)
		want  string
	}{
		"with more": {func(s *stores, t *testing.T) {
			for range 3 {
				_, _, _ = s.to.Journal().Append(t.Context(), storetest.Record(t, "a"))
			}
		}, "the target has 3 records, the source 2"},
		"with another record": {func(s *stores, t *testing.T) {
			_, _, _ = s.to.Journal().Append(t.Context(), storetest.Record(t, "a"))
		}, "differ from the source's first"},
		"of another log": {func(s *stores, t *testing.T) {
			other, _, err := journal.NewLogKey("example.com/other")
			if err != nil {
				t.Fatal(err)
			}
			s.to = openStore(t, other)
		}, "read the target"},
		"with another API key": {func(s *stores, t *testing.T) {
			key, _, err := appliance.NewAPIKey(appliance.KeyRequest{Name: "b"}, time.Now())
			if err != nil || s.to.Keys().Create(t.Context(), key) != nil {
				t.Fatal("no key")
			}
		}, "it has 1 API keys, the source 0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStores(t)
			s.attest(t, 2)
			test.there(s, t)
			if _, err := s.copy(t.Context(), ignore); err == nil || !strings.Contains(err.Error(), test.want) ||
				s.finished {
				t.Errorf("%v, want %s; finished: %v", err, test.want, s.finished)
			}
		})
	}
}
