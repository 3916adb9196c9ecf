package graphql

import "context"

// Interpret makes the endpoint answer everything by graph-gophers.
func (e *Endpoint) Interpret() { e.interpret = true }

// Execute answers a query without HTTP.
func (e *Endpoint) Execute(query, variables string) string {
	r, entry := e.answer(context.Background(), request{query: query, variables: []byte(variables)}, cacheKey{})
	if entry != nil {
		return string(entry.body)
	}
	return string(r.body)
}

// Prepared is how many documents are kept.
func (e *Endpoint) Prepared() int { return e.operations.EstimatedSize() }

// ExecuteContext answers a query for as long as ctx lasts.
func (e *Endpoint) ExecuteContext(ctx context.Context, query string) string {
	r, entry := e.answer(ctx, request{query: query}, cacheKey{})
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
