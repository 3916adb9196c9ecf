// Package counts remembers how many attestations API keys were issued since certain times, so that a store counts on from where it
// ended instead of from the beginning.
package counts

import (
	"sync"
	"time"
)

// most bounds what is remembered: far more than the periods of all API keys at one time.
const most = 1 << 14

// Name is what is counted.
type Name struct {
	KeyID string
	since int64 // Unix time in nanoseconds
}

// Of names the attestations of an API key since a time.
func Of(keyID string, since time.Time) Name { return Name{keyID, since.UnixNano()} }

// Since is the time from which on they are counted.
func (n Name) Since() time.Time { return time.Unix(0, n.since).UTC() }

// Count is how many there are among the entries below an index.
type Count struct{ N, Below int64 }

// Counts remembers counts. All methods are safe for concurrent use; the zero value is ready.
type Counts struct {
	mu    sync.Mutex
	known map[Name]Count
}

// Known returns what was counted last.
func (c *Counts) Known(n Name) (Count, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	count, found := c.known[n]
	return count, found
}

// Keep remembers a count. What it counts must be committed. One that counts less far than what is known changes nothing.
func (c *Counts) Keep(n Name, count Count) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known == nil || len(c.known) >= most {
		c.known = make(map[Name]Count)
	}
	if count.Below >= c.known[n].Below {
		c.known[n] = count
	}
}
