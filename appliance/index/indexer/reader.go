package indexer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/attestd/attestd/appliance/chain"
	"github.com/attestd/attestd/appliance/index"
)

// reader reads one chain. Its goroutine owns the fields that no lock protects.
type reader struct {
	Chain
	x     *Indexer
	log   *slog.Logger
	nodes []*source
	span  chain.Span
	wake  chan struct{}

	loaded     bool
	at         progress
	begun      bool // at.Block was read
	identified time.Time
	told       string // the last error logged
	lines      int    // log lines about refused events so far
	undone     int    // ranges so far

	mu    sync.Mutex
	state Status // guarded by mu
	again *Range // guarded by mu: the rest of a rescan
}

const (
	mostWait     = time.Minute
	leastWait    = 250 * time.Millisecond
	checkEvery   = time.Minute // between two checks of chain id and code
	refusedLines = 20          // lines about refused events in the log
	undoneLines  = 20          // lines about undone ranges in the log
)

func newReader(x *Indexer, c Chain, nodes []node) *reader {
	r := &reader{Chain: c, x: x, log: x.o.Log.With("chain", c.ID), wake: make(chan struct{}, 1)}
	for _, n := range nodes {
		r.nodes = append(r.nodes, &source{node: n})
	}
	r.state.ID = c.ID
	if c.isCosmWasm() {
		r.span, r.FromBlock = chain.CometSpan(), max(c.FromBlock, 1) // CometBFT has no block 0
	}
	r.state.First = r.FromBlock
	return r
}

// run reads until ctx ends. It retries errors with exponential backoff.
func (r *reader) run(ctx context.Context) {
	r.loaded = false
	retry := backoff.NewExponentialBackOff()
	retry.InitialInterval, retry.MaxInterval = min(leastWait, r.x.o.PollInterval), mostWait
	for ctx.Err() == nil {
		more, err := r.step(ctx)
		if ctx.Err() != nil {
			return
		}
		r.note(err)
		if err != nil {
			r.loaded = false
			r.rest(ctx, max(retry.NextBackOff(), chain.RetryAfter(err)))
			continue
		}
		retry.Reset()
		if !more {
			r.rest(ctx, r.x.o.PollInterval)
		}
	}
}

// rest waits. A rescan ends the wait.
func (r *reader) rest(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-r.wake:
	case <-ctx.Done():
	}
}

// note records the begin and the end of an error.
func (r *reader) note(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	changed, _ := errors.AsType[*Contradiction](err)
	r.change(func(s *Status) {
		s.Error, s.Code, s.Remedy = text, "", ""
		if changed != nil {
			s.Code, s.Remedy = changed.Code, changed.Remedy
		}
	})
	switch {
	case text == r.told:
		return
	case err == nil:
		r.log.Info("indexer: the chain is read again")
	case changed != nil:
		r.log.Error("indexer: "+text, "remedy", changed.Remedy)
	default:
		r.log.Warn("indexer: the chain cannot be read and is retried", "error", text)
	}
	r.told = text
}

// Contradiction is an error that a retry does not end.
type Contradiction struct {
	Text, Remedy string
	Code         string // for programs; may be empty
}

// Error returns the text.
func (c *Contradiction) Error() string { return c.Text }

// load reads the progress from the index.
func (r *reader) load(ctx context.Context) error {
	return r.x.o.Index.View(ctx, func(snap index.Snapshot) error {
		r.at, r.begun = progress{Core: r.core()}, false
		text, found, err := snap.Position(ctx, progressName(r.ID))
		if err != nil {
			return err
		}
		if found {
			r.begun = true
			if err := json.Unmarshal([]byte(text), &r.at); err != nil {
				return err
			}
		}
		if !strings.EqualFold(r.at.Core, r.core()) {
			return &Contradiction{Text: fmt.Sprintf("chain %s was read from the core contract %s, not %s", r.ID,
				r.at.Core, r.core()),
				Remedy: "correct core in indexer.chains, or delete replica.db while attestd is stopped"}
		}
		var again *Range
		text, found, err = snap.Position(ctx, rescanName(r.ID))
		if err == nil && found {
			err = json.Unmarshal([]byte(text), &again)
		}
		if err == nil {
			r.mu.Lock()
			r.again = again
			r.mu.Unlock()
		}
		r.loaded = err == nil
		r.reached()
		return err
	})
}

// reached publishes the progress.
func (r *reader) reached() {
	r.change(func(s *Status) {
		s.Indexed, s.IndexedTime, s.Events, s.Refused = r.at.Block.Number, r.at.Block.Time, r.at.Read, r.at.Refused
		s.Begun = r.begun
		if s.started.IsZero() {
			s.started, s.firstBlock, s.events = r.x.o.Now(), s.Indexed, s.Events
			if !r.begun {
				s.firstBlock = max(r.FromBlock, 1) - 1
			}
		}
	})
}

