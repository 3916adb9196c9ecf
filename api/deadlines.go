package api

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// deadlines gives requests their contexts. Those that begin within a small part of the timeout share one, which ends with that of the
// last: a context of its own for each, with a timer and a place among the children of its parent, takes longer than what most requests
// wait for. Nobody may take its end for the client's, and it is not cancelled when a request is done.
type deadlines struct {
	parent  context.Context
	timeout time.Duration

	now atomic.Pointer[sharedContext]
	mu  sync.Mutex // held while another is made
}

type sharedContext struct {
	context.Context
	cancel context.CancelFunc // its end comes by itself
	until  time.Time          // nobody else gets it from then on
}

// sharers is the part of the timeout by which a request may have longer than it.
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
