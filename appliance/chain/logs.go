package chain

import (
	"cmp"
	"context"
	"fmt"
	"math/big"
	"time"

	"github.com/ethereum/go-ethereum"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"

	"github.com/attestd/attestd/appliance"
)

// The events of a verifying contract: each redemption emits both, in one transaction. Their arguments are all indexed.
var (
	topicAttested = crypto.Keccak256Hash([]byte("Attested(bytes32,uint256)"))
	topicRedeemed = crypto.Keccak256Hash([]byte("Redeemed(uint256,uint256,address)"))
)

// manyLogs is the number of events from which on an answer may be incomplete: nodes that truncate answers silently do
// so at 1,000 or more.
const manyLogs = 1000

// redemptions returns a contract's redemptions in the blocks first to last, and the last block. The node must return
// the same hash for the last block before and after.
func (n *node) redemptions(ctx context.Context, c *Contract, first,
	last uint64) (found []Redemption, at Block, err error) {
	before, err := n.blockAt(ctx, last)
	if err != nil {
		return nil, at, err
	}
	logs, err := n.logs(ctx, ethereum.FilterQuery{
		FromBlock: new(big.Int).SetUint64(first), ToBlock: new(big.Int).SetUint64(last),
		Addresses: []common.Address{common.Address(c.Address)},
	})
	if err != nil {
		return nil, at, err
	}
	if len(logs) >= manyLogs && first < last {
		return nil, at, fmt.Errorf("%d events in blocks %d to %d: %w", len(logs), first, last, errIncomplete)
	}
	if err := checkAsked(logs, c, first, last); err != nil {
		return nil, at, err
	}
	if err := n.checkBloom(ctx, c, before, logs); err != nil {
		return nil, at, err
	}
	if err := checkPairs(logs); err != nil {
		return nil, at, err
	}
	after, err := n.blockAt(ctx, last)
	if err == nil && after.Hash != before.Hash {
		err = fmt.Errorf("block %d was %s and then %s: the chain is being reorganised", last, before.Hash, after.Hash)
	}
	if err != nil {
		return nil, at, err
	}
	found, err = n.read(ctx, c, logs)
	return found, before.Block, err
}

func (n *node) logs(ctx context.Context, q ethereum.FilterQuery) (logs []types.Log, err error) {
	q.Topics = [][]common.Hash{{topicAttested, topicRedeemed}}
	return n.filter(ctx, q)
}

func (n *node) filter(ctx context.Context, q ethereum.FilterQuery) (logs []types.Log, err error) {
	err = n.do(ctx, "events", func(ctx context.Context) error {
		logs, err = n.eth.FilterLogs(ctx, q)
		return err
	})
	return logs, err
}

// checkAsked refuses events outside of the query, events with data, and duplicates, so that an answer costs no more
// than its redemptions.
func checkAsked(logs []types.Log, c *Contract, first, last uint64) error {
	type place struct {
		block common.Hash
		index uint
	}
	seen := make(map[place]bool, len(logs))
	for _, l := range logs {
		at := place{l.BlockHash, l.Index}
		switch {
		case l.Address != common.Address(c.Address) || l.BlockNumber < first || l.BlockNumber > last || l.Removed ||
			len(l.Topics) == 0 || len(l.Data) > 0:
			return fmt.Errorf("the answer has an unrequested event of %s in block %d", l.Address, l.BlockNumber)
		case seen[at]:
			return fmt.Errorf("the answer has event %d of block %d twice", l.Index, l.BlockNumber)
		}
		seen[at] = true
	}
	return nil
}

// checkBloom compares the answer for the last block with its bloom filter, which the block's hash covers. The filter
// has false positives, so the node is asked again for this block by its hash.
func (n *node) checkBloom(ctx context.Context, c *Contract, last header, logs []types.Log) error {
	if !last.bloom.Test(c.Address[:]) || !last.bloom.Test(topicAttested[:]) {
		return nil
	}
	for _, l := range logs {
		if l.BlockNumber == last.Number {
			return nil
		}
	}
	hash := common.Hash(last.Hash)
	again, err := n.logs(ctx,
		ethereum.FilterQuery{BlockHash: &hash, Addresses: []common.Address{common.Address(c.Address)}})
	if err == nil && len(again) > 0 {
		err = fmt.Errorf("the answer lacks %d events of block %d: %w", len(again), last.Number, errIncomplete)
	}
	return err
}

// checkPairs refuses a Redeemed event without its Attested event, which the node must have left out.
func checkPairs(logs []types.Log) error {
	type part struct {
		tx     common.Hash
		amount common.Hash
	}
	attested := make(map[part]int)
	for _, l := range logs {
		switch {
		case l.Topics[0] == topicAttested && len(l.Topics) == 3:
			attested[part{l.TxHash, l.Topics[2]}]++
		case l.Topics[0] == topicRedeemed && len(l.Topics) == 4:
			attested[part{l.TxHash, l.Topics[2]}]--
		default:
			return fmt.Errorf("the answer has an event with %d topics, in transaction %s", len(l.Topics), l.TxHash)
		}
	}
	for p, n := range attested {
		if n < 0 {
			return fmt.Errorf("transaction %s has Redeemed, but the answer lacks its Attested: %w", p.tx, errIncomplete)
		}
	}
	return nil
}

// read turns events into redemptions. It reads the block times that the node does not return with the events.
func (n *node) read(ctx context.Context, c *Contract, logs []types.Log) (found []Redemption, err error) {
	times := make(map[appliance.Digest]time.Time)
	for _, l := range logs {
		if l.Topics[0] != topicAttested {
			continue
		}
		r := Redemption{
			Contract: c.Name, Hash: appliance.Digest(l.Topics[1]), Amount: Amount(l.Topics[2]), Block: l.BlockNumber,
			BlockHash: appliance.Digest(l.BlockHash), TransactionHash: appliance.Digest(l.TxHash), LogIndex: l.Index,
		}
		if l.BlockTimestamp > 0 {
			times[r.BlockHash] = time.Unix(int64(l.BlockTimestamp), 0).UTC()
		}
		if _, known := times[r.BlockHash]; !known {
			h, err := n.blockAt(ctx, l.BlockNumber)
			if err != nil {
				return nil, err
			}
			if h.Hash != r.BlockHash {
				return nil, fmt.Errorf("block %d is %s, but its events belong to %s: the chain is being reorganised",
					h.Number, h.Hash, r.BlockHash)
			}
			times[r.BlockHash] = h.Time
		}
		r.Time = times[r.BlockHash]
		found = append(found, r)
	}
	return found, nil
}

// span is the number of blocks per query. It is halved if the node refuses, and doubled after some answers.
type span struct {
	size, most uint64 // 0 means firstSpan, mostSpan
	good       int    // answers since it last changed
}

const (
	firstSpan = 2_000
	mostSpan  = 100_000
	growAfter = 8
)

// end returns the last block of the next query.
func (s *span) end(first, last uint64) uint64 {
	if s.size == 0 {
		s.size = firstSpan
	}
	if last-first < s.size {
		return last
	}
	return first + s.size - 1
}

// grow records an answer.
func (s *span) grow() {
	if s.good++; s.good >= growAfter {
		s.size, s.good = min(2*s.size, cmp.Or(s.most, mostSpan)), 0
	}
}

// shrink records a refusal. It returns false if a single block was refused.
func (s *span) shrink(asked uint64) bool {
	s.size, s.good = max(1, min(s.size, asked)/2), 0
	return asked > 1
}
