package api_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/appliance"
)

func TestAKeysRateIsEnforcedAndItsWaiverKept(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *api.Options) { o.DefaultRate = appliance.Rate{PerSecond: 2} })
	usual, _ := r.newKey(appliance.KeyRequest{})
	slow, _ := r.newKey(appliance.KeyRequest{Rate: appliance.Rate{PerSecond: 1.0 / 60}})
	as := func(token string) answer {
		return r.do("POST", attestPath, good, "x-api-key", token, "Content-Type", "application/json")
	}
	for range 2 {
		if a := as(usual); a.status != 200 {
			t.Fatal(a)
		}
	}
	if a := as(usual); a.status != 429 || a.problem().Code != appliance.CodeRateLimited ||
		a.header.Get("Retry-After") != "1" {
		t.Errorf("the third in a second: %s, Retry-After %q", a, a.header.Get("Retry-After"))
	}
	if a := as(slow); a.status != 200 {
		t.Errorf("another key: %s", a)
	}
	if a := as(slow); a.status != 429 || a.header.Get("Retry-After") != "60" {
		t.Errorf("one a minute: %s, Retry-After %q", a, a.header.Get("Retry-After"))
	}
	for range 20 {
		if a := r.attest(); a.status != 200 {
			t.Fatalf("unlimited: %s", a)
		}
	}
	r.clock.move(time.Second)
	if a := as(usual); a.status != 200 {
		t.Errorf("a second later: %s", a)
	}
	if n := r.size(); n != 24 {
		t.Errorf("%d records, want 24", n)
	}
	r.server.SetRates(appliance.Rate{PerSecond: 100}, appliance.Rate{})
	r.clock.move(time.Second)
	as(usual) // sets the bucket's rate, which now refills
	r.clock.move(time.Second)
	for range 20 {
		if a := as(usual); a.status != 200 {
			t.Fatalf("at a new rate: %s", a)
		}
	}
}

func TestRequestsWithoutAValidKeyAreLimitedByAddressAndOthersAreNot(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *api.Options) { o.AnonymousRate = appliance.Rate{PerSecond: 3} })
	guess := func() answer {
		return r.do("POST", attestPath, good, "x-api-key", "attestd_guess", "Content-Type", "application/json")
	}
	for range 3 {
		if a := guess(); a.status != 401 {
			t.Fatal(a)
		}
	}
	if a := guess(); a.status != 429 || a.problem().Code != appliance.CodeRateLimited ||
		a.header.Get("Retry-After") == "" {
		t.Errorf("the fourth guess: %s", a)
	}
	if a := r.do("GET", "/functions/v1/attestor", ""); a.status != 429 {
		t.Errorf("the log, for nobody: %s", a)
	}
	if a := r.do("GET", "/functions/v1/attestor", "", "x-api-key", r.token); a.status != 200 {
		t.Errorf("the log, with a key: %s", a)
	}
	if a := r.attest(); a.status != 200 {
		t.Errorf("a valid key behind the same address: %s", a)
	}
	if a := r.do("GET", "/healthz", ""); a.status != 200 {
		t.Errorf("a probe: %s", a)
	}
	r.clock.move(time.Second)
	if a := guess(); a.status != 401 {
		t.Errorf("a second later: %s", a)
	}
}

func TestABucketIsSharedByAnIPv6SubnetAndMemoryIsBounded(t *testing.T) {
	t.Parallel()
	same, other := netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8:0:1::1")
	if api.Network(same) != api.Network(netip.MustParseAddr("2001:db8::ffff:1")) ||
		api.Network(same) == api.Network(other) {
		t.Error("IPv6 addresses are not told apart by /64")
	}
	if v4 := netip.MustParseAddr("192.0.2.1"); api.Network(v4) != v4 {
		t.Error("IPv4 addresses are not told apart")
	}
	limiter, now, one := api.NewAddressLimiter(), time.Now(), appliance.Rate{PerSecond: 1}
	if api.Take(limiter, same, one, now) != 0 || api.Take(limiter, same, one, now) != time.Second {
		t.Error("one a second is not one a second")
	}
	for i := range 80_000 {
		_ = api.Take(limiter, netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), one, now)
	}
	if n := limiter.Len(); n > 70_000 {
		t.Errorf("%d buckets are kept", n)
	}
}
