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

// maxAccounts bounds the memory of accounts, at some 200 bytes an account. The least used are dropped first, each of which
// gives its client at most one burst too many.
const maxAccounts = 65536

// accounts has an account for each client: for each API key, or for each network.
type accounts[K comparable] struct {
	all  *otter.Cache[K, *account]
	open func(K) *account
}

func newAccounts[K comparable](open func(K) *account) accounts[K] {
	return accounts[K]{otter.Must(&otter.Options[K, *account]{MaximumSize: maxAccounts}), open}
}

// openAccount is of a client whose rate is nobody else's concern.
func openAccount[K comparable](K) *account { return new(account) }

// openLogAccount is of a client address that reads the log, and may read a large one at once.
func openLogAccount(netip.Addr) *account { return &account{saves: logBurst} }

func (a accounts[K]) of(client K) *account {
	found, ok := a.all.GetIfPresent(client)
	if !ok {
		found, _ = a.all.SetIfAbsent(client, a.open(client))
	}
	return found
}

const (
	// faultBurst is how many of a client's requests may end in an error of its own at once: what a minute allows.
	faultBurst = time.Minute
	// tightening is what is left of the rates of a client that makes more errors.
	tightening = 0.1
	// burst is how much of its time a client can have saved: what a second allows may come at once.
	burst = time.Second
	// logBurst is burst for readers of the log. At the default rate it holds 60,000 tiles, the tree of 15 million records:
	// tile clients give up at the first 429.
	logBurst = 10 * time.Minute
	// maxDebt is how far a client can be overdrawn by what its requests turn out to cost.
	maxDebt = time.Minute
)

// account is the one bucket of a client, over all methods and routes. It holds time, as in the generic cell rate algorithm:
// a request for which the rate is N a second takes 1/N of a second, so that routes with different rates share it.
type account struct {
	mu   sync.Mutex
	paid time.Time // what was taken is earned by then; the bucket is full when that is past

	// errors is likewise of the bucket of requests that ended in an error of the client's own (4xx). While it is overdrawn, the
	// client's rates are tightened.
	errors time.Time

	saves time.Duration // how much of its time the client can have saved; zero means burst

	attested atomic.Int64 // since the last sample; of API keys alone

	share *share // of a rate that holds for several appliances; nil where it does not
}

// take takes a request at that rate. If the bucket has too little for it, take takes nothing and returns how long until it has.
func (a *account) take(now time.Time, r appliance.Rate) (wait time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if wait = a.lacks(now, r); wait == 0 {
		wait = a.share.take(a, priceOf(r))
	}
	if wait == 0 {
		a.paid = later(a.paid, now).Add(priceOf(r))
	}
	return wait
}

// wait returns how long until the bucket has enough for a request at that rate.
func (a *account) wait(now time.Time, r appliance.Rate) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lacks(now, r)
}

// lacks is wait for those who hold a.mu.
func (a *account) lacks(now time.Time, r appliance.Rate) time.Duration {
	price := priceOf(r)
	if price == 0 {
		return 0
	}
	return max(0, later(a.paid, now).Sub(now)+price-a.most(price))
}

// most is how much time the bucket holds, for requests of that price.
func (a *account) most(price time.Duration) time.Duration {
	if a.saves > 0 {
		return max(a.saves, price)
	}
	return max(burst, price)
}

// charge takes n more requests at that rate, which may overdraw the bucket.
func (a *account) charge(now time.Time, r appliance.Rate, n float64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.paid = overdraw(a.paid, now, priceOf(r), n, burst)
	a.share.charge(a, time.Duration(min(n*priceOf(r).Seconds(), maxDebt.Seconds())*float64(time.Second)))
}

// fault notes that a request ended in an error of the client's own, where r may. It reports whether the rates are tightened
// from now on.
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

// tightened returns for how long the client's rates stay tightened, if it makes no more errors; zero if they are not.
func (a *account) tightened(now time.Time, r appliance.Rate) time.Duration {
	if r == appliance.Unlimited {
		return 0
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return max(0, later(a.errors, now).Sub(now)-max(faultBurst, priceOf(r)))
}

// overdraw takes n times the price from a bucket, down to maxDebt below nothing, and returns by when that is earned.
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
