// Package fairqueue queues calls in front of a signer, round robin over API keys, and refuses those that would wait
// past their deadline.
package fairqueue

import (
	"context"
	"fmt"
	"github.com/attestd/attestd/appliance"
	"slices"
	"sync"
	"time"
)

// DefaultMaxWaiting is the limit of queued calls if attest.Attestor.MaxWaiting is zero.
const DefaultMaxWaiting = 1024

// Queue is a fair queue in front of the signer. It admits a limited number of calls at once and queues the others,
// round robin over API keys. So one API key with a thousand queued calls delays another key's call by a single call. A
// call that would wait past its deadline is refused at once. It is safe for concurrent use. The zero value is ready.
type Queue struct {
	mu      sync.Mutex
	inside  int
	waiting int
	queues  []*keyQueue          // per-key queues, each with at least one call; the first is next
	ofKey   map[string]*keyQueue // the same queues by API key
	hold    time.Duration        // moving average of the time from admission to leave
	shed    time.Time            // when a call was last refused
}

// keyQueue is the queue of one API key, oldest call first. It is never empty.
type keyQueue struct {
	key   string
	calls []*waitingCall
}

type waitingCall struct {
	done    chan struct{} // closed when the call is admitted, or refused to make room for another key's call
	refused error
}

// Enter waits until a call of an API key is admitted. At most limit calls are admitted at once, and at most most calls
// are queued. If Enter returns nil, the caller must call Leave.
//
// Errors: CodeOverloaded, CodeTimeout.
func (t *Queue) Enter(ctx context.Context, key string, limit, most int) error {
	t.mu.Lock()
	t.advance(limit)
	if t.inside < limit {
		t.inside++
		t.mu.Unlock()
		return nil
	}
	c, err := t.join(ctx, key, limit, most)
	t.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case <-c.done:
		return c.refused
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-c.done:
		if c.refused == nil { // the call was admitted just as ctx ended: pass its turn on
			t.inside--
			t.advance(limit)
		}
	default:
		t.remove(key, c)
	}
	return appliance.Errorf(appliance.CodeTimeout,
		"the HSM did not sign this request in time").Because(fmt.Errorf("wait in the queue: %w", context.Cause(ctx)))
}

// Leave ends an admitted call that took the given time.
func (t *Queue) Leave(took time.Duration, limit int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.hold += (took - t.hold) / 8
	t.inside--
	t.advance(limit)
}

// advance admits the calls whose turn it is. The caller holds t.mu, also for the methods from here to overloaded.
func (t *Queue) advance(limit int) {
	for t.inside < limit && t.waiting > 0 {
		next := t.queues[0]
		c := next.calls[0]
		t.queues, next.calls = t.queues[1:], next.calls[1:]
		if len(next.calls) > 0 {
			t.queues = append(t.queues, next)
		} else {
			delete(t.ofKey, next.key)
		}
		t.waiting--
		t.inside++
		close(c.done)
	}
}

// join appends a call to its API key's queue. It refuses the call if it would wait too long or the queue is full.
func (t *Queue) join(ctx context.Context, key string, limit, most int) (*waitingCall, error) {
	own := t.ofKey[key]
	length := 0
	if own != nil {
		length = len(own.calls)
	}
	wait := t.expected(length, limit)
	if end, has := ctx.Deadline(); has && time.Until(end) < wait {
		return nil, t.overloaded(limit)
	}
	if t.waiting >= most && !t.displace(length, limit) {
		return nil, t.overloaded(limit)
	}
	if own == nil {
		own = &keyQueue{key: key}
		if t.ofKey == nil {
			t.ofKey = make(map[string]*keyQueue)
		}
		t.ofKey[key], t.queues = own, append(t.queues, own)
	}
	c := &waitingCall{done: make(chan struct{})}
	own.calls = append(own.calls, c)
	t.waiting++
	return c, nil
}

// expected returns how long a call waits behind length calls of its own API key.
func (t *Queue) expected(length, limit int) time.Duration {
	before := 1
	for _, l := range t.queues {
		before += min(len(l.calls), length+1)
	}
	return t.hold * time.Duration(before) / time.Duration(max(limit, 1))
}

// displace makes room for a call whose own queue has length calls. It refuses the newest call of the longest queue if
// that queue is longer than the caller's would be, and reports whether it did.
func (t *Queue) displace(length, limit int) bool {
	longest := slices.MaxFunc(t.queues, func(a, b *keyQueue) int { return len(a.calls) - len(b.calls) })
	if len(longest.calls) <= length+1 {
		return false
	}
	c := longest.calls[len(longest.calls)-1]
	c.refused = t.overloaded(limit)
	t.remove(longest.key, c)
	close(c.done)
	return true
}

func (t *Queue) remove(key string, c *waitingCall) {
	l := t.ofKey[key]
	l.calls = slices.DeleteFunc(l.calls, func(one *waitingCall) bool { return one == c })
	t.waiting--
	if len(l.calls) == 0 {
		delete(t.ofKey, key)
		t.queues = slices.DeleteFunc(t.queues, func(one *keyQueue) bool { return one == l })
	}
}

// overloaded returns the error of a refused call. RetryAfter is the expected time until the queue is empty.
func (t *Queue) overloaded(limit int) error {
	t.shed = time.Now()
	e := appliance.Errorf(appliance.CodeOverloaded, "more attestations are requested than the HSM can sign in time")
	e.RetryAfter = max(time.Second, t.hold*time.Duration(t.waiting+1)/time.Duration(max(limit, 1)))
	return e
}

// Saturated reports whether the queue is at least half full, or a call was refused in the last second.
func (t *Queue) Saturated(most int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return 2*t.waiting >= most || time.Since(t.shed) < time.Second
}

// Len returns how many calls are queued.
func (t *Queue) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.waiting
}
