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

// feed reads a contract from one RPC. Its goroutine owns the fields without a lock.
type feed struct {
	c       *watched
	node    *node
	log     *slog.Logger
	span    span
	checked time.Time // chain id, code and attestor were asked for
	told    string    // the error that was logged last
	rewinds quota     // lines about reorganisations

	mu    sync.Mutex
	state feedState
}

// feedState is what others may know of a feed.
type feedState struct {
	at    Block // up to which it was read
	begun bool  // at is a block, and not the one before the first
	head  uint64
	err   error // why it is not read
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

// has says whether the RPC was read up to a block.
func (s feedState) has(number uint64) bool { return s.begun && s.at.Number >= number }

// The bounds of a wait after an error.
const (
	leastWait = 250 * time.Millisecond
	mostWait  = time.Minute
	mostAsked = time.Hour             // of what a node asks for by Retry-After
	leastStep = 10 * time.Millisecond // between two reads: an RPC that tells of endless blocks does not keep a processor busy
)

// run reads until ctx ends. What fails is tried again, at growing intervals.
func (f *feed) run(ctx context.Context) error {
	retry := backoff.NewExponentialBackOff()
	retry.InitialInterval, retry.MaxInterval = min(leastWait, f.c.w.o.PollInterval), mostWait
	for ctx.Err() == nil {
		more, err := f.step(ctx)
		if ctx.Err() == nil {
			f.note(err)
			sleep(ctx, f.pause(more, err, retry))
		}
	}
	return nil
}

// pause is how long to wait after a step.
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

// note logs an error when it begins, and its end.
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
	case text == f.told:
		return
	case err == nil:
		f.log.Info("chain: the RPC is read again")
	case errors.As(err, &alarm):
		f.log.Error("chain: "+text, "remedy", alarm.remedy)
	case f.told == "": // other errors that follow are in the status
		f.log.Warn("chain: the RPC is not read, and is asked again", "error", text)
	}
	f.told = text
}

// contradiction is an answer that no retry mends.
type contradiction struct{ text, remedy string }

func (e *contradiction) Error() string { return e.text }

// step reads the next blocks; more says that there are others still.
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
		f.log.Debug("chain: fewer blocks are asked for", "blocks", f.span.size, "error", err.Error())
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
	f.c.look()
	return last < safe, nil
}

// reach is the block up to which RPCs are read: the median of the newest blocks of those that answer, the higher one of two. What one
// of three says of blocks that the others have not reached is not asked for. An RPC that has failed for longer than Patience does not
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

// checkAlone bounds what is kept of redemptions that no other RPC tells of: the RPC waits until another has caught up with it, or
// for good where it has made them up.
func (f *feed) checkAlone() error {
	if len(f.c.feeds) == 1 {
		return nil
	}
	alone, err := f.c.w.o.Store.Alone(f.c.Name, f.node.id)
	if err == nil && alone >= int64(f.c.w.o.MostAlone) {
		err = fmt.Errorf("no other RPC tells of %d redemptions that it tells of: it is read on when another does", alone)
	}
	return err
}

// identify compares the chain with the one that was read before, and finds out whether there is a contract at all: from one that is
// not there no event ever comes.
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
		return &contradiction{fmt.Sprintf("the RPC is of chain %s, and contract %s was read on chain %s", id, f.c.Name, f.c.chainID),
			"correct its address in chain.contracts; a contract on another chain needs another name"}
	}
	if !has {
		return &contradiction{fmt.Sprintf("there is no contract at %s on chain %s: no redemption would be seen", f.c.Address, id),
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

// followReorganisation takes back what was read of blocks that the chain does not have any more; undone says that there were some.
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
	id, err := f.node.chainID(ctx) // another chain is no reorganisation
	if err != nil {
		return false, err
	}
	if f.c.identity.Lock(); id != f.c.chainID {
		f.checked = time.Time{} // which says so
	}
	f.c.identity.Unlock()
	if f.checked.IsZero() {
		return false, fmt.Errorf("the RPC is of chain %s all at once", id)
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

// lastCommon finds a block below that was read and is still there, in growing steps; nil where none is.
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
	f.log.Warn("chain: the chain was reorganised deeper than the blocks that were waited for (confirmations); it is read again",
		"from", from, "to", was.Number, "undone", len(undone))
	for _, r := range undone {
		if !f.rewinds.take(time.Now()) {
			break // an RPC can undo the same blocks again and again
		}
		f.log.Warn("chain: a redemption is undone by it; its signature exists all the same", "hash", r.Hash.String(), "block", r.Block,
			"transaction", r.TransactionHash.String(), "verdict", string(r.Verdict))
	}
	f.c.look()
	return nil
}
