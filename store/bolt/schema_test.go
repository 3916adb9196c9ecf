package bolt_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/attestd/attestd/store/bolt"
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
	o := bolt.WithSchema(options(key), 3, map[int64]func(*bbolt.Tx) error{1: step(1, nil), 2: step(2, nil)})
	readOnly := o
	readOnly.ReadOnly = true
	if _, err := bolt.Open(path, readOnly); !errors.Is(err, bolt.ErrOlderSchema) {
		t.Fatalf("read-only: %v", err)
	}

	// One that fails leaves the file as it was, for the attestd that wrote it.
	before, err := os.ReadFile(path)
	check(t, err)
	broken := bolt.WithSchema(options(key), 3, map[int64]func(*bbolt.Tx) error{1: step(1, nil), 2: step(2, errors.New("no luck"))})
	if _, err := bolt.Open(path, broken); err == nil || !strings.Contains(err.Error(), "from schema version 1 to 3; the file is as it was: no luck") {
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
	if len(ran) != 2 || ran[0] != 1 || ran[1] != 2 {
		t.Errorf("ran %v, want 1 and 2, once", ran)
	}
	if _, err := bolt.Open(path, options(key)); !errors.Is(err, bolt.ErrNewerSchema) || !strings.Contains(err.Error(), "install the newer attestd again") {
		t.Errorf("the older attestd: %v", err)
	}
	// Where a step is missing, nothing is tried.
	gap := bolt.WithSchema(options(key), 5, map[int64]func(*bbolt.Tx) error{4: step(4, nil)})
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
