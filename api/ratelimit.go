package api

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/maypok86/otter/v2"

	"github.com/attestd/attestd/appliance"
)

// maxAccounts bounds the memory of accounts, at about 200 bytes each. The least used are evicted first. An eviction
// gives a client at most one extra burst.
const maxAccounts = 65536

// accounts holds one account per client, that is, per API key or per network.
type accounts[K comparable] struct {
	all  *otter.Cache[K, *account]
	open func(K) *account
}

func newAccounts[K comparable](open func(K) *account) accounts[K] {
	return accounts[K]{otter.Must(&otter.Options[K, *account]{MaximumSize: maxAccounts}), open}
}

// openAccount returns the account of a client with a rate that this appliance does not share.
func openAccount[K comparable](K) *account { return new(account) }

// openLogAccount returns the account of a client address that reads the log. Its bucket is large enough to read a large
// log at once.
func openLogAccount(netip.Addr) *account { return &account{saves: logBurst} }

func (a accounts[K]) of(client K) *account {
	found, ok := a.all.GetIfPresent(client)
	if !ok {
		found, _ = a.all.SetIfAbsent(client, a.open(client))
	}
	return found
}

const (
	// faultBurst is how much error allowance a client may use at once: one minute's worth.
	faultBurst = time.Minute
	// tightening is the factor for the rates of a client that makes more errors.
	tightening = 0.1
	// burst is the capacity of a bucket: one second's requests may come at once.
	burst = time.Second
	// logBurst is burst for readers of the log. At the default rate it allows 60,000 tiles, the tree of 15 million
	// records. Tile clients give up at the first 429.
	logBurst = 10 * time.Minute
	// maxDebt is how far the actual cost of requests can overdraw a bucket.
	maxDebt = time.Minute
)

// account is the only rate limit bucket of a client, for all methods and routes. The bucket holds time, as in the
// generic cell rate algorithm: a request with a rate of N per second costs 1/N seconds. So routes with different rates
// can share it.
type account struct {
	mu   sync.Mutex
	paid time.Time // the time at which all requests so far are paid for; the bucket is full once it has passed

	// errors is the same time for the bucket of 4xx answers. While that bucket is overdrawn, the client's rates are
	// tightened.
	errors time.Time

	saves time.Duration // the bucket's capacity; zero means burst

	attested atomic.Int64 // attestations since the last sample; counted for API keys only

	share *share // of a rate that several appliances share; nil if none
}

// withdraw takes a request at rate r from the bucket. If the bucket has too little, take takes nothing and returns how
// long until it has enough.
func (a *account) withdraw(now time.Time, r appliance.Rate) (wait time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if wait = a.lacks(now, r); wait == 0 {
		wait = a.share.withdraw(a, priceOf(r))
	}
	if wait == 0 {
		a.paid = later(a.paid, now).Add(priceOf(r))
	}
	return wait
}

// wait returns how long until the bucket has enough for a request at rate r.
func (a *account) wait(now time.Time, r appliance.Rate) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lacks(now, r)
}

// lacks is wait for callers that hold a.mu.
func (a *account) lacks(now time.Time, r appliance.Rate) time.Duration {
	price := priceOf(r)
	if price == 0 {
		return 0
	}
	return max(0, later(a.paid, now).Sub(now)+price-a.most(price))
}

// most returns the capacity of the bucket, for requests of the given price.
func (a *account) most(price time.Duration) time.Duration {
	if a.saves > 0 {
		return max(a.saves, price)
	}
	return max(burst, price)
}

// charge takes n more requests at rate r, which may overdraw the bucket.
func (a *account) charge(now time.Time, r appliance.Rate, n float64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.paid = overdraw(a.paid, now, priceOf(r), n, burst)
	a.share.charge(a, time.Duration(min(n*priceOf(r).Seconds(), maxDebt.Seconds())*float64(time.Second)))
}

// fault counts a 4xx answer against the allowed error rate r. It reports whether this answer starts a tightening of the
// client's rates.
func (a *account) fault(now time.Time, r appliance.Rate) bool {
	if r == appliance.Unlimited {
		return false
	}
	before := a.tightened(now, r)
	a.mu.Lock()
	a.errors = overdraw(a.errors, now, priceOf(r), 1, faultBurst)
	a.mu.Unlock()
	return before == 0 && a.tightened(now, r) > 0
}

// tightened returns how long the client's rates stay tightened if it makes no more errors. It returns zero if they are
// not tightened.
func (a *account) tightened(now time.Time, r appliance.Rate) time.Duration {
	if r == appliance.Unlimited {
		return 0
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return max(0, later(a.errors, now).Sub(now)-max(faultBurst, priceOf(r)))
}

// overdraw takes n times the price from a bucket, down to maxDebt below empty. It returns the time at which the
// requests so far are paid for.
func overdraw(earned, now time.Time, price time.Duration, n float64, burst time.Duration) time.Time {
	owed := later(earned, now).Sub(now).Seconds() + n*price.Seconds()
	return now.Add(time.Duration(min(owed, (max(burst, price)+maxDebt).Seconds()) * float64(time.Second)))
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// priceOf returns the time that a request takes from the bucket.
func priceOf(r appliance.Rate) time.Duration {
	if r == appliance.Unlimited {
		return 0
	}
	return time.Duration(float64(time.Second) / r.PerSecond)
}

// charge is the account and the rate at which a request is charged. The zero bill charges no account.
type charge struct {
	account *account
	rate    appliance.Rate
}

// Charge takes n more requests from the caller's bucket. Handlers call it for a request that costs as much as n + 1
// usual ones. Charge may overdraw the bucket by up to a minute, and the caller's next requests then wait.
func Charge(c *fiber.Ctx, n float64) {
	if x := exchangeOf(c.Context()); x.charge.account != nil && n > 0 {
		x.charge.account.charge(x.start, x.charge.rate, n)
	}
}

// network returns the network that shares one anonymous account: the IPv4 address, or the IPv6 /64, since every
// subscriber has at least a /64.
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
