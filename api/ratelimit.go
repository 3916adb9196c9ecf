package api

import (
	"net/netip"
	"time"

	"github.com/maypok86/otter/v2"
	"golang.org/x/time/rate"

	"github.com/attestd/attestd/appliance"
)

// maxBuckets bounds the memory of a limiter: some 200 bytes each. The least used are forgotten first, and with
// them at most one burst each.
const maxBuckets = 65536

// limiter is one token bucket for each name.
type limiter[K comparable] struct {
	buckets *otter.Cache[K, *rate.Limiter]
}

func newLimiter[K comparable]() limiter[K] {
	return limiter[K]{otter.Must(&otter.Options[K, *rate.Limiter]{MaximumSize: maxBuckets})}
}

// take takes a token of name's bucket. Where there is none it returns CodeRateLimited and when there will be one.
func (l limiter[K]) take(name K, r appliance.Rate, now time.Time) error {
	if r == appliance.Unlimited {
		return nil
	}
	bucket, found := l.buckets.GetIfPresent(name)
	if !found {
		bucket, _ = l.buckets.SetIfAbsent(name, rate.NewLimiter(rate.Limit(r.PerSecond), r.Burst()))
	}
	if bucket.Limit() != rate.Limit(r.PerSecond) { // the configuration was loaded again
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

// network is what shares one anonymous bucket: an IPv4 address, or an IPv6 /64, which is what one subscriber has at
// the least.
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
