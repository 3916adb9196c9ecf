package bolt_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/bolt"
	"github.com/attestd/attestd/store/storetest"
)

func TestMigrationsRunOnceAndAllAtOnce(t *testing.T) {
	t.Parallel()
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

	// A read-only opening changes nothing, and names the remedy.
	o := bolt.WithSchema(options(key), 5, map[int64]func(*bbolt.Tx) error{3: step(3, nil), 4: step(4, nil)})
	readOnly := o
	readOnly.ReadOnly = true
	if _, err := bolt.Open(path, readOnly); !errors.Is(err, bolt.ErrOlderSchema) {
		t.Fatalf("read-only: %v", err)
	}

	// A failed migration leaves the file unchanged, for the attestd that wrote it.
	before, err := os.ReadFile(path)
	check(t, err)
	broken := bolt.WithSchema(options(key), 5, map[int64]func(*bbolt.Tx) error{3: step(3, nil), 4: step(4, errors.New("no luck"))})
	if _, err := bolt.Open(path, broken); err == nil || !strings.Contains(err.Error(), "from schema version 3 to 5 (the file is unchanged): no luck") {
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
	if len(ran) != 2 || ran[0] != 3 || ran[1] != 4 {
		t.Errorf("ran %v, want 3 and 4, once", ran)
	}
	if _, err := bolt.Open(path, options(key)); !errors.Is(err, bolt.ErrNewerSchema) || !strings.Contains(err.Error(), "install the newer attestd again") {
		t.Errorf("the older attestd: %v", err)
	}
	// If a migration step is missing, no step runs.
	gap := bolt.WithSchema(options(key), 7, map[int64]func(*bbolt.Tx) error{6: step(6, nil)})
	if _, err := bolt.Open(path, gap); !errors.Is(err, bolt.ErrDamaged) {
		t.Errorf("a gap: %v", err)
	}
}

func TestRespondsWhileTheWriterLives(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, newPath(t), options(newLogKey(t)))
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	check(t, s.Responds(ctx))
	s.BreakFile()
	check(t, s.Responds(ctx)) // the writer answers, although with an error
	ended, end := context.WithCancel(t.Context())
	end()
	if s.Responds(ended) == nil {
		t.Error("it responded after the end")
	}
}

// TestOlderFilesGetTheirLookups turns a file into one of an older version, and opens it.
func TestOlderFilesGetTheirLookups(t *testing.T) {
	t.Parallel()
	drop := func(tx *bbolt.Tx, names ...string) (err error) {
		for _, name := range names {
			err = errors.Join(err, tx.DeleteBucket([]byte(name)))
		}
		return err
	}
	for version, older := range map[int64]func(tx *bbolt.Tx) error{
		1: func(tx *bbolt.Tx) error { return drop(tx, "by_hash", "by_unspendable", "events") },
		2: func(tx *bbolt.Tx) (err error) { // version 2 had single entries in place of runs
			for _, name := range []string{"by_hash", "by_unspendable"} {
				_, chunk := tx.Bucket([]byte(name)).Cursor().First()
				entries := slices.Collect(slices.Chunk(bytes.Clone(chunk), 16))
				err = errors.Join(err, drop(tx, name))
				tree, createErr := tx.CreateBucket([]byte(name))
				err = errors.Join(err, createErr)
				for _, entry := range append(entries, []byte("malformed")) {
					err = errors.Join(err, tree.Put(entry, nil))
				}
			}
			return err
		},
	} {
		t.Run(fmt.Sprint("version ", version), func(t *testing.T) {
			path, key := newPath(t), newLogKey(t)
			s := mustOpen(t, path, options(key))
			entries := fill(t, s, 3)
			event, err := s.Journal().AppendEvent(t.Context(), storetest.Event())
			check(t, err)
			check(t, s.Close())
			edit(t, path, func(tx *bbolt.Tx) error {
				return errors.Join(older(tx), tx.Bucket([]byte("meta")).Put([]byte("version"), index(version)))
			})
			s = mustOpen(t, path, options(key))
			wantClean(t, s, nil)
			for i, q := range []journal.Query{
				{Hash: &entries[1].Record.Hash}, {Unspendable: &entries[1].Record.UnspendableAddress}, {EventsOnly: true},
			} {
				found, err := s.Journal().List(t.Context(), q)
				check(t, err)
				if want := []int64{1, 1, event.Index}[i]; len(found) == 0 || found[len(found)-1].Index != want {
					t.Errorf("%+v finds %d entries, not %d", q, len(found), want)
				}
			}
		})
	}
}
