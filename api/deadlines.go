package api

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// deadlines creates the contexts of requests. Requests that begin within timeout/sharers of each other share one
// context. A context per request, with its own timer and an entry in its parent's list of children, takes longer than
// most requests wait. The shared context does not end when a client disconnects, nor when a request completes.
type deadlines struct {
	parent  context.Context
	timeout time.Duration

	now atomic.Pointer[sharedContext]
	mu  sync.Mutex // held while a new context is made
}

type sharedContext struct {
	context.Context
	cancel context.CancelFunc // never called: the timeout ends the context
	until  time.Time          // no new requests get it from then on
}

// sharers bounds the extra time of a request: it may run up to timeout/sharers longer than its timeout.
const sharers = 64

func (d *deadlines) context() context.Context {
	if shared := d.now.Load(); shared != nil && time.Now().Before(shared.until) {
		return shared.Context
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if shared := d.now.Load(); shared != nil && time.Now().Before(shared.until) {
		return shared.Context
	}
	window := d.timeout / sharers
	made := &sharedContext{until: time.Now().Add(window)}
	made.Context, made.cancel = context.WithTimeout(d.parent, d.timeout+window)
	d.now.Store(made)
	return made.Context
}
