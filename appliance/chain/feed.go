package chain

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// feed reads a contract from one RPC. Its goroutine owns the fields that no lock protects.
type feed struct {
	c         *watched
	node      *node
	log       *slog.Logger
	span      span
	checked   time.Time // when chain ID, code and attestor were last checked
	lastError string    // the last error logged
	rewinds   quota     // lines about reorganisations

	mu    sync.Mutex
	state feedState
}

// feedState is the public state of a feed.
type feedState struct {
	at    Block // the last block read
	begun bool  // at is a block that was read, and not the one before the first
	head  uint64
	err   error // why the RPC is not read
	since time.Time
}

func (f *feed) set(change func(*feedState)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.state)
}

func (f *feed) get() feedState {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state
}

// has reports whether the RPC was read up to a block.
func (s feedState) has(number uint64) bool { return s.begun && s.at.Number >= number }

// Limits of a wait after an error.
const (
	leastWait = 250 * time.Millisecond
	mostWait  = time.Minute
	mostAsked = time.Hour             // maximum Retry-After
	leastStep = 10 * time.Millisecond // between two reads, so that an RPC that invents blocks cannot keep a core busy
)

// run reads until ctx ends. It retries errors with exponential backoff.
func (f *feed) run(ctx context.Context) error {
	retry := f.newRetry()
	for ctx.Err() == nil {
		more, err := f.step(ctx)
		if ctx.Err() == nil {
			f.note(err)
			sleep(ctx, f.pause(more, err, retry))
		}
	}
	return nil
}

func (f *feed) newRetry() backoff.BackOff {
	retry := backoff.NewExponentialBackOff()
	retry.InitialInterval, retry.MaxInterval = min(leastWait, f.c.w.o.PollInterval), mostWait
	return retry
}

// pause returns how long to wait after a step.
func (f *feed) pause(more bool, err error, retry backoff.BackOff) time.Duration {
	switch asked, isThrottled := errors.AsType[*throttled](err); {
	case isThrottled:
		return max(min(asked.after, mostAsked), retry.NextBackOff())
	case err != nil:
		return retry.NextBackOff()
	case more:
		retry.Reset()
		return leastStep
	}
	retry.Reset()
	return f.c.w.o.PollInterval
}

// note logs the begin and the end of an error.
func (f *feed) note(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	f.set(func(s *feedState) {
		if (s.err == nil) != (err == nil) {
			s.since = time.Now()
		}
		s.err = err
	})
	alarm := new(contradiction)
	switch {
	case text == f.lastError:
		return
	case err == nil:
		f.log.Info("chain: the RPC answers again")
	case errors.As(err, &alarm):
		f.log.Error("chain: "+text, "remedy", alarm.remedy)
	case f.lastError == "": // later errors are in the status only
		f.log.Warn("chain: the RPC cannot be read and is retried", "error", text)
	}
	f.lastError = text
}

// contradiction is an answer that a retry cannot change.
type contradiction struct{ text, remedy string }

func (e *contradiction) Error() string { return e.text }

// step reads the next blocks. more is true if there are further ones.
func (f *feed) step(ctx context.Context) (more bool, err error) {
	if time.Since(f.checked) >= f.c.w.o.CheckEvery {
		if err := f.identify(ctx); err != nil {
			return false, err
		}
		f.c.w.compareAttestor(ctx, f)
		f.checked = time.Now()
	}
	safe, ok, err := f.node.safe(ctx, &f.c.Contract)
	if err != nil || !ok {
		return false, err
	}
	f.set(func(s *feedState) { s.head = safe })
	if undone, err := f.followReorganisation(ctx, safe); err != nil || undone {
		return false, err
	}
	safe = min(safe, f.c.reach(f))
	first := f.c.StartBlock
	if s := f.get(); s.begun {
		first = s.at.Number + 1
	}
	if first > safe {
		return false, nil
	}
	if err := f.checkAlone(); err != nil {
		return false, err
	}
	last := f.span.end(first, safe)
	found, at, err := f.node.redemptions(ctx, &f.c.Contract, first, last)
	switch {
	case err == nil:
	case tooLarge(err) && f.span.shrink(last-first+1):
		f.log.Debug("chain: requests now cover fewer blocks", "blocks", f.span.size, "error", err.Error())
		if isTrouble(err) {
			return false, err
		}
		return true, nil
	default:
		return false, err
	}
	f.span.grow()
	for i := range found {
		found[i].Seen = time.Now()
	}
	if err := f.c.w.o.Store.Advance(f.c.Name, f.node.id, at, found); err != nil {
		return false, err
	}
	f.set(func(s *feedState) { s.at, s.begun = at, true })
	f.c.requestEvaluation()
	return last < safe, nil
}

