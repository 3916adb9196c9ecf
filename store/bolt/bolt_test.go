package bolt_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/bolt"
	"github.com/attestd/attestd/store/storetest"
	"github.com/google/uuid"
	"go.etcd.io/bbolt"
	"golang.org/x/mod/sumdb/note"
)

func TestKeys(t *testing.T) {
	t.Parallel()
	storetest.TestKeys(t, func(t *testing.T) appliance.Keys {
		return mustOpen(t, newPath(t), options(newLogKey(t))).Keys()
	})
}

func TestRevocation(t *testing.T) {
	t.Parallel()
	storetest.TestRevocation(t, func(t *testing.T, now func() time.Time) (appliance.Keys, audit.Journal) {
		o := options(newLogKey(t))
		o.Now = now
		s := mustOpen(t, newPath(t), o)
		return s.Keys(), s.Journal()
	})
}

// countingSigner counts the checkpoints that it signs, one per commit.
type countingSigner struct {
	note.Signer
	commits atomic.Int64
}

func (s *countingSigner) Sign(msg []byte) ([]byte, error) {
	s.commits.Add(1)
	return s.Signer.Sign(msg)
}

func TestCommitsWaitForPendingRecords(t *testing.T) {
	t.Parallel()
	const callers, each = 32, 20
	key := newLogKey(t)
	signer := &countingSigner{Signer: key.Signer}
	var pending atomic.Int64
	o := options(key)
	o.Signer = signer
	o.Pending = func() int { return int(pending.Load()) }
	s := mustOpen(t, newPath(t), o)
	record := storetest.Record(t, "key")
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range each {
				r := record
				pending.Add(1)
				r.ID = uuid.Must(uuid.NewV7())
				r.Hash = appliance.Digest(sha256.Sum256(r.ID[:])) // in place of signing
				pending.Add(-1)
				if _, _, err := s.Journal().Append(context.Background(), r); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := signer.commits.Load(); n > callers*each/2 {
		t.Errorf("%d records took %d commits", callers*each, n)
	}
	pending.Store(1000) // they never arrive: a lone record is delayed, not stuck
	_, _, err := s.Journal().Append(t.Context(), storetest.Record(t, "key"))
	check(t, err)
}

func TestAFailedWriteIsFinal(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, newPath(t), options(newLogKey(t)))
	e := fill(t, s, 1)[0]
	s.BreakFile()
	_, _, err := s.Journal().Append(t.Context(), storetest.Record(t, "key"))
	wantCode(t, err, appliance.CodeJournalUnavailable)
	select {
	case err := <-s.Failed():
		if err == nil {
			t.Error("Failed sent nil")
		}
	case <-t.Context().Done():
		t.Fatal("Failed sent nothing")
	}
	for range 2 {
		_, _, err = s.Journal().Append(t.Context(), storetest.Record(t, "key"))
		wantCode(t, err, appliance.CodeJournalUnavailable)
		wantCode(t, s.Journal().Ready(t.Context()), appliance.CodeJournalUnavailable)
	}
	got, err := s.Journal().ByID(t.Context(), e.Record.ID)
	check(t, err)
	if !bytes.Equal(got.Leaf, e.Leaf) {
		t.Error("what was appended before reads otherwise now")
	}
}

func TestReopenKeepsEverything(t *testing.T) {
	t.Parallel()
	path, key := newPath(t), newLogKey(t)
	s := mustOpen(t, path, options(key))
	apiKey, _, err := appliance.NewAPIKey(appliance.KeyRequest{Name: "one", Rate: appliance.Unlimited}, time.Now())
	check(t, err)
	revoked, _, err := appliance.NewAPIKey(appliance.KeyRequest{Name: "two"}, time.Now())
	check(t, err)
	check(t, s.Keys().Create(t.Context(), apiKey))
	check(t, s.Keys().Create(t.Context(), revoked))
	_, err = s.Keys().Revoke(t.Context(), revoked.ID, time.Now())
	check(t, err)
	entries := fill(t, s, 20)
	s.Keys().Used(apiKey.ID, time.Now())
	keys, err := s.Keys().List(t.Context())
	check(t, err)
	checkpoint, err := s.Journal().Checkpoint(t.Context())
	check(t, err)
	check(t, s.Close())

	for _, readOnly := range []bool{true, false} {
		o := options(key)
		o.ReadOnly = readOnly
		s := mustOpen(t, path, o)
		gotKeys, err := s.Keys().List(t.Context())
		check(t, err)
		if !reflect.DeepEqual(gotKeys, keys) {
			t.Errorf("keys are %+v, not %+v", gotKeys, keys)
		}
		gotCheckpoint, err := s.Journal().Checkpoint(t.Context())
		check(t, err)
		if !bytes.Equal(gotCheckpoint, checkpoint) {
			t.Errorf("the checkpoint is %q, not %q", gotCheckpoint, checkpoint)
		}
		for _, want := range entries {
			got, err := s.Journal().ByID(t.Context(), want.Record.ID)
			check(t, err)
			if !bytes.Equal(got.Leaf, want.Leaf) || got.Index != want.Index {
				t.Errorf("record %d is %+v", want.Index, got)
			}
		}
		wantClean(t, s, nil)
		check(t, s.Close())
	}
	s = mustOpen(t, path, options(key))
	if e := fill(t, s, 1)[0]; e.Index != 20 {
		t.Errorf("after 20 records comes record %d", e.Index)
	}
	wantClean(t, s, checkpoint)
}

