package graphql

import (
	"context"
	"encoding/json"
	"time"
)

// Execute answers a query without HTTP.
func (e *Endpoint) Execute(query, variables string) string {
	r, entry := e.answer(context.Background(), posted(query, variables), cacheKey{})
	if entry != nil {
		return string(entry.body)
	}
	defer e.reuse(r)
	return string(r.body)
}

// posted is the request of a POST.
func posted(query, variables string) request {
	members := map[string]any{"query": query}
	if variables != "" {
		members["variables"] = json.RawMessage(variables)
	}
	body, _ := json.Marshal(members) // none for variables that are no JSON
	return request{query: query, variables: []byte(variables), raw: rawRequest{bytes: body, contentType: mediaJSON}}
}

// Prepared is how many documents are kept.
func (e *Endpoint) Prepared() int { return e.operations.EstimatedSize() }

// ExecuteContext answers a query for as long as ctx lasts.
func (e *Endpoint) ExecuteContext(ctx context.Context, query string) string {
	r, entry := e.answer(ctx, posted(query, ""), cacheKey{})
	if entry != nil {
		return string(entry.body)
	}
	return string(r.body)
}

// CachedBytes is what the answers kept for @cached weigh.
func (e *Endpoint) CachedBytes() uint64 {
	e.cache.entries.CleanUp()
	return e.cache.entries.WeightedSize()
}

// WithBreakerOpen sets how long the breaker stays open.
func WithBreakerOpen(o Options, d time.Duration) Options {
	o.breakerOpen = d
	return o
}

// KeptFor is for how long all answers are kept, by their ttl and what comes after it.
func (e *Endpoint) KeptFor() (kept []time.Duration) {
	for key := range e.cache.entries.Keys() {
		entry, _ := e.cache.entries.GetEntryQuietly(key)
		kept = append(kept, entry.ExpiresAfter().Round(time.Second))
	}
	return kept
}
