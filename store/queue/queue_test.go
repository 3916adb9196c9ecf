package queue_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/store/queue"
)

// writes records the batches written. Each waits for a value from turn.
type writes struct {
	mu      sync.Mutex
	batches [][]int
	turn    chan error // the results of the batches
}

func (w *writes) write(batch []*queue.Op[int], _ bool) error {
	var values []int
	for _, o := range batch {
		values = append(values, o.Value)
		if o.Value < 0 {
			o.Err = errNegative
		}
	}
	if len(values) == 0 {
		return nil
	}
	w.mu.Lock()
	w.batches = append(w.batches, values)
	w.mu.Unlock()
	return <-w.turn
}

var errNegative, errDisk = errors.New("negative"), errors.New("disk")

func start(w *writes, pending func() int) *queue.Queue[int] {
	w.turn = make(chan error)
	return queue.New(queue.Options[int]{Write: w.write, Every: time.Hour, Pending: pending})
}

func do(ctx context.Context, q *queue.Queue[int], value int) <-chan error {
	answer := make(chan error, 1)
	go func() { answer <- q.Do(ctx, &queue.Op[int]{Value: value}) }()
	synctest.Wait()
	return answer
}

func TestWhatQueuesUpMeanwhileIsTheNextBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w writes
		q := start(&w, nil)
		gone, cancel := context.WithCancel(t.Context())
		first := do(t.Context(), q, 1)
		second, negative, left := do(t.Context(), q, 2), do(t.Context(), q, -3), do(gone, q, 4)
		cancel()
		w.turn <- nil
		w.turn <- errDisk
		if err := <-first; err != nil {
			t.Error(err)
		}
		if err := <-second; !errors.Is(err, errDisk) {
			t.Errorf("the batch's error is not the answer, but %v", err)
		}
		if err := <-negative; !errors.Is(err, errNegative) {
			t.Errorf("the operation's own error is not the answer, but %v", err)
		}
		if err := <-left; appliance.CodeOf(err) != appliance.CodeTimeout {
			t.Errorf("who left is told %v", err)
		}
		q.Close()
		if want := [][]int{{1}, {2, -3}}; !slices.EqualFunc(w.batches, want, slices.Equal) {
			t.Errorf("batches %v, want %v: nobody would get what is written for one who left", w.batches, want)
		}
		if err := q.Do(t.Context(), &queue.Op[int]{}); appliance.CodeOf(err) != appliance.CodeShuttingDown {
			t.Errorf("after Close: %v", err)
		}
	})
}

func TestABatchWaitsForThosePending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w writes
		var pending atomic.Int64
		q := start(&w, func() int { return int(pending.Load()) })
		pending.Store(1)
		first := do(t.Context(), q, 1) // it is itself the pending one, so it does not wait
		w.turn <- nil
		pending.Store(3)
		second, third := do(t.Context(), q, 2), do(t.Context(), q, 3)
		began := time.Now()
		w.turn <- nil
		if waited := time.Since(began); waited > 8*time.Millisecond {
			t.Errorf("a batch waited %s for who never came", waited)
		}
		for _, answer := range []<-chan error{first, second, third} {
			if err := <-answer; err != nil {
				t.Error(err)
			}
		}
		q.Close()
		if want := [][]int{{1}, {2, 3}}; !slices.EqualFunc(w.batches, want, slices.Equal) {
			t.Errorf("batches %v, want %v", w.batches, want)
		}
	})
}
