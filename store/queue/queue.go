// Package queue lets many callers share one commit: whatever has queued up while a batch was written is the next batch. It knows
// nothing of how a batch is written.
package queue

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/attestd/attestd/appliance"
)

const (
	maxBatch = 1024 // operations of one commit, and of those that wait for one

	gatherBatch = 32                     // operations that are worth a commit, whatever is pending
	leastGather = 250 * time.Microsecond // how long a commit waits for pending ones: half as long as the last one took,
	mostGather  = 8 * time.Millisecond   // within these
)

// Op is one change that a caller waits for. Its Value holds what is to be written, and what the caller is told.
type Op[T any] struct {
	Value T
	Err   error // of this operation alone; set by Options.Write

	ctx  context.Context
	done chan struct{}
}

// Options are how a Queue writes.
type Options[T any] struct {
	// Write writes a batch in the order in which it was queued, and returns when it is on disk. Its error is the answer to all
	// operations that have none of their own. It runs in one goroutine. last is set in its last call; the batch may be empty
	// then, and whenever Every has passed.
	Write func(batch []*Op[T], last bool) error
	// Every is how often Write is called at least, for what is written now and then.
	Every time.Duration
	// Pending tells how many operations are about to be queued. A batch waits for some of them, for at most half the time that
	// the last took to write. Nil means that nothing is known of them.
	Pending func() int
}

// Queue holds operations that wait for their commit. One goroutine, run, takes what has queued up, writes it and answers;
// meanwhile the next batch queues up. All methods are safe for concurrent use.
type Queue[T any] struct {
	opts  Options[T]
	slots chan struct{} // bounds the queue: each op in it or being written holds one
	wake  chan struct{} // has one element when there may be something to do
	ended chan struct{} // closed when run has returned

	mu     sync.Mutex // protects ops, want and closed
	ops    []*Op[T]
	want   int  // length of the queue at which run is to be woken, beside 1
	closed bool // nothing is queued any more
}

// New returns a queue that writes until it is closed.
func New[T any](o Options[T]) *Queue[T] {
	q := &Queue[T]{
		opts: o, slots: make(chan struct{}, maxBatch), wake: make(chan struct{}, 1), ended: make(chan struct{}),
	}
	go q.run()
	return q
}

// Do queues an operation and waits until it is written, but no longer than the context. When the context ends first, the
// operation may be written all the same, unless its batch has not begun. An Op is used once.
//
// Errors: CodeTimeout; CodeShuttingDown after Close; else the operation's own, or its batch's.
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
	default: // there is a signal already
	}
}

// Close refuses further operations, and returns when the queued ones are written and answered.
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
	var took time.Duration // of the last batch
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
			return // with an empty queue: nothing is queued after closed was set, and all before was taken
		}
	}
}

// gather waits while more are pending than are queued, so that under load a commit is shared by many and yet a lone
// caller, or the last of some, waits for nobody. Whose signature takes the HSM long is not waited for: the next commit
// is soon enough.
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
		// Each op that is queued was pending before, so that half of both is where they meet.
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

// do writes a batch and answers those who wait for it.
func (q *Queue[T]) do(batch []*Op[T], last bool) {
	live := batch[:0]
	for _, o := range batch {
		if o.ctx.Err() != nil {
			q.answer(o, timeout(o.ctx, "wait for the queue")) // its caller has gone: nobody would get what is written
			continue
		}
		live = append(live, o)
	}
	err := q.opts.Write(live, last)
	for _, o := range live {
		q.answer(o, err)
	}
}

// answer lets the caller go on, with its operation's own error before the batch's.
func (q *Queue[T]) answer(o *Op[T], err error) {
	if o.Err == nil {
		o.Err = err
	}
	<-q.slots
	close(o.done)
}

func timeout(ctx context.Context, doing string) error {
	return appliance.Errorf(appliance.CodeTimeout, "the journal did not answer in time").Because(fmt.Errorf("%s: %w", doing, context.Cause(ctx)))
}
