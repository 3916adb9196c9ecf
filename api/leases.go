package api

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/attestd/attestd/appliance"
)

const (
	// leaseBlock is how much bucket time an appliance leases ahead: a tenth of a second's requests, or one request if
	// that costs more. Such a lease bridges the roughly 50 ms until the next one arrives.
	leaseBlock = 100 * time.Millisecond
	// leasePause is the minimum time between two lease requests. Each request covers all API keys that need time.
	leasePause = 10 * time.Millisecond
	// leaseTimeout bounds a lease request. After it, the appliance limits on its own.
	leaseTimeout = time.Second
)

// leases holds this appliance's shares in the rates of API keys that several appliances share. One goroutine leases
// shares ahead of use for all keys, so that no request waits for a lease. A request that finds too little left spends
// up to one block on credit, and the next lease pays the credit back. If leasing fails, each appliance limits on its
// own.
type leases struct {
	from   appliance.SharedRates
	logger *slog.Logger
	away   atomic.Bool   // the last lease request failed
	wake   chan struct{} // has one element while an account needs a lease
	after  func(time.Duration, func())

	mu    sync.Mutex
	wants map[string]*account // accounts that need a lease, by API key
}

func newLeases(from appliance.SharedRates, logger *slog.Logger) *leases {
	return &leases{
		from: from, logger: logger, wake: make(chan struct{}, 1), wants: make(map[string]*account),
		after: func(d time.Duration, f func()) { time.AfterFunc(d, f) },
	}
}

// of returns a new account of an API key with a shared rate.
func (l *leases) of(keyID string) *account { return &account{share: &share{leases: l, keyID: keyID}} }

// request requests a lease for an account, without waiting for it.
func (l *leases) request(keyID string, a *account) {
	l.mu.Lock()
	l.wants[keyID] = a
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default: // already signalled
	}
}

// run requests leases until ctx ends.
func (l *leases) run(ctx context.Context) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-l.wake:
		case <-ctx.Done():
			return
		}
		l.lease(ctx)
		pause.Reset(leasePause)
		select {
		case <-pause.C:
		case <-ctx.Done():
			return
		}
	}
}

func (l *leases) lease(ctx context.Context) {
	l.mu.Lock()
	asking := l.wants
	l.wants = make(map[string]*account)
	l.mu.Unlock()
	wants, accounts := make([]appliance.RateWant, 0, len(asking)), make([]*account, 0, len(asking))
	for _, a := range asking {
		if w, wanted := a.want(); wanted {
			wants, accounts = append(wants, w), append(accounts, a)
		}
	}
	if len(wants) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	given, err := l.from.Lease(ctx, wants)
	if was := l.away.Swap(err != nil); was != (err != nil) {
		l.report(err)
	}
	if err != nil {
		given = make([]time.Duration, len(accounts))
	}
	for i, a := range accounts {
		a.leased(given[i])
	}
}

func (l *leases) report(err error) {
	if err != nil {
		l.logger.Warn("rates: the other appliances' requests are unknown; this appliance limits only its own requests",
			"error", err.Error())
		return
	}
	l.logger.Info("rates: limits apply across all appliances again")
}

// share is an account's share in a rate. The account's mutex guards it.
type share struct {
	leases *leases
	keyID  string

	block  time.Duration // time to lease ahead, at the price of the last request
	left   time.Duration // leased and not yet spent; negative if spent on credit
	asking bool          // a lease request is pending
}

// withdraw takes the price of a request from the share. If the share has too little, take takes nothing and returns the
// earliest time at which it may have enough.
func (s *share) withdraw(a *account, price time.Duration) (wait time.Duration) {
	if s == nil || price == 0 {
		return 0
	}
	s.block = max(leaseBlock, price)
	switch wait = max(0, price-(s.left+s.block)); {
	case s.leases.away.Load():
		wait = 0
	case wait == 0:
		s.left -= price
	}
	s.askIfLow(a)
	return wait
}

// charge takes the additional cost of a request, which is known only afterwards.
func (s *share) charge(a *account, cost time.Duration) {
	if s == nil || cost == 0 || s.leases.away.Load() {
		return
	}
	s.left = max(s.left-cost, -s.block-maxDebt)
	s.askIfLow(a)
}

func (s *share) askIfLow(a *account) {
	if !s.asking && (s.left < s.block/2 || s.leases.away.Load()) {
		s.asking = true
		s.leases.request(s.keyID, a)
	}
}

// want returns the lease that an account needs.
func (a *account) want() (w appliance.RateWant, wanted bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.share
	w = appliance.RateWant{KeyID: s.keyID, Time: s.block - s.left, Burst: max(burst, s.block)}
	s.asking = w.Time > 0
	return w, s.asking
}

// leased adds a lease to the share. It pays back credit even if no new request comes. Otherwise the next request,
// however late, would find the old debt.
func (a *account) leased(t time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.share
	s.left += t
	if s.asking = s.left < 0; !s.asking {
		return
	}
	again := min(max(-s.left/2, 2*leasePause), time.Second)
	if s.leases.away.Load() {
		again = time.Second
	}
	s.leases.after(again, func() { s.leases.request(s.keyID, a) })
}
