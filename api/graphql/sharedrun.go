package graphql

import (
	"context"
	"strconv"
	"sync"

	"github.com/attestd/attestd/api/graphql/document"
	"github.com/attestd/attestd/appliance"
)

// sharedRuns holds the runs that concurrent requests share. A run continues if the request that began it leaves, and
// ends once all its requests have left.
type sharedRuns struct {
	mu  sync.Mutex
	all map[string]*sharedRun
}

type sharedRun struct {
	sharers int // guarded by sharedRuns.mu
	cancel  context.CancelFunc
	done    chan struct{} // closed when the fields below are set

	response response
	entry    *cacheEntry // set instead of a response
}

// join returns the run of a key, or begins one. The caller must call leave.
func (f *sharedRuns) join(ctx context.Context, key string,
	run func(ctx context.Context) (response, *cacheEntry)) (_ *sharedRun, began bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if found, ok := f.all[key]; ok {
		found.sharers++
		return found, false
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	begun := &sharedRun{sharers: 1, cancel: cancel, done: make(chan struct{})}
	if f.all == nil {
		f.all = make(map[string]*sharedRun)
	}
	f.all[key] = begun
	go func() {
		defer cancel()
		begun.response, begun.entry = run(ctx)
		f.mu.Lock()
		defer f.mu.Unlock()
		f.forget(key, begun)
		close(begun.done)
	}()
	return begun, true
}

// leave ends the run if no request waits for it any more. Later requests begin another run.
func (f *sharedRuns) leave(key string, left *sharedRun) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if left.sharers--; left.sharers == 0 {
		f.forget(key, left)
		left.cancel()
	}
}

// forget removes an ended run. The caller must hold f.mu.
func (f *sharedRuns) forget(key string, ended *sharedRun) {
	if f.all[key] == ended {
		delete(f.all, key)
	}
}

// share returns the entry of a key, or runs the job. Concurrent calls with the same key share one run. The request that
// begins the run is charged for it.
func (e *Endpoint) share(ctx context.Context, key cacheKey, p document.Policy, j job,
	r request) (response, *cacheEntry) {
	if !p.Refresh {
		if entry := e.cache.lookup(key); entry != nil {
			return response{}, entry
		}
	}
	// A refresh does not join a run that began before it.
	name := string(key[:]) + strconv.FormatBool(p.Refresh) + j.shareKey
	shared, began := e.cache.runs.join(ctx, name, func(ctx context.Context) (response, *cacheEntry) {
		return e.runShared(ctx, key, p, j)
	})
	defer e.cache.runs.leave(name, shared)
	if began {
		r.payFor(j)
	}
	select {
	case <-ctx.Done():
		return refused(statusUnavailable, givenUp()), nil
	case <-shared.done:
	}
	if began && shared.entry != nil {
		r.payForBytes(shared.entry.body)
	}
	return shared.response, shared.entry
}

func givenUp() *document.Error {
	return document.NewError(appliance.CodeTimeout, "the request was abandoned")
}

// isWhole is response.isWhole. For an upstream's answer it must parse JSON, so it takes an execution slot.
func (e *Endpoint) isWhole(ctx context.Context, r response) bool {
	if r.status == statusForwarded {
		if e.executions.acquire(ctx) != nil {
			return false
		}
		defer e.executions.end()
	}
	return r.isWhole()
}

// runShared runs a job, and caches its answer. A response with errors may be sent to several clients, so its pieces must not
// be reused.
func (e *Endpoint) runShared(ctx context.Context, key cacheKey, p document.Policy, j job) (response, *cacheEntry) {
	if !p.Refresh { // another run may have ended since the lookup
		if entry := e.cache.lookup(key); entry != nil {
			return response{}, entry
		}
	}
	e.cache.misses.Inc()
	r := j.run(ctx)
	if !e.isWhole(ctx, r) {
		if r.held != nil { // each sender holds its own share
			r.held.release()
			r.held = nil
		}
		return r, nil
	}
	body := e.cacheable(r)
	entry := &cacheEntry{kept: kept{body: body}, tag: tagOf(body), stored: e.cache.now(), ttl: p.TTL, stale: j.stale}
	e.cache.entries.Set(key, entry)
	return response{}, entry
}
