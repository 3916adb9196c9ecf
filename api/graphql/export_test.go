package graphql

import (
	"context"
	"encoding/json"
	"time"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/api/coding"
)

// Execute answers a query without HTTP.
func (e *Endpoint) Execute(query, variables string) string {
	r, entry := e.answer(context.Background(), posted(query, variables), cacheKey{})
	if entry != nil {
		return string(entry.body.whole())
	}
	defer e.reuse(r)
	return string(r.body.whole())
}

// posted returns the request of a POST.
func posted(query, variables string) request {
	members := map[string]any{"query": query}
	if variables != "" {
		members["variables"] = json.RawMessage(variables)
	}
	body, _ := json.Marshal(members) // empty if the variables are not JSON
	return request{query: query, variables: []byte(variables), raw: rawRequest{bytes: body, contentType: mediaJSON}}
}

// Prepared returns the number of cached documents.
func (e *Endpoint) Prepared() int { return e.operations.EstimatedSize() }

// ExecuteContext answers a query until ctx ends.
func (e *Endpoint) ExecuteContext(ctx context.Context, query string) string {
	r, entry := e.answer(ctx, posted(query, ""), cacheKey{})
	if entry != nil {
		return string(entry.body.whole())
	}
	return string(r.body.whole())
}

// Sharers returns the number of requests that wait for shared runs.
func (e *Endpoint) Sharers() (n int) {
	e.cache.runs.mu.Lock()
	defer e.cache.runs.mu.Unlock()
	for _, f := range e.cache.runs.all {
		n += f.sharers
	}
	return n
}

// Waiting returns the number of requests in the execution queue.
func (e *Endpoint) Waiting() int64 { return e.executions.waiting.Load() }

// HeldBytes returns the bytes of answers that are being made or sent. IncomingBytes returns the bytes of bodies that
// are being read.
func (e *Endpoint) HeldBytes() int64     { return e.budget.held.Load() }
func (e *Endpoint) IncomingBytes() int64 { return e.bodies.held.Load() }

// WithLine sets the length of the queue and its maximum wait.
func WithLine(o Options, waiting int64, wait time.Duration) Options {
	o.line = queueLimit{waiting, wait}
	return o
}

// WithCharge calls charge without the request.
func WithCharge(o Options, charge func(n float64)) Options {
	o.Charge = func(_ *fiber.Ctx, n float64) { charge(n) }
	return o
}

// CachedBytes returns the weight of the cached answers.
func (e *Endpoint) CachedBytes() uint64 {
	e.cache.entries.CleanUp()
	return e.cache.entries.WeightedSize()
}

// WithBreakerOpen sets how long the breaker stays open.
func WithBreakerOpen(o Options, d time.Duration) Options {
	o.breakerOpen = d
	return o
}

// KeptFor returns how long each answer is cached, including the time after its ttl.
func (e *Endpoint) KeptFor() (kept []time.Duration) {
	for key := range e.cache.entries.Keys() {
		entry, _ := e.cache.entries.GetEntryQuietly(key)
		kept = append(kept, entry.ExpiresAfter().Round(time.Second))
	}
	return kept
}

// Compress returns the size of a text in a coding, in bytes.
func (e *Endpoint) Compress(text, name string) int {
	small, err := e.encode(context.Background(), pieces{[]byte(text)}, coding.Coding(name))
	if err != nil {
		panic(err.Message)
	}
	defer e.reuse(small)
	return small.body.size()
}
