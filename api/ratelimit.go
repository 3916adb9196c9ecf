package api

import (
	"net/netip"
	"time"

	"github.com/maypok86/otter/v2"
	"golang.org/x/time/rate"

	"github.com/attestd/attestd/appliance"
)

// maxBuckets bounds the memory of a limiter, at some 200 bytes a bucket. The least used are dropped first, each of which
// gives its client at most one burst too many.
const maxBuckets = 65536

// limiter has a token bucket for each key.
type limiter[K comparable] struct {
	buckets *otter.Cache[K, *rate.Limiter]
}

func newLimiter[K comparable]() limiter[K] {
	return limiter[K]{otter.Must(&otter.Options[K, *rate.Limiter]{MaximumSize: maxBuckets})}
}

// take takes a token from the key's bucket. If it is empty, take returns CodeRateLimited with RetryAfter.
func (l limiter[K]) take(key K, r appliance.Rate, now time.Time) error {
	if r == appliance.Unlimited {
		return nil
	}
	bucket, found := l.buckets.GetIfPresent(key)
	if !found {
		bucket, _ = l.buckets.SetIfAbsent(key, rate.NewLimiter(rate.Limit(r.PerSecond), r.Burst()))
	}
	if bucket.Limit() != rate.Limit(r.PerSecond) { // the rate was changed
		bucket.SetLimitAt(now, rate.Limit(r.PerSecond))
		bucket.SetBurstAt(now, r.Burst())
	}
	token := bucket.ReserveN(now, 1)
	wait := token.DelayFrom(now)
	if wait == 0 {
		return nil
	}
	token.CancelAt(now)
	e := appliance.Errorf(appliance.CodeRateLimited, "more than %s requests", r)
	e.RetryAfter = wait
	return e
}

// network returns what shares one bucket of the anonymous rate: an IPv4 address, or an IPv6 /64, since every subscriber has
// at least that.
func network(ip netip.Addr) netip.Addr {
	if !ip.Is6() {
		return ip
	}
	p, err := ip.WithZone("").Prefix(64)
	if err != nil {
		return ip
	}
	return p.Addr()
}