// reach returns the block up to which the RPCs are read: the median of their newest blocks, of two the higher one.
// Blocks that only one of three RPCs has reached are not read. An RPC that has failed for longer than Patience does not
// count.
func (c *watched) reach(reader *feed) uint64 {
	var heads []uint64
	for _, f := range c.feeds {
		if s := f.get(); f == reader || s.err == nil || time.Since(s.since) < c.w.o.Patience {
			heads = append(heads, s.head)
		}
	}
	slices.Sort(heads)
	return heads[len(heads)/2]
}

// checkAlone limits the stored redemptions that only this RPC reports. At the limit, the RPC is not read until another
// one has caught up. If the redemptions are invented, that never happens.
func (f *feed) checkAlone() error {
	if len(f.c.feeds) == 1 {
		return nil
	}
	alone, err := f.c.w.o.Store.Alone(f.c.Name, f.node.id)
	if err == nil && alone >= int64(f.c.w.o.MostAlone) {
		err = fmt.Errorf(
			"%d redemptions are reported by this RPC only: reading continues when another RPC reports them", alone)
	}
	return err
}

// identify compares the chain with the one read before, and checks that the contract exists: an address without code
// never emits events.
func (f *feed) identify(ctx context.Context) error {
	id, err := f.node.chainID(ctx)
	if err != nil {
		return err
	}
	has, err := f.node.hasCode(ctx, f.c.Address)
	if err != nil {
		return err
	}
	f.c.identity.Lock()
	defer f.c.identity.Unlock()
	if f.c.chainID != "" && f.c.chainID != id {
		return &contradiction{fmt.Sprintf("the RPC serves chain %s, but contract %s was read on chain %s", id, f.c.Name,
			f.c.chainID),
			"correct its address in chain.contracts; a contract on another chain needs another name"}
	}
	if !has {
		return &contradiction{fmt.Sprintf("no contract exists at %s on chain %s, so redemptions cannot be seen",
			f.c.Address, id),
			"correct address or rpc in chain.contracts"}
	}
	if f.c.chainID == "" {
		if err := f.c.w.o.Store.SetChain(f.c.Name, id); err != nil {
			return err
		}
		f.c.chainID = id
	}
	return nil
}

// followReorganisation removes the reports from blocks that left the chain. undone is true if it removed any.
func (f *feed) followReorganisation(ctx context.Context, safe uint64) (undone bool, err error) {
	s := f.get()
	if !s.begun {
		return false, nil
	}
	at, found, err := f.c.w.o.Store.Anchor(f.c.Name, f.node.id, min(s.at.Number, safe))
	if err != nil || !found {
		return false, err
	}
	same, err := f.stillHas(ctx, at)
	if err != nil || same {
		return false, err
	}
	id, err := f.node.chainID(ctx) // a changed chain ID is not a reorganisation
	if err != nil {
		return false, err
	}
	if f.c.identity.Lock(); id != f.c.chainID {
		f.checked = time.Time{} // so that identify reports it
	}
	f.c.identity.Unlock()
	if f.checked.IsZero() {
		return false, fmt.Errorf("the RPC now serves another chain, %s", id)
	}
	common, err := f.lastCommon(ctx, at.Number)
	if err != nil {
		return false, err
	}
	return true, f.rewind(common)
}

func (f *feed) stillHas(ctx context.Context, at Block) (bool, error) {
	h, err := f.node.blockAt(ctx, at.Number)
	return err == nil && h.Hash == at.Hash, err
}

// lastCommon searches downwards, in growing steps, for a read block that is still on the chain. It returns nil if it
// finds none.
func (f *feed) lastCommon(ctx context.Context, below uint64) (*Block, error) {
	for step := uint64(1); below >= step; step *= 2 {
		at, found, err := f.c.w.o.Store.Anchor(f.c.Name, f.node.id, below-step)
		if err != nil || !found {
			return nil, err
		}
		same, err := f.stillHas(ctx, at)
		if err != nil {
			return nil, err
		}
		if same {
			return &at, nil
		}
		below = at.Number
	}
	return nil, nil
}

func (f *feed) rewind(to *Block) error {
	was := f.get().at
	undone, err := f.c.w.o.Store.Rewind(f.c.Name, f.node.id, to)
	if err != nil {
		return err
	}
	from := f.c.StartBlock
	f.set(func(s *feedState) {
		if s.begun = to != nil; s.begun {
			s.at, from = *to, to.Number+1
		}
	})
	f.log.Warn("chain: a reorganisation went deeper than the configured confirmations; the blocks are read again",
		"from", from, "to", was.Number, "undone", len(undone))
	for _, r := range undone {
		if !f.rewinds.allow(time.Now()) {
			break // an RPC could undo the same blocks for ever
		}
		f.log.Warn("chain: the reorganisation removed a redemption; its signature exists nevertheless",
			"hash", r.Hash.String(), "block", r.Block,
			"transaction", r.TransactionHash.String(), "verdict", string(r.Verdict))
	}
	f.c.requestEvaluation()
	return nil
}
