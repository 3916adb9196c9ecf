package chain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// Scan reads a contract from its first to its newest confirmed block, from each of its RPCs. It returns the redemptions
// that any RPC reports, in order, and the block up to which all were read. It stores nothing. progress, which may be
// nil, is called now and then with the position in an RPC.
//
// Errors: an RPC that fails for longer than a minute; an address without a contract; the error of ctx.
func Scan(ctx context.Context, c Contract, userAgent string,
	progress func(done, total uint64)) (found []Redemption, upTo uint64, err error) {
	if len(c.RPCs) == 0 {
		return nil, 0, errors.New("an RPC is required")
	}
	told := make(map[string]*Redemption)
	shown := shownURLs(c.RPCs)
	for i, address := range c.RPCs {
		n, err := newNode(address, shown[i], defaultCallTimeout, userAgent)
		if err != nil {
			return nil, 0, err
		}
		s := scan{node: n, contract: &c, progress: progress}
		err = s.run(ctx, func(r Redemption) {
			key := r.row()
			if told[key] == nil {
				told[key] = &r
			}
			told[key].Reports = append(told[key].Reports, n.shown)
		})
		n.close()
		if err != nil {
			return nil, 0, fmt.Errorf("%s: %w", n.shown, err)
		}
		if i == 0 || s.last < upTo {
			upTo = s.last
		}
	}
	for _, r := range told {
		found = append(found, *r)
	}
	slices.SortFunc(found, func(a, b Redemption) int {
		return cmp.Or(cmp.Compare(a.Block, b.Block), cmp.Compare(a.LogIndex, b.LogIndex))
	})
	return found, upTo, nil
}

// scan reads a contract once from one RPC.
type scan struct {
	node     *node
	contract *Contract
	span     span
	last     uint64 // the last block to read
	progress func(done, total uint64)
}

// giveUp is how long an RPC may fail.
const giveUp = time.Minute

func (s *scan) run(ctx context.Context, yield func(Redemption)) error {
	if err := s.persist(ctx, s.begin); err != nil {
		return err
	}
	for first := s.contract.StartBlock; first <= s.last; {
		var found []Redemption
		var to uint64
		err := s.persist(ctx, func(ctx context.Context) (err error) {
			for {
				to = s.span.end(first, s.last)
				found, _, err = s.node.redemptions(ctx, s.contract, first, to)
				if err == nil || !tooLarge(err) || !s.span.shrink(to-first+1) {
					return err
				}
			}
		})
		if err != nil {
			return err
		}
		s.span.grow()
		for _, r := range found {
			yield(r)
		}
		if first = to + 1; s.progress != nil {
			s.progress(to-s.contract.StartBlock+1, s.last-s.contract.StartBlock+1)
		}
	}
	return nil
}

// begin finds the newest confirmed block and checks that the contract exists.
func (s *scan) begin(ctx context.Context) error {
	has, err := s.node.hasCode(ctx, s.contract.Address)
	if err != nil {
		return err
	}
	if !has {
		return backoff.Permanent(
			fmt.Errorf("no contract exists at %s, so redemptions cannot be seen", s.contract.Address))
	}
	last, ok, err := s.node.safe(ctx, s.contract)
	if err == nil && !ok {
		err = backoff.Permanent(errors.New("no block is confirmed yet"))
	}
	s.last = last
	return err
}

// persist retries a call of an RPC.
func (s *scan) persist(ctx context.Context, what func(context.Context) error) error {
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		err := what(ctx)
		if asked, ok := errors.AsType[*throttled](err); ok && asked.after > 0 {
			err = errors.Join(err, backoff.RetryAfter(int(min(asked.after, giveUp).Seconds())))
		}
		return struct{}{}, err
	}, backoff.WithMaxElapsedTime(giveUp))
	return err
}
