package api

import (
	"bytes"
	"net"
	"net/netip"
	"time"

	"github.com/maypok86/otter/v2"
	"github.com/valyala/fasthttp"
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

// clientIP is the address the request came from. X-Forwarded-For is believed as far as trusted proxies wrote it:
// from its end to the first address that is not one of them.
func clientIP(rctx *fasthttp.RequestCtx, trusted []netip.Prefix) netip.Addr {
	peer, ok := rctx.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	ip := peer.AddrPort().Addr().Unmap()
	if !contains(trusted, ip) {
		return ip
	}
	headers := rctx.Request.Header.PeekAll("X-Forwarded-For")
	for i := len(headers) - 1; i >= 0; i-- {
		hops := bytes.Split(headers[i], []byte(","))
		for j := len(hops) - 1; j >= 0; j-- {
			hop, err := parseHop(string(bytes.TrimSpace(hops[j])))
			if err != nil {
				return ip
			}
			if ip = hop; !contains(trusted, ip) {
				return ip
			}
		}
	}
	return ip
}

// parseHop reads an address, as some proxies write it with a port.
func parseHop(s string) (netip.Addr, error) {
	if withPort, err := netip.ParseAddrPort(s); err == nil {
		return withPort.Addr().Unmap(), nil
	}
	ip, err := netip.ParseAddr(s)
	return ip.Unmap(), err
}

func contains(prefixes []netip.Prefix, ip netip.Addr) bool {
	for _, p := range prefixes {
		if p.Contains(ip) {
			return true
		}
	}
	return false
}