func TestReadOnlyWritesNothing(t *testing.T) {
	t.Parallel()
	path, key := newPath(t), newLogKey(t)
	o := options(key)
	o.ReadOnly = true
	if _, err := bolt.Open(path, o); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	check(t, mustOpen(t, path, options(key)).Close())
	before, err := os.ReadFile(path)
	check(t, err)
	o.Signer = nil
	s := mustOpen(t, path, o)
	if s.Failed() != nil {
		t.Error("a read-only store can fail to write")
	}
	_, _, err = s.Journal().Append(t.Context(), storetest.Record(t, "key"))
	wantCode(t, err, appliance.CodeJournalUnavailable)
	wantCode(t, s.Journal().Ready(t.Context()), appliance.CodeJournalUnavailable)
	wantCode(t, s.Keys().Create(t.Context(), appliance.APIKey{ID: "a"}), appliance.CodeJournalUnavailable)
	check(t, s.Close())
	after, err := os.ReadFile(path)
	check(t, err)
	if !bytes.Equal(before, after) {
		t.Error("the file has changed")
	}
}

func TestFileIsSecret(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	journal := mustOpen(t, path, bolt.WithWAL(options(newLogKey(t)), 8<<20)).Journal()
	_, _, err := journal.Append(t.Context(), storetest.Record(t, "key"))
	check(t, err)
	for _, name := range []string{path, bolt.WALPath(path)} {
		stat, err := os.Stat(name)
		check(t, err)
		if mode := stat.Mode().Perm(); mode != 0o600 {
			t.Errorf("%s has mode %o", name, mode)
		}
	}
}

// refusal is a file that Open refuses, or options that make Open refuse a valid file.
type refusal struct {
	options func(o *bolt.Options)
	spoil   func(t *testing.T, path string)
	want    error
	says    string
}

func refusals(key, other journal.LogKey) map[string]refusal {
	return map[string]refusal{
		"a file that is open elsewhere": {
			options: func(o *bolt.Options) { o.LockTimeout = 50 * time.Millisecond },
			spoil:   func(t *testing.T, path string) { mustOpen(t, path, options(key)) },
			want:    bolt.ErrInUse, says: "is attestd running?",
		},
		"a newer schema": {
			spoil: putMeta("version", []byte{0, 0, 0, 0, 0, 0, 0, 4}),
			want:  bolt.ErrNewerSchema, says: "schema version 4",
		},
		"another log's file": {
			options: func(o *bolt.Options) { o.Signer, o.Verifier = other.Signer, other.Verifier },
			want:    bolt.ErrOtherLog,
		},
		"a checkpoint of another log": {
			spoil: func(t *testing.T, path string) {
				signed, err := journal.SignCheckpoint(journal.Frontier{}.Tree(), other.Signer)
				check(t, err)
				putMeta("checkpoint", signed)(t, path)
			},
			want: bolt.ErrDamaged,
		},
		"a signer that is not the verifier's": {
			options: func(o *bolt.Options) { o.Signer = other.Signer },
			says:    "does not match the log verifier key",
		},
		"no signer":   {options: func(o *bolt.Options) { o.Signer = nil }, says: "log key"},
		"no verifier": {options: func(o *bolt.Options) { o.Verifier = nil }, says: "no log verifier"},
		"another kind of file": {
			spoil: func(t *testing.T, path string) { check(t, os.WriteFile(path, bytes.Repeat([]byte("x"), 1<<16), 0o600)) },
			want:  bolt.ErrDamaged,
		},
		"a short file": {
			spoil: func(t *testing.T, path string) { check(t, os.WriteFile(path, []byte("x"), 0o600)) },
		},
		"another program's bbolt file": {
			spoil: func(t *testing.T, path string) {
				check(t, os.Remove(path))
				edit(t, path, func(tx *bbolt.Tx) error {
					_, err := tx.CreateBucket([]byte("something"))
					return err
				})
			},
			want: bolt.ErrDamaged,
		},
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	key, other := newLogKey(t), newLogKey(t)
	for name, test := range refusals(key, other) {
		t.Run(name, func(t *testing.T) {
			path := newPath(t)
			check(t, mustOpen(t, path, options(key)).Close())
			if test.spoil != nil {
				test.spoil(t, path)
			}
			o := options(key)
			if test.options != nil {
				test.options(&o)
			}
			s, err := bolt.Open(path, o)
			if err == nil {
				s.Close()
				t.Fatal("it was opened")
			}
			if test.want != nil && !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.says) || !strings.Contains(err.Error(), path) && test.says == "" {
				t.Errorf("the error is %v", err)
			}
		})
	}
}

