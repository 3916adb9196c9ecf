// Package queue groups changes for a shared commit: the operations that queue up during a commit are the next batch. It
// does not depend on the store behind it.
package queue

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/attestd/attestd/appliance"
)

const (
	maxBatch = 1024 // maximum operations in the queue and in the running commit together

	gatherBatch = 32 // number of operations that is worth a commit, even if more are pending
	// a commit waits for pending operations for half the duration of the previous one,
	leastGather = 250 * time.Microsecond
	mostGather  = 8 * time.Millisecond // within these bounds
)

// Op is one change that a caller waits for. Its Value holds the change to write and the result for the caller.
type Op[T any] struct {
	Value T
	Err   error // error of this operation; set by Options.Write

	ctx  context.Context
	done chan struct{}
}

// Options configure a Queue.
type Options[T any] struct {
	// Write writes a batch in the order in which it was queued, and returns when it is on disk. Its error is the result
	// of all operations without an Err. It runs in one goroutine. In the last call, last is true. The batch may be
	// empty in the last call, and when Every has passed.
	Write func(batch []*Op[T], last bool) error
	// Every is the maximum time between two calls of Write, for periodic writes.
	Every time.Duration
	// Pending returns how many operations are about to be queued. A batch waits for some of them, for at most half the
	// duration of the previous write (within leastGather and mostGather). Nil means unknown: batches do not wait.
	Pending func() int
}

// Queue holds operations that wait for their commit. One goroutine, run, takes the queued operations, writes them and
// answers. The next batch queues up at the same time. All methods are safe for concurrent use.
type Queue[T any] struct {
	opts  Options[T]
	slots chan struct{} // bounds the queue: each queued or running op holds one
	wake  chan struct{} // has an element if run may have work
	ended chan struct{} // closed after run has returned

	mu     sync.Mutex // protects ops, want and closed
	ops    []*Op[T]
	want   int  // length of the queue at which run is woken, in addition to 1
	closed bool // operations are refused
}

// New returns a queue that writes until it is closed.
func New[T any](o Options[T]) *Queue[T] {
	q := &Queue[T]{
		opts: o, slots: make(chan struct{}, maxBatch), wake: make(chan struct{}, 1), ended: make(chan struct{}),
	}
	go q.run()
	return q
}

// Do queues an operation and waits until it is written or ctx ends. If ctx ends first, the operation may still be
// written, unless its batch has not begun. An Op must not be reused.
//
// It returns CodeTimeout, CodeShuttingDown after Close, the operation's own error, or the error of its batch.
func (q *Queue[T]) Do(ctx context.Context, o *Op[T]) error {
	o.ctx, o.done = ctx, make(chan struct{})
	if err := q.enqueue(ctx, o); err != nil {
		return err
	}
	select {
	case <-o.done:
		return o.Err
	case <-ctx.Done():
		return timeout(ctx, "wait for the commit")
	}
}

func (q *Queue[T]) enqueue(ctx context.Context, o *Op[T]) error {
	if ctx.Err() != nil {
		return timeout(ctx, "wait for the queue")
	}
	select {
	case q.slots <- struct{}{}:
	case <-ctx.Done():
		return timeout(ctx, "wait for the queue")
	}
	q.mu.Lock()
	closed := q.closed
	if !closed {
		q.ops = append(q.ops, o)
	}
	n := len(q.ops)
	wake := n == 1 || n == q.want
	q.mu.Unlock()
	if closed {
		<-q.slots
		return appliance.Errorf(appliance.CodeShuttingDown, "the appliance is shutting down")
	}
	if wake {
		q.signal()
	}
	return nil
}

func (q *Queue[T]) signal() {
	select {
	case q.wake <- struct{}{}:
	default: // a signal is pending already
	}
}

// Close refuses further operations. It returns after the queued operations are written and answered.
func (q *Queue[T]) Close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.signal()
	<-q.ended
}

func (q *Queue[T]) run() {
	defer close(q.ended)
	tick := time.NewTicker(q.opts.Every)
	defer tick.Stop()
	var took time.Duration // duration of the last batch
	for {
		select {
		case <-q.wake:
		case <-tick.C:
		}
		q.gather(min(max(took/2, leastGather), mostGather))
		q.mu.Lock()
		batch, closed := q.ops, q.closed
		q.ops = nil
		q.mu.Unlock()
		began := time.Now()
		q.do(batch, closed)
		took = time.Since(began)
		if closed {
			return // the queue is empty: closed stops new operations, and all earlier ones were taken
		}
	}
}

// gather waits while more operations are pending than queued. Under load, many operations then share a commit, while a
// lone caller, or the last of several, does not wait. gather does not wait for slow HSM signatures; they join the next
// commit.
func (q *Queue[T]) gather(most time.Duration) {
	if q.opts.Pending == nil {
		return
	}
	end := time.NewTimer(most)
	defer end.Stop()
	for {
		pending := q.opts.Pending()
		q.mu.Lock()
		n := len(q.ops)
		// Each queued op was pending before, so both numbers meet at half of their sum.
		q.want = min(gatherBatch, (n+pending+1)/2)
		enough := n == 0 || n >= q.want || q.closed
		q.mu.Unlock()
		if enough {
			return
		}
		select {
		case <-q.wake:
		case <-end.C:
			return
		}
	}
}

// do writes a batch and answers its callers.
func (q *Queue[T]) do(batch []*Op[T], last bool) {
	live := batch[:0]
	for _, o := range batch {
		if o.ctx.Err() != nil {
			// The caller has gone and would not receive the result.
			q.answer(o, timeout(o.ctx, "wait for the queue"))
			continue
		}
		live = append(live, o)
	}
	err := q.opts.Write(live, last)
	for _, o := range live {
		q.answer(o, err)
	}
}

// answer wakes the caller. The operation's own error takes precedence over the batch's error.
func (q *Queue[T]) answer(o *Op[T], err error) {
	if o.Err == nil {
		o.Err = err
	}
	<-q.slots
	close(o.done)
}

func timeout(ctx context.Context, doing string) error {
	return appliance.Errorf(appliance.CodeTimeout,
		"the journal did not answer in time").Because(fmt.Errorf("%s: %w", doing, context.Cause(ctx)))
}
