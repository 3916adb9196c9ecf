package graphql

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"time"

	"github.com/maypok86/otter/v2"
	"github.com/prometheus/client_golang/prometheus"
)

// cache holds the answers of operations with @cached, bounded in bytes. An entry expires after its ttl. Answers of the
// upstream are kept longer, to be sent while the upstream is unavailable.
//
// The key of an entry is computed from the parsed request. requests maps the bytes of a request to that key, so that a
// hit parses neither JSON nor GraphQL.
type cache struct {
	entries  *otter.Cache[cacheKey, *cacheEntry]
	requests *otter.Cache[cacheKey, cacheKey] // from the hash of a request's bytes
	runs     sharedRuns
	now      func() time.Time
	hits     prometheus.Counter
	misses   prometheus.Counter
}

// cacheKey is a SHA-256.
type cacheKey [sha256.Size]byte

// cacheEntry is an answer without errors.
type cacheEntry struct {
	kept
	tag    string // a strong validator of the body
	stored time.Time
	ttl    time.Duration
	stale  time.Duration // how long the entry is kept after its ttl; see job
}

// age returns the time since the answer was made.
func (c *cacheEntry) age(now time.Time) time.Duration { return now.Sub(c.stored) }

// entryOverhead is the approximate memory of an entry without its body, in bytes.
const entryOverhead = 300

func newCache(maxBytes int64, now func() time.Time, registry prometheus.Registerer) (*cache, error) {
	c := &cache{
		now: now,
		hits: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "attestd_graphql_cache_hits_total", Help: "Queries with @cached answered from the cache."}),
		misses: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "attestd_graphql_cache_misses_total", Help: "Queries with @cached that were executed."}),
	}
	evictions := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "attestd_graphql_cache_evictions_total", Help: "Responses evicted from the cache before they expired."})
	entries, err := otter.New(&otter.Options[cacheKey, *cacheEntry]{
		Clock:         quietClock{},
		MaximumWeight: uint64(maxBytes),
		Weigher:       func(_ cacheKey, e *cacheEntry) uint32 { return uint32(e.body.capacity() + entryOverhead) },
		ExpiryCalculator: otter.ExpiryWritingFunc(func(e otter.Entry[cacheKey, *cacheEntry]) time.Duration {
			return e.Value.ttl + e.Value.stale
		}),
		OnDeletion: func(e otter.DeletionEvent[cacheKey, *cacheEntry]) {
			if e.Cause == otter.CauseOverflow {
				evictions.Inc()
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("response cache: %w", err)
	}
	requests, err := otter.New(&otter.Options[cacheKey, cacheKey]{MaximumSize: max(1024, int(maxBytes/4096))})
	if err != nil {
		return nil, fmt.Errorf("response cache: %w", err)
	}
	c.entries, c.requests = entries, requests
	return c, register(registry, c.hits, c.misses, evictions)
}

func register(registry prometheus.Registerer, collectors ...prometheus.Collector) error {
	if registry == nil {
		return nil
	}
	for _, c := range collectors {
		if err := registry.Register(c); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	return nil
}

// quietClock never ticks. otter's own clock would wake the process every second forever. Expired entries are dropped
// when others are written, and count against the cache's bytes until then.
type quietClock struct{}

func (quietClock) NowNano() int64                      { return time.Now().UnixNano() }
func (quietClock) Tick(time.Duration) <-chan time.Time { return nil }

// lookup returns the entry of a key, or nil if it is older than its ttl. otter may hold it for longer.
func (c *cache) lookup(key cacheKey) *cacheEntry {
	entry, ok := c.entries.GetIfPresent(key)
	if !ok || entry.age(c.now()) >= entry.ttl {
		return nil
	}
	c.hits.Inc()
	return entry
}

// lookupRequest returns the entry of a request, by the hash of its bytes.
func (c *cache) lookupRequest(request cacheKey) *cacheEntry {
	key, ok := c.requests.GetIfPresent(request)
	if !ok {
		return nil
	}
	return c.lookup(key)
}

// key returns the hash of all inputs that the answer depends on.
func (op *operation) key(name string, variables map[string]any, variant string) cacheKey {
	h := sha256.New()
	h.Write(op.Cached.Identity[:])
	fmt.Fprintf(h, "%d:%s%d:%s", len(name), name, len(variant), variant)
	if _, given := variables[op.Cached.Ignored]; given {
		variables = maps.Clone(variables)
		delete(variables, op.Cached.Ignored)
	}
	h.Write(canonicalJSON(variables))
	var key cacheKey
	h.Sum(key[:0])
	return key
}