func TestCloseFinishesWhatIsQueued(t *testing.T) {
	t.Parallel()
	path, key := newPath(t), newLogKey(t)
	s := mustOpen(t, path, options(key))
	record := storetest.Record(t, "key")
	var mu sync.Mutex
	acknowledged := make(map[uuid.UUID]bool)
	var wg sync.WaitGroup
	started := make(chan struct{}, 64)
	for range 64 {
		wg.Go(func() {
			for {
				r := record
				r.ID = uuid.Must(uuid.NewV7())
				_, _, err := s.Journal().Append(context.Background(), r)
				if appliance.CodeOf(err) == appliance.CodeShuttingDown {
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				acknowledged[r.ID] = true
				mu.Unlock()
				select {
				case started <- struct{}{}:
				default:
				}
			}
		})
	}
	for range 64 {
		<-started
	}
	check(t, s.Close())
	check(t, s.Close())
	wg.Wait()
	if _, err := s.Journal().ByID(t.Context(), record.ID); err == nil {
		t.Error("a closed journal can be read")
	}
	s = mustOpen(t, path, options(key))
	for id := range acknowledged {
		_, err := s.Journal().ByID(t.Context(), id)
		check(t, err)
	}
	wantClean(t, s, nil)
}

func TestSnapshotIsAJournal(t *testing.T) {
	t.Parallel()
	path, key := newPath(t), newLogKey(t)
	s := mustOpen(t, path, options(key))
	fill(t, s, 10)
	copied := newPath(t)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { // appends continue during the verification
		r := storetest.Record(t, "key")
		for ctx.Err() == nil {
			r.ID = uuid.Must(uuid.NewV7())
			s.Journal().Append(ctx, r)
		}
	})
	f, err := os.Create(copied)
	check(t, err)
	check(t, s.Snapshot(f))
	check(t, f.Close())
	wantClean(t, s, nil) // also during appends
	cancel()
	wg.Wait()
	snapshot := mustOpen(t, copied, options(key))
	checkpoint, err := snapshot.Journal().Checkpoint(t.Context())
	check(t, err)
	wantClean(t, snapshot, nil)
	wantClean(t, s, checkpoint)
}

func TestReadsDoNotWaitForTheWriter(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, newPath(t), options(newLogKey(t)))
	e := fill(t, s, 1)[0]
	// A snapshot whose reader stops holds a read transaction open.
	r, w := io.Pipe()
	copied := make(chan error, 1)
	go func() { copied <- s.Snapshot(w) }()
	_, err := r.Read(make([]byte, 1))
	check(t, err)
	fill(t, s, 300) // makes the file grow
	_, err = s.Journal().ByID(t.Context(), e.Record.ID)
	check(t, err)
	r.Close()
	if err := <-copied; err == nil {
		t.Error("the snapshot ended before it was taken off our hands")
	}
}

func TestVerifyEndsWithItsContext(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, newPath(t), options(newLogKey(t)))
	fill(t, s, 600)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := s.Journal().Verify(ctx, audit.Options{Progress: func(done, _ int64) {
		if done > 0 {
			t.Errorf("it went on to record %d", done)
		}
		cancel()
	}})
	wantCode(t, err, appliance.CodeTimeout)
}

func TestNotReadyBelowMinFree(t *testing.T) {
	t.Parallel()
	o := options(newLogKey(t))
	o.MinFree = 1 << 62
	s := mustOpen(t, newPath(t), o)
	wantCode(t, s.Journal().Ready(t.Context()), appliance.CodeJournalUnavailable)
}
