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
	"github.com/attestd/attestd/appliance/attest"
	"github.com/attestd/attestd/appliance/journal"
)

// Options configure New.
type Options struct {
	Contracts    []Contract
	PollInterval time.Duration // between two reads of the newest block; required
	Store        Store
	Journal      Journal
	// Signers returns the appliance's attestor keys, the default one first. If nil, attestors are not compared.
	Signers func() []attest.Signer
	// Quorum is the contract that must be the attestor if several appliances sign. Zero means that Signers sign alone.
	Quorum appliance.Address
	// Members are asked about a redemption that the journal lacks, before any alarm. It is proven if the journals of
	// Threshold members have it. If nil, the journal alone decides.
	Members   Members
	Threshold int
	// Halt stops attesting because of a redemption until an operator resumes, which acknowledges the redemption. It
	// returns whether this call began the halt. If nil, a redemption never stops attesting.
	Halt   func(ctx context.Context, redemption, reason string) (began bool, err error)
	Halted func() bool // reports whether attesting is halted; may be nil
	Events Events      // may be nil
	// Redeemed appends the event of a redemption of an attestation in the journal, unless the journal has an event of
	// that ID. If nil, such redemptions are not recorded.
	Redeemed func(ctx context.Context, e journal.Event) error
	Version  string // of attestd, for the User-Agent
	Log      *slog.Logger

	CallTimeout time.Duration // of one request; zero means 20 s
	// LookAgain is the wait before a hash that the journal lacks is looked up again, before any alarm; zero means 1 s.
	LookAgain time.Duration
	// Patience is how long to wait for other RPCs before a redemption that half of the RPCs or fewer report is
	// disputed; zero means a minute.
	Patience time.Duration
	// MemberPatience is how long a redemption waits for members that do not answer before it is unproven; zero means
	// 15 minutes.
	MemberPatience time.Duration
	// MostAlone is the maximum number of stored redemptions that only one RPC reports. At the limit, that RPC is not
	// read further. Zero means 10,000. A contract with a single RPC has no limit.
	MostAlone int
	// CheckEvery is the time between two checks of chain ID, code and attestor; zero means a minute.
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
	or(&o.MemberPatience, 15*time.Minute)
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
	unknown       atomic.Uint64 // redemptions judged unknown, including those of earlier runs that still are
	disagreements atomic.Uint64
}

// New returns a watchtower. Run starts it.
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
			questions: quota{most: questionsPerMinute}, repeats: quota{most: repeatsPerMinute},
			redeemed: quota{most: journal.EventsPerMinute},
		}
		shown := shownURLs(c.RPCs)
		for i, address := range c.RPCs {
			n, err := newNode(address, shown[i], o.CallTimeout, "attestd/"+o.Version)
			if err != nil {
				return nil, fmt.Errorf("contract %s: %w", c.Name, err)
			}
			one.feeds = append(one.feeds,
				&feed{c: one, node: n, log: one.log.With("rpc", n.shown), rewinds: quota{most: 10}})
		}
		w.contracts = append(w.contracts, one)
	}
	return w, nil
}

// Run watches until ctx ends, and then returns nil. It retries errors.
func (w *Watchtower) Run(ctx context.Context) error {
	var all sync.WaitGroup
	for _, c := range w.contracts {
		all.Go(func() { w.guard(ctx, c.log, c.run) })
	}
	all.Wait()
	return nil
}

// again is the wait before a failed part is restarted.
const again = time.Minute

// guard restarts a part that fails or panics, so that a defect cannot end the process, which also signs.
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
		log.Error("chain: the watchtower failed and restarts", "in", again.String(), "error", fmt.Sprint(err))
		if !sleep(ctx, again) {
			return
		}
	}
}

// sleep returns false if ctx ends first.
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

// watched is a watched contract.
type watched struct {
	w *Watchtower
	Contract
	log   *slog.Logger
	feeds []*feed
	wake  chan struct{} // holds an element if redemptions must be judged

	begun      atomic.Bool // Store.Begin has succeeded
	evaluating sync.Mutex  // held by judge; protects the fields below
	judgedAll  time.Time
	open       map[string]opened // open redemptions, by row
	raised     map[string]raised // alarms given for these, by ID
	alarms     quota             // alarms that most RPCs agree on
	disputes   quota             // other alarms
	questions  quota             // first questions to members
	repeats    quota             // further questions to members
	redeemed   quota             // events of redemptions that the journal knows
	silent     []string          // members that have not answered in this pass

	unproven atomic.Int32 // open redemptions with that verdict

	identity sync.Mutex // held while the chain's id is compared
	chainID  string     // under identity
	opinions opinions
}

// run continues where the last run ended.
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

// judgingShare limits judging to a fifth of a core, however many redemptions an RPC invents.
const judgingShare = 5

// judgeAll judges after each new report, and regularly while redemptions are open.
func (c *watched) judgeAll(ctx context.Context) error {
	pause := c.w.o.PollInterval
	for ctx.Err() == nil {
		begun := time.Now()
		next, err := c.evaluate(ctx)
		sleep(ctx, (judgingShare-1)*time.Since(begun))
		if err != nil && ctx.Err() == nil {
			c.log.Warn("chain: redemptions could not be checked and are retried", "in", pause.String(),
				"error", err.Error())
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

// requestEvaluation requests a judgement.
func (c *watched) requestEvaluation() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (w *Watchtower) record(kind journal.EventKind, details map[string]string) {
	if w.o.Events != nil {
		w.o.Events.Record(journal.Event{Kind: kind, By: "attestd", Details: details})
	}
}
