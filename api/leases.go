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
	// leaseBlock is how much of a bucket's time an appliance leases ahead, or one request if that takes more: a tenth of
	// what a second allows. Such a lease bridges some 50 ms until the next one is there.
	leaseBlock = 100 * time.Millisecond
	// leasePause is the least time between two questions, each of which is for all API keys that want something.
	leasePause = 10 * time.Millisecond
	// leaseTimeout is how long an answer may take. After that the appliance limits by itself.
	leaseTimeout = time.Second
)

// leases are the shares of this appliance in the rates of API keys, which hold for several appliances together. Shares are
// leased ahead, by one goroutine for all, so that no request waits for it: what a request finds missing it spends on credit,
// a block at most, which the next lease pays back. While there is nobody to lease from, each appliance limits by itself.
type leases struct {
	from   appliance.SharedRates
	logger *slog.Logger
	away   atomic.Bool   // the last question had no answer
	wake   chan struct{} // has one element when somebody wants something
	after  func(time.Duration, func())

	mu    sync.Mutex
	wants map[string]*account // who wants something, by API key
}

func newLeases(from appliance.SharedRates, logger *slog.Logger) *leases {
	return &leases{
		from: from, logger: logger, wake: make(chan struct{}, 1), wants: make(map[string]*account),
		after: func(d time.Duration, f func()) { time.AfterFunc(d, f) },
	}
}

// of returns a new account of an API key, whose rate is shared.
func (l *leases) of(keyID string) *account { return &account{share: &share{leases: l, keyID: keyID}} }

// ask has something leased for an account soon.
func (l *leases) ask(keyID string, a *account) {
	l.mu.Lock()
	l.wants[keyID] = a
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default: // there is a signal already
	}
}

// run leases until ctx ends.
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
		l.tell(err)
	}
	if err != nil {
		given = make([]time.Duration, len(accounts))
	}
	for i, a := range accounts {
		a.leased(given[i])
	}
}

func (l *leases) tell(err error) {
	if err != nil {
		l.logger.Warn("rates: the other appliances' requests are not known; this one limits by itself", "error", err.Error())
		return
	}
	l.logger.Info("rates: API keys' rates hold for all appliances together again")
}

// share is an account's share in a rate; the account's mutex protects it.
type share struct {
	leases *leases
	keyID  string

	block  time.Duration // what is leased ahead, at the price of the last request
	left   time.Duration // leased and not spent yet; below zero it was spent on credit
	asking bool          // a question is under way, or will be
}

// take takes the price of a request. If the share has too little for it, take takes nothing and returns how long until it has,
// at best.
func (s *share) take(a *account, price time.Duration) (wait time.Duration) {
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

// charge takes what a request turns out to cost.
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
		s.leases.ask(s.keyID, a)
	}
}

// want returns what is to be leased for an account.
func (a *account) want() (w appliance.RateWant, wanted bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.share
	w = appliance.RateWant{KeyID: s.keyID, Time: s.block - s.left, Burst: max(burst, s.block)}
	s.asking = w.Time > 0
	return w, s.asking
}

// leased adds what was leased. Credit is paid back even if nobody asks for more: else the next request, however late, would
// find the debt of the last one.
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
	s.leases.after(again, func() { s.leases.ask(s.keyID, a) })
}
