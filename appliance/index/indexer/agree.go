package indexer

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/attestd/attestd/appliance/chain"
)

// source is an RPC of a chain.
type source struct {
	node node

	mu    sync.Mutex
	state sourceState
}

type sourceState struct {
	head          uint64
	foreign       error // why the RPC is not of this chain; nil if it is
	err           error // of the last call
	disagreements uint64

	rests time.Time     // until then, the RPC is only called if too few others are left
	pause time.Duration // the next rest
}

func (s *source) set(change func(*sourceState)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.state)
}

func (s *source) get() sourceState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

func (s *source) identify(ctx context.Context, chainID, core string) error {
	id, err := s.node.ChainID(ctx)
	if err != nil {
		return err
	}
	if id != chainID {
		return &Contradiction{Text: fmt.Sprintf("the RPC serves chain %s, not %s", id, chainID),
			Remedy: "correct id or rpcs in indexer.chains"}
	}
	has, err := s.node.hasCore(ctx)
	if err == nil && !has {
		err = &Contradiction{Text: fmt.Sprintf("no contract exists at %s", core),
			Remedy: "correct core in indexer.chains"}
	}
	return err
}

// quorum is how many RPCs must give the same answer: more than half of those configured.
func (r *reader) quorum() int { return len(r.nodes)/2 + 1 }

// head returns the highest block that a quorum of the RPCs has and that may be read.
func (r *reader) head(ctx context.Context) (safe uint64, ok bool, err error) {
	var heads []uint64
	var failures []error
	short := 0 // RPCs on which no block may be read yet
	results := r.each(func(s *source) (result, error) {
		number, ok, err := s.node.Safe(ctx, r.Finalized, r.Confirmations)
		return result{number: number, ok: ok}, err
	})
	for i, one := range results {
		if one.err == nil {
			r.nodes[i].set(func(s *sourceState) { s.head = one.value.number })
		}
		switch {
		case one.err != nil:
			failures = append(failures, fmt.Errorf("%s: %w", r.nodes[i].node, one.err))
		case one.value.ok:
			heads = append(heads, one.value.number)
		default:
			short++
		}
	}
	r.publish()
	if len(heads) < r.quorum() {
		if len(heads)+short >= r.quorum() {
			return 0, false, nil
		}
		return 0, false, errors.Join(failures...)
	}
	slices.SortFunc(heads, func(a, b uint64) int { return cmp.Compare(b, a) })
	return heads[r.quorum()-1], true, nil
}

type result struct {
	number uint64
	ok     bool
	answer answer
	same   bool // the block read before is still on the chain
}

// vote is all that an RPC says of a range.
type vote struct {
	digest [sha256.Size]byte
	same   bool
}

func (r *result) vote() vote { return vote{r.answer.digest, r.same} }

type outcome struct {
	value result
	err   error
}

// each calls the sources at the same time. A source that failed lately, for example by not answering at all, is left
// out for a while if the others are enough for a quorum.
func (r *reader) each(call func(*source) (result, error)) []outcome {
	now := r.x.o.Now()
	all := make([]outcome, len(r.nodes))
	awake := 0
	for _, s := range r.nodes {
		if state := s.get(); state.foreign == nil && !state.rests.After(now) {
			awake++
		}
	}
	var done sync.WaitGroup
	for i, s := range r.nodes {
		switch state := s.get(); {
		case state.foreign != nil:
			all[i].err = state.foreign
		case state.rests.After(now) && awake >= r.quorum():
			all[i].err = state.err
		default:
			done.Go(func() {
				all[i].value, all[i].err = call(s)
				s.judge(r.x.o.Now(), all[i].err)
			})
		}
	}
	done.Wait()
	return all
}

// judge lets a source rest after a failure, twice as long after each further one.
func (s *source) judge(now time.Time, err error) {
	refused := chain.TooLarge(err) && !errors.Is(err, context.DeadlineExceeded)
	s.set(func(s *sourceState) {
		switch s.err = err; {
		case err == nil:
			s.pause, s.rests = 0, time.Time{}
		case !refused:
			s.pause = min(max(2*s.pause, time.Second), mostWait)
			s.rests = now.Add(max(s.pause, chain.RetryAfter(err)))
		}
	})
}

// query is a range of blocks and the last block that was read before, whose hash must not have changed. If last is below
// first, only that hash is compared.
type query struct {
	first, last uint64
	check       *chain.Block // nil if none was read
}

// agree returns the events on which more than half of the RPCs agree. An RPC with other events is counted as
// disagreeing.
//
// Errors: errReorganised if they agree that the block of q.check has another hash now; an error for which
// chain.TooLarge is true if a smaller range may succeed.
func (r *reader) agree(ctx context.Context, q query) (*answer, error) {
	results := r.each(func(s *source) (found result, err error) {
		if q.first <= q.last {
			if found.answer, err = s.node.read(ctx, q.first, q.last); err != nil {
				return found, err
			}
		}
		if q.check == nil {
			found.same = true
			return found, nil
		}
		// after the events, so that none of another branch follow this block
		block, err := s.node.Block(ctx, q.check.Number)
		if found.same = block.Hash == q.check.Hash; !found.same {
			found.answer = answer{}
		}
		return found, err
	})
	votes := make(map[vote]int)
	for _, one := range results {
		if one.err == nil {
			votes[one.value.vote()]++
		}
	}
	var agreed *result
	for i := range results {
		if one := &results[i]; one.err == nil && votes[one.value.vote()] >= r.quorum() {
			agreed = &one.value
			break
		}
	}
	r.judge(results, agreed, len(votes))
	r.publish()
	switch {
	case agreed == nil:
		return nil, r.disagreement(q, results, votes)
	case !agreed.same:
		return nil, errReorganised
	}
	return &agreed.answer, nil
}

// judge records which RPCs disagree.
func (r *reader) judge(results []outcome, agreed *result, answers int) {
	for i, one := range results {
		if one.err == nil && answers > 1 && (agreed == nil || one.value.vote() != agreed.vote()) {
			r.nodes[i].set(func(s *sourceState) {
				s.disagreements++
				s.err = errDisagrees
			})
		}
	}
}

var errDisagrees = errors.New("its events differ from those of other RPCs")

// disagreement returns why no answer has a quorum.
func (r *reader) disagreement(q query, results []outcome, votes map[vote]int) error {
	if len(votes) > 1 && q.first > q.last {
		return fmt.Errorf("the RPCs disagree on block %d", q.last)
	}
	if len(votes) > 1 {
		return fmt.Errorf("the RPCs disagree on the events of blocks %d to %d", q.first, q.last)
	}
	var failures []error
	for i, one := range results {
		if one.err != nil {
			failures = append(failures, fmt.Errorf("%s: %w", r.nodes[i].node, one.err))
		}
	}
	return errors.Join(failures...)
}
