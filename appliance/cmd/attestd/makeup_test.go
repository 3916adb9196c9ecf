package main

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/dataset"
	"github.com/attestd/attestd/store/replica"
)

// interruptedTarget is a replica. The command is interrupted during the batch of rows that left counts down to.
type interruptedTarget struct {
	dataset.Target
	left      int
	interrupt func()
}

func (t *interruptedTarget) Write(ctx context.Context, b index.Batch) (index.Written, error) {
	if t.left--; t.left == 0 {
		t.interrupt()
	}
	return t.Target.Write(context.WithoutCancel(ctx), b)
}

// An interrupted generation continues. In the end, the replica has exactly the rows of one run, dated from its
// beginning.
func TestMadeUpDataAreContinued(t *testing.T) {
	t.Parallel()
	store, err := replica.Open(filepath.Join(t.TempDir(), "replica.db"), replica.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	a := &app{terminal: terminal{err: new(bytes.Buffer)}}
	options := dataset.GenerateOptions{Transfers: 300, Seed: 1, BatchRows: 100}

	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	cut := &interruptedTarget{dataset.Into(store), 4, interrupt}
	if _, err := a.makeUp(ctx, cut, "name", options); !errors.Is(err, context.Canceled) {
		t.Fatalf("the interrupted run returned %v", err)
	}
	began, err := begunAt(t.Context(), dataset.Into(store), "name")
	if err != nil {
		t.Fatal(err)
	}
	if half := count(t, store); half == 0 {
		t.Fatal("nothing is kept of the interrupted run")
	}
	if _, err := a.makeUp(t.Context(), dataset.Into(store), "name", options); err != nil {
		t.Fatal(err)
	}
	want := uint64(0)
	options.Now = began
	err = dataset.Generate(t.Context(), options, func(rows []index.Row) error {
		want += uint64(len(rows))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := count(t, store); got != want {
		t.Errorf("%d rows, want the %d of one run", got, want)
	}
}

func count(t *testing.T, store index.Index) (rows uint64) {
	t.Helper()
	status, err := index.StatusOf(t.Context(), store)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range status.Rows {
		rows += n
	}
	return rows
}
