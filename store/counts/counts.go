// Package counts caches how many attestations each API key was issued since given times. A store that counts again
// needs to count only the entries after those already counted, also after a restart: see File.
package counts

import (
	"sync"
	"time"
)

// most bounds the cache. It is far larger than the number of periods of all API keys at one time.
const most = 1 << 14

// Name identifies a count: an API key and the start of a period.
type Name struct {
	KeyID string
	since int64 // Unix time in nanoseconds
}

// Of returns the name of the count of an API key's attestations since a time.
func Of(keyID string, since time.Time) Name { return Name{keyID, since.UnixNano()} }

// Since returns the start of the period.
func (n Name) Since() time.Time { return time.Unix(0, n.since).UTC() }

// Count is a result: N attestations among the entries with an index below Below.
type Count struct {
	N     int64 `json:"n"`
	Below int64 `json:"below"`
}

// Counts is the cache. All methods are safe for concurrent use; the zero value is ready for use.
type Counts struct {
	mu     sync.Mutex
	known  map[Name]Count
	file   *File // nil before Load
	stored int64 // highest Count.Below in the file
	closed bool

	loading sync.Mutex     // held during reads and writes of the file
	storing sync.WaitGroup // writes of the file
}

// Known returns the cached count.
func (c *Counts) Known(n Name) (Count, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	count, found := c.known[n]
	return count, found
}

// Keep caches a count. The counted entries must be committed. Keep ignores a count that covers fewer entries than the
// cached one.
func (c *Counts) Keep(n Name, count Count) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known == nil || len(c.known) >= most {
		c.known = make(map[Name]Count)
	}
	if count.Below >= c.known[n].Below {
		c.known[n] = count
		c.storeLater(count.Below)
	}
}