// step reads the next blocks. more is true if there are further ones.
func (r *reader) step(ctx context.Context) (more bool, err error) {
	if !r.loaded {
		if err := r.load(ctx); err != nil {
			return false, err
		}
	}
	if now := r.x.o.Now(); now.Sub(r.identified) >= checkEvery {
		if err := r.identify(ctx); err != nil {
			return false, err
		}
		r.identified = now
	}
	if again := r.asked(); again != nil && r.begun && again.To <= r.at.Block.Number {
		return true, r.readAgain(ctx, *again)
	}
	safe, ok, err := r.head(ctx)
	if err != nil || !ok {
		return false, err
	}
	r.change(func(s *Status) { s.Head = safe })
	first := r.FromBlock
	if r.begun {
		first = r.at.Block.Number + 1
	}
	if first > safe {
		return r.compareHead(ctx, safe)
	}
	most := safe
	if safe >= keptBlocks && first <= safe-keptBlocks {
		most = safe - keptBlocks
	}
	last, found, err := r.fetch(ctx, first, most)
	if errors.Is(err, errReorganised) {
		return true, r.undo(ctx)
	}
	if err != nil || found == nil {
		return err == nil, err
	}
	to := r.at
	to.Block, to.Read = found.last, to.Read+uint64(found.size)
	if err := r.keep(ctx, found, reading{to: to, undoable: most == safe}); err != nil {
		return false, err
	}
	r.begun = true
	r.reached()
	return last < safe, nil
}

// compareHead undoes the last range if the last block was replaced, and no block has followed yet.
func (r *reader) compareHead(ctx context.Context, safe uint64) (more bool, err error) {
	if !r.begun || r.Finalized || safe != r.at.Block.Number {
		return false, nil
	}
	_, err = r.agree(ctx, query{first: safe + 1, last: safe, check: &r.at.Block})
	if errors.Is(err, errReorganised) {
		return true, r.undo(ctx)
	}
	return false, err
}

// readAgain reads the next blocks of a rescan.
func (r *reader) readAgain(ctx context.Context, again Range) error {
	last, found, err := r.fetch(ctx, again.From, again.To)
	if errors.Is(err, errReorganised) {
		return r.undo(ctx)
	}
	if err != nil || found == nil {
		return err
	}
	var rest *Range
	if last < again.To {
		rest = &Range{last + 1, again.To}
	}
	if err := r.keep(ctx, found, reading{to: r.at, rescan: true, rest: rest}); err != nil {
		return err
	}
	r.mu.Lock()
	if r.again != nil && *r.again == again {
		r.again = rest
	}
	r.mu.Unlock()
	return nil
}

// keep decodes and writes the events of a range.
func (r *reader) keep(ctx context.Context, found *answer, read reading) error {
	events, bad := found.decode()
	for i := range events {
		events[i].At.Chain = r.ID
	}
	read.events, read.last = events, found.last.Number
	read.to.Refused += uint64(len(bad))
	to, refused, err := r.x.write(ctx, r, read)
	if err != nil {
		return err
	}
	r.at = to
	for _, why := range append(bad, refused...) {
		if r.lines++; r.lines > refusedLines {
			break
		}
		r.log.Warn("indexer: an event was left out", "reason", why)
	}
	return nil
}

// fetch reads a range of at most the blocks first to most, on which the RPCs agree. found is nil if the range was
// refused and must be smaller.
func (r *reader) fetch(ctx context.Context, first, most uint64) (last uint64, found *answer, err error) {
	last = r.span.End(first, most)
	q := query{first: first, last: last}
	if r.begun {
		q.check = &r.at.Block
	}
	found, err = r.agree(ctx, q)
	switch {
	case err == nil:
		r.span.Grow()
		return last, found, nil
	case chain.TooLarge(err) && r.span.Shrink(last-first+1):
		return last, nil, nil
	}
	return last, nil, err
}

// identify compares the chain's id with the configuration, and checks that the contract exists, at each RPC. An RPC of
// another chain is not read.
func (r *reader) identify(ctx context.Context) error {
	_, want, _ := strings.Cut(r.ID, ".")
	for _, n := range r.nodes {
		n.set(func(s *sourceState) { s.foreign = nil })
	}
	results := r.each(func(s *source) (result, error) {
		return result{}, s.identify(ctx, want, r.core())
	})
	good := 0
	var failures []error
	for i, one := range results {
		r.nodes[i].set(func(s *sourceState) { s.foreign = one.err })
		if one.err == nil {
			good++
		} else {
			failures = append(failures, fmt.Errorf("%s: %w", r.nodes[i].node, one.err))
		}
	}
	r.publish()
	if good < r.quorum() {
		return errors.Join(failures...)
	}
	return nil
}

// ask begins a rescan.
func (r *reader) ask(blocks Range) {
	r.mu.Lock()
	r.again = &blocks
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *reader) asked() *Range {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.again
}
