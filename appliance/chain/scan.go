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

// Scan reads a contract from its first block to the newest that is confirmed, from each of its RPCs. It returns the redemptions that
// any of them tells of, in order, and the block up to which all were read. It is for an auditor, who keeps nothing. progress, which may
// be nil, is called now and then with how far an RPC was read.
//
// Errors: of an RPC that fails for longer than a minute; what contradicts the contract's being there; ctx's.
func Scan(ctx context.Context, c Contract, userAgent string, progress func(done, total uint64)) (found []Redemption, upTo uint64, err error) {
	if len(c.RPCs) == 0 {
		return nil, 0, errors.New("no RPC is given")
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

// scan is the reading of a contract from one RPC, once.
type scan struct {
	node     *node
	contract *Contract
	span     span
	last     uint64 // the last block that is read
	progress func(done, total uint64)
}

// giveUp is for how long an RPC may fail.
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

// begin finds the newest block that is confirmed, and whether there is a contract.
func (s *scan) begin(ctx context.Context) error {
	has, err := s.node.hasCode(ctx, s.contract.Address)
	if err != nil {
		return err
	}
	if !has {
		return backoff.Permanent(fmt.Errorf("there is no contract at %s: no redemption would be seen", s.contract.Address))
	}
	last, ok, err := s.node.safe(ctx, s.contract)
	if err == nil && !ok {
		err = backoff.Permanent(errors.New("no block is confirmed yet"))
	}
	s.last = last
	return err
}

// persist tries again what an RPC fails at.
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
