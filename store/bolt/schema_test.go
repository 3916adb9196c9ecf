package bolt_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/store/bolt"
	"github.com/attestd/attestd/store/storetest"
)

func TestMigrationsRunOnceAndAllAtOnce(t *testing.T) {
	path, key := newPath(t), newLogKey(t)
	s := mustOpen(t, path, options(key))
	fill(t, s, 3)
	check(t, s.Close())

	var ran []int64
	step := func(from int64, err error) func(*bbolt.Tx) error {
		return func(tx *bbolt.Tx) error {
			ran = append(ran, from)
			if _, bucketErr := tx.CreateBucket([]byte{byte('a' + from)}); bucketErr != nil {
				return bucketErr
			}
			return err
		}
	}

	// A read-only opening changes nothing, and says what does.
	o := bolt.WithSchema(options(key), 4, map[int64]func(*bbolt.Tx) error{2: step(2, nil), 3: step(3, nil)})
	readOnly := o
	readOnly.ReadOnly = true
	if _, err := bolt.Open(path, readOnly); !errors.Is(err, bolt.ErrOlderSchema) {
		t.Fatalf("read-only: %v", err)
	}

	// One that fails leaves the file as it was, for the attestd that wrote it.
	before, err := os.ReadFile(path)
	check(t, err)
	broken := bolt.WithSchema(options(key), 4, map[int64]func(*bbolt.Tx) error{2: step(2, nil), 3: step(3, errors.New("no luck"))})
	if _, err := bolt.Open(path, broken); err == nil || !strings.Contains(err.Error(), "from schema version 2 to 4; the file is as it was: no luck") {
		t.Fatalf("a migration that fails: %v", err)
	}
	after, err := os.ReadFile(path)
	check(t, err)
	if string(before) != string(after) {
		t.Error("the file was changed by a migration that failed")
	}
	s = mustOpen(t, path, options(key))
	wantClean(t, s, nil)
	check(t, s.Close())

	ran = nil
	for range 2 {
		s = mustOpen(t, path, o)
		fill(t, s, 1)
		check(t, s.Close())
	}
	if len(ran) != 2 || ran[0] != 2 || ran[1] != 3 {
		t.Errorf("ran %v, want 2 and 3, once", ran)
	}
	if _, err := bolt.Open(path, options(key)); !errors.Is(err, bolt.ErrNewerSchema) || !strings.Contains(err.Error(), "install the newer attestd again") {
		t.Errorf("the older attestd: %v", err)
	}
	// Where a step is missing, nothing is tried.
	gap := bolt.WithSchema(options(key), 6, map[int64]func(*bbolt.Tx) error{5: step(5, nil)})
	if _, err := bolt.Open(path, gap); !errors.Is(err, bolt.ErrDamaged) {
		t.Errorf("a gap: %v", err)
	}
}

func TestRespondsWhileTheWriterLives(t *testing.T) {
	s := mustOpen(t, newPath(t), options(newLogKey(t)))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	check(t, s.Responds(ctx))
	s.BreakFile()
	check(t, s.Responds(ctx)) // it answers, if not well
	ended, end := context.WithCancel(t.Context())
	end()
	if s.Responds(ended) == nil {
		t.Error("it responded after the end")
	}
}

// TestAFileOfSchemaVersion1GetsItsLookups takes from a file what version 1 did not have, and opens it.
func TestAFileOfSchemaVersion1GetsItsLookups(t *testing.T) {
	path, key := newPath(t), newLogKey(t)
	s := mustOpen(t, path, options(key))
	entries := fill(t, s, 3)
	event, err := s.Journal().AppendEvent(t.Context(), storetest.Event())
	check(t, err)
	check(t, s.Close())
	edit(t, path, func(tx *bbolt.Tx) error {
		return errors.Join(tx.DeleteBucket([]byte("by_hash")), tx.DeleteBucket([]byte("by_unspendable")), tx.DeleteBucket([]byte("events")),
			tx.Bucket([]byte("meta")).Put([]byte("version"), index(1)))
	})
	s = mustOpen(t, path, options(key))
	wantClean(t, s, nil)
	for i, q := range []appliance.JournalQuery{
		{Hash: &entries[1].Record.Hash}, {Unspendable: &entries[1].Record.UnspendableAddress}, {EventsOnly: true},
	} {
		found, err := s.Journal().List(t.Context(), q)
		check(t, err)
		if want := []int64{1, 1, event.Index}[i]; len(found) == 0 || found[len(found)-1].Index != want {
			t.Errorf("%+v finds %d entries, not %d", q, len(found), want)
		}
	}
}
