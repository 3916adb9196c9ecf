package appliance

import (
	"context"
	"time"
)

// SharedRates are buckets of API keys that several appliances draw from, so that a key's rate holds for all of them together. A
// bucket holds time, as in the generic cell rate algorithm: it earns a second a second, and a request at the rate N a second
// spends 1/N of one.
type SharedRates interface {
	// Lease takes time out of buckets, and returns how much of each: less than is wanted where a bucket has less, or none. The
	// order is that of wants, in which no key is twice.
	Lease(ctx context.Context, wants []RateWant) ([]time.Duration, error)
}

// RateWant is what is wanted of one bucket.
type RateWant struct {
	KeyID string
	Time  time.Duration // more than zero
	Burst time.Duration // the most that the bucket holds
}
