package api

import (
	"net/netip"
	"sync"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/maypok86/otter/v2"

	"github.com/attestd/attestd/appliance"
)

// maxAccounts bounds the memory of accounts, at some 200 bytes an account. The least used are dropped first, each of which
// gives its client at most one burst too many.
const maxAccounts = 65536

// accounts has an account for each client: for each API key, or for each network.
type accounts[K comparable] struct{ all *otter.Cache[K, *account] }

func newAccounts[K comparable]() accounts[K] {
	return accounts[K]{otter.Must(&otter.Options[K, *account]{MaximumSize: maxAccounts})}
}

func (a accounts[K]) of(client K) *account {
	found, ok := a.all.GetIfPresent(client)
	if !ok {
		found, _ = a.all.SetIfAbsent(client, new(account))
	}
	return found
}

const (
	// burst is how much of its time a client can have saved: what a second allows may come at once.
	burst = time.Second
	// maxDebt is how far a client can be overdrawn by what its requests turn out to cost.
	maxDebt = time.Minute
)

// account is the one bucket of a client, over all methods and routes. It holds time, as in the generic cell rate algorithm:
// a request for which the rate is N a second takes 1/N of a second, so that routes with different rates share it.
type account struct {
	mu   sync.Mutex
	paid time.Time // what was taken is earned by then; the bucket is full when that is past
}

// take takes a request at that rate. If the bucket has too little for it, take returns CodeRateLimited with RetryAfter.
func (a *account) take(now time.Time, r appliance.Rate) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	price := priceOf(r)
	if price == 0 {
		return nil
	}
	next := a.next(now).Add(price)
	if wait := next.Sub(now) - max(burst, price); wait > 0 {
		e := appliance.Errorf(appliance.CodeRateLimited, "more than %s requests", r)
		e.RetryAfter = wait
		return e
	}
	a.paid = next
	return nil
}

// charge takes n more requests at that rate, which may overdraw the bucket.
func (a *account) charge(now time.Time, r appliance.Rate, n float64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	price := priceOf(r)
	owed := min(a.next(now).Sub(now).Seconds()+n*price.Seconds(), (max(burst, price) + maxDebt).Seconds())
	a.paid = now.Add(time.Duration(owed * float64(time.Second)))
}

// next returns from when on the next request is paid for.
func (a *account) next(now time.Time) time.Time {
	if a.paid.After(now) {
		return a.paid
	}
	return now
}

// priceOf returns what a request takes from the bucket.
func priceOf(r appliance.Rate) time.Duration {
	if r == appliance.Unlimited {
		return 0
	}
	return time.Duration(float64(time.Second) / r.PerSecond)
}

// bill is whom a request is charged to, and at what rate. The zero bill charges nobody.
type bill struct {
	account *account
	rate    appliance.Rate
}

// Charge takes n more requests from the bucket of the caller, for a handler that finds a request to be as costly as n + 1
// usual ones. The bucket may be overdrawn, by a minute at most: the caller's next requests wait for it.
func Charge(c *fiber.Ctx, n float64) {
	if x := exchangeOf(c.Context()); x.bill.account != nil && n > 0 {
		x.bill.account.charge(x.start, x.bill.rate, n)
	}
}

// network returns what shares one account without an API key: an IPv4 address, or an IPv6 /64, since every subscriber has
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
