package chain

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/attestd/attestd/appliance"
)

// Options say what to watch, and who is told.
type Options struct {
	Contracts    []Contract
	PollInterval time.Duration // between looks for newer blocks; it has no default here
	Store        Store
	Journal      Journal
	// Signers are the appliance's, the one first with which attestations are signed by default. Nil leaves the contracts' attestors
	// alone.
	Signers func() []appliance.Signer
	// Halt stops attesting because of a redemption, for good: until an operator resumes, which acknowledges the redemption. It returns
	// false for one that was acknowledged. Nil means that attesting goes on whatever is redeemed.
	Halt    func(ctx context.Context, redemption, reason string) (halted bool, err error)
	Halted  func() bool // whether attesting is stopped so; nil means never
	Events  Events      // nil means none
	Version string      // of attestd, for the User-Agent
	Log     *slog.Logger

	CallTimeout time.Duration // of one request; zero means 20 s
	// LookAgain is how long after the journal was found to lack a hash it is asked once more, before any alarm; zero means 1 s.
	LookAgain time.Duration
	// Patience is how long other RPCs are waited for before a redemption that half of the RPCs or fewer tell of is disputed; zero means
	// a minute.
	Patience time.Duration
	// MostAlone is how many redemptions that no other RPC tells of are kept of an RPC before it is read no further; zero means 10,000.
	// A single RPC is not bounded.
	MostAlone int
	// CheckEvery is how often chain id, code and attestor of a contract are asked for; zero means a minute.
	CheckEvery time.Duration
}

const defaultCallTimeout = 20 * time.Second

func (o *Options) complete() {
	or := func(d *time.Duration, value time.Duration) {
		if *d == 0 {
			*d = value
		}
	}
	or(&o.CallTimeout, defaultCallTimeout)
	or(&o.LookAgain, time.Second)
	or(&o.Patience, time.Minute)
	or(&o.CheckEvery, time.Minute)
	if o.MostAlone == 0 {
		o.MostAlone = 10_000
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Halted == nil {
		o.Halted = func() bool { return false }
	}
}

// Watchtower watches contracts. Its methods are safe for concurrent use; Run may be called once.
type Watchtower struct {
	o             Options
	contracts     []*watched
	trials        trials
	unknown       atomic.Uint64 // redemptions that were found to be unknown, those of earlier runs that still are included
	disagreements atomic.Uint64
}

// New returns a watchtower that has not begun.
func New(o Options) (*Watchtower, error) {
	if o.PollInterval <= 0 {
		return nil, errors.New("chain.Options: PollInterval must be set")
	}
	o.complete()
	w := &Watchtower{o: o, trials: trials{made: make(map[appliance.Address]trial)}}
	for _, c := range o.Contracts {
		one := &watched{
			w: w, Contract: c, log: o.Log.With("contract", c.Name), wake: make(chan struct{}, 1),
			alarms: quota{most: 100}, disputes: quota{most: 10},
		}
		shown := shownURLs(c.RPCs)
		for i, address := range c.RPCs {
			n, err := newNode(address, shown[i], o.CallTimeout, "attestd/"+o.Version)
			if err != nil {
				return nil, fmt.Errorf("contract %s: %w", c.Name, err)
			}
			one.feeds = append(one.feeds, &feed{c: one, node: n, log: one.log.With("rpc", n.shown), rewinds: quota{most: 10}})
		}
		w.contracts = append(w.contracts, one)
	}
	return w, nil
}

// Run watches until ctx ends, and then returns nil. What fails is tried again.
func (w *Watchtower) Run(ctx context.Context) error {
	var all sync.WaitGroup
	for _, c := range w.contracts {
		all.Go(func() { w.guard(ctx, c.log, c.run) })
	}
	all.Wait()
	return nil
}

// again is how long after a part that failed another try is made.
const again = time.Minute

// guard runs a part again where it fails. A defect in it must not take the process down, which also signs.
func (w *Watchtower) guard(ctx context.Context, log *slog.Logger, part func(context.Context) error) {
	once := func() (err error) {
		defer func() {
			if cause := recover(); cause != nil {
				err = fmt.Errorf("panic: %v\n%s", cause, debug.Stack())
			}
		}()
		return part(ctx)
	}
	for {
		err := once()
		if ctx.Err() != nil {
			return
		}
		log.Error("chain: the watchtower failed, and begins again", "in", again.String(), "error", fmt.Sprint(err))
		if !sleep(ctx, again) {
			return
		}
	}
}

// sleep is false where ctx ended before.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// watched is a contract that is watched.
type watched struct {
	w *Watchtower
	Contract
	log   *slog.Logger
	feeds []*feed
	wake  chan struct{} // has one element when redemptions are to be judged

	begun     atomic.Bool // the store knows of it
	judging   sync.Mutex  // held by a judgement; what only they use is below
	judgedAll time.Time
	open      map[string]opened // redemptions that are open, by row
	raised    map[string]raised // alarms that were given of these, by ID
	alarms    quota             // alarms that most RPCs agree on
	disputes  quota             // other alarms

	identity sync.Mutex // held while the chain's id is compared
	chainID  string     // under identity
	opinions opinions
}

// run begins where an earlier run has ended.
func (c *watched) run(ctx context.Context) error {
	rpcs := make([]string, len(c.feeds))
	for i, f := range c.feeds {
		rpcs[i] = f.node.id
	}
	id, err := c.w.o.Store.Begin(c.Name, c.Address, rpcs)
	if err != nil {
		return err
	}
	c.identity.Lock()
	c.chainID = id
	c.identity.Unlock()
	for _, f := range c.feeds {
		at, found, err := c.w.o.Store.Position(c.Name, f.node.id)
		if err != nil {
			return err
		}
		f.set(func(s *feedState) { s.at, s.begun = at, found })
	}
	if err := c.recall(ctx); err != nil {
		return err
	}
	c.begun.Store(true)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	for _, f := range c.feeds {
		all.Go(func() { c.w.guard(ctx, f.log, f.run) })
	}
	return c.judgeAll(ctx)
}

// judgingShare bounds judging to a fifth of a processor, however many redemptions RPCs make up.
const judgingShare = 5

// judgeAll judges when a feed has something new, and while something is open.
func (c *watched) judgeAll(ctx context.Context) error {
	pause := c.w.o.PollInterval
	for ctx.Err() == nil {
		begun := time.Now()
		next, err := c.judge(ctx)
		sleep(ctx, (judgingShare-1)*time.Since(begun))
		if err != nil && ctx.Err() == nil {
			c.log.Warn("chain: redemptions could not be judged, and are again", "in", pause.String(), "error", err.Error())
			next = pause
		}
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
		case <-c.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
	return nil
}

// look has redemptions judged.
func (c *watched) look() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (w *Watchtower) record(kind appliance.EventKind, details map[string]string) {
	if w.o.Events != nil {
		w.o.Events.Record(appliance.Event{Kind: kind, By: "attestd", Details: details})
	}
}
