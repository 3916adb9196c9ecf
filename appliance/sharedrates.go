package appliance

import (
	"context"
	"time"
)

// SharedRates are rate-limit buckets that several appliances share, so that an API key's rate holds for all of them
// together. A bucket holds time, as in the generic cell rate algorithm. It gains one second per second, and a request
// at the rate of N per second spends 1/N seconds.
type SharedRates interface {
	// Lease takes time out of buckets and returns how much it took from each: less than wanted, or zero, if a bucket
	// holds less. Results are in the order of wants, in which each key occurs once.
	Lease(ctx context.Context, wants []RateWant) ([]time.Duration, error)
}

// RateWant is a request for time from one bucket.
type RateWant struct {
	KeyID string
	Time  time.Duration // more than zero
	Burst time.Duration // capacity of the bucket
}
