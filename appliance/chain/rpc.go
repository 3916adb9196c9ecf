package chain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"time"

	"github.com/ethereum/go-ethereum"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/attestd/attestd/appliance"
)

// RPC is the JSON-RPC of a node of an EVM chain, for readers of other contracts than the watchtower's. Its errors never
// contain the URL, which may be secret. It is safe for concurrent use.
type RPC struct{ n *node }

// Dial returns an RPC for each URL. No connection is made before the first call. A call takes at most 20 s.
func Dial(urls []string, version string) ([]*RPC, error) {
	all := make([]*RPC, len(urls))
	shown := shownURLs(urls)
	for i, address := range urls {
		n, err := newNode(address, shown[i], defaultCallTimeout, "attestd/"+version)
		if err != nil {
			return nil, err
		}
		all[i] = &RPC{n}
	}
	return all, nil
}

// Close closes the RPC's connections.
func (r *RPC) Close() { r.n.close() }

// String returns the URL without parts that may be secret. It differs from those of the other RPCs of one Dial.
func (r *RPC) String() string { return r.n.shown }

// ChainID returns the chain's id (EIP-155), in decimal.
func (r *RPC) ChainID(ctx context.Context) (string, error) { return r.n.chainID(ctx) }

// HasCode reports whether there is a contract at an address.
func (r *RPC) HasCode(ctx context.Context, at appliance.Address) (bool, error) {
	return r.n.hasCode(ctx, at)
}

// Safe returns the highest finalized block, or the highest one with that many blocks on top of it. ok is false if there
// is none yet.
func (r *RPC) Safe(ctx context.Context, finalized bool, confirmations uint64) (number uint64, ok bool, err error) {
	return r.n.safe(ctx, &Contract{Finalized: finalized, Confirmations: confirmations})
}

// Block returns the block of a number.
func (r *RPC) Block(ctx context.Context, number uint64) (Block, error) {
	h, err := r.n.blockAt(ctx, number)
	return h.Block, err
}

// Logs are the events of some contracts in a range of blocks.
type Logs struct {
	Logs []types.Log // in their order on the chain; BlockTimestamp is set in each
	Last Block       // the last block of the range
}

// Logs returns the events of contracts that have one of the topics as their first, in the blocks first to last. The
// node must return the same hash for the last block before and after.
//
// Errors: TooLarge reports whether a smaller range may succeed.
func (r *RPC) Logs(ctx context.Context, contracts []common.Address, topics []common.Hash, first,
	last uint64) (found Logs, err error) {
	before, err := r.n.blockAt(ctx, last)
	if err != nil {
		return found, err
	}
	q := ethereum.FilterQuery{FromBlock: new(big.Int).SetUint64(first), ToBlock: new(big.Int).SetUint64(last),
		Addresses: contracts, Topics: [][]common.Hash{topics}}
	if found.Logs, err = r.n.filter(ctx, q); err != nil {
		return found, err
	}
	if n := len(found.Logs); n > 0 && n%manyLogs == 0 && first < last {
		return found, fmt.Errorf("%d events in blocks %d to %d: %w", n, first, last, errIncomplete)
	}
	if err := checkRange(found.Logs, contracts, topics, first, last); err != nil {
		return found, err
	}
	if err := r.n.date(ctx, found.Logs); err != nil {
		return found, err
	}
	after, err := r.n.blockAt(ctx, last)
	if err == nil && after.Hash != before.Hash {
		err = fmt.Errorf("block %d was %s and then %s: the chain is being reorganised", last, before.Hash, after.Hash)
	}
	found.Last = before.Block
	return found, err
}

// TooLarge reports whether a smaller query may succeed after this error.
func TooLarge(err error) bool { return tooLarge(err) }

// RetryAfter returns how long the node has asked to wait in an error, 0 if it has not.
func RetryAfter(err error) time.Duration {
	if asked, ok := errors.AsType[*throttled](err); ok {
		return min(asked.after, mostAsked)
	}
	return 0
}

// checkRange refuses events outside of the query, and events that are not in the chain's order.
func checkRange(logs []types.Log, contracts []common.Address, topics []common.Hash, first, last uint64) error {
	asked, named := make(map[common.Address]bool), make(map[common.Hash]bool)
	for _, c := range contracts {
		asked[c] = true
	}
	for _, topic := range topics {
		named[topic] = true
	}
	for i, l := range logs {
		if !asked[l.Address] || l.BlockNumber < first || l.BlockNumber > last || l.Removed || len(l.Topics) == 0 ||
			!named[l.Topics[0]] {
			return fmt.Errorf("the answer has an unrequested event of %s in block %d", l.Address, l.BlockNumber)
		}
		if i == 0 {
			continue
		}
		before := logs[i-1]
		if l.BlockNumber < before.BlockNumber || l.BlockNumber == before.BlockNumber && l.Index <= before.Index {
			return fmt.Errorf("the answer has event %d of block %d after event %d of block %d", l.Index, l.BlockNumber,
				before.Index, before.BlockNumber)
		}
	}
	return nil
}

// date sets the time of each event from its block, if the node has not set it.
func (n *node) date(ctx context.Context, logs []types.Log) error {
	var at header
	for i := range logs {
		l := &logs[i]
		if l.BlockTimestamp > 0 {
			continue
		}
		if at.Hash != appliance.Digest(l.BlockHash) {
			var err error
			if at, err = n.blockAt(ctx, l.BlockNumber); err != nil {
				return err
			}
			if at.Hash != appliance.Digest(l.BlockHash) {
				return fmt.Errorf("block %d is %s, but its events belong to %s: the chain is being reorganised",
					at.Number, at.Hash, l.BlockHash)
			}
		}
		l.BlockTimestamp = uint64(at.Time.Unix())
	}
	return nil
}

// Header returns the header of a block. Its fields have the hash that the node gives for the block.
func (r *RPC) Header(ctx context.Context, number uint64) (*types.Header, error) {
	var raw json.RawMessage
	err := r.n.do(ctx, "header", func(ctx context.Context) error {
		return r.n.eth.Client().CallContext(ctx, &raw, "eth_getBlockByNumber", hexutil.EncodeUint64(number), false)
	})
	if err != nil {
		return nil, err
	}
	var found *types.Header
	var named struct{ Hash common.Hash }
	if err := json.Unmarshal(raw, &found); err != nil {
		return nil, fmt.Errorf("header of block %d: %w", number, err)
	}
	if err := json.Unmarshal(raw, &named); err != nil {
		return nil, fmt.Errorf("header of block %d: %w", number, err)
	}
	switch {
	case found == nil:
		return nil, fmt.Errorf("header of block %d: %w", number, errNoBlock)
	case !found.Number.IsUint64() || found.Number.Uint64() != number:
		return nil, fmt.Errorf("header of block %d: the answer is block %s", number, found.Number)
	case found.Hash() != named.Hash:
		return nil, fmt.Errorf("header of block %d: its fields have the hash %s, and the RPC gives %s", number,
			found.Hash(), named.Hash)
	}
	return found, nil
}

// Proof stores the node's proof of a contract's slots after a block (eth_getProof, EIP-1186) into answer, as JSON.
//
// Errors: TooLarge reports whether fewer slots may succeed.
func (r *RPC) Proof(ctx context.Context, contract common.Address, slots []common.Hash, number uint64,
	answer any) error {
	return r.n.do(ctx, "proof", func(ctx context.Context) error {
		return r.n.eth.Client().CallContext(ctx, answer, "eth_getProof", contract, slots,
			hexutil.EncodeUint64(number))
	})
}

// Span is the number of blocks of a query: it is halved if a node refuses, and doubled after some answers.
type Span struct{ s span }

// End returns the last block of the next query.
func (s *Span) End(first, last uint64) uint64 { return s.s.end(first, last) }

// Grow records an answer.
func (s *Span) Grow() { s.s.grow() }

// Shrink records that a query of that many blocks was refused. It returns false if it had a single block.
func (s *Span) Shrink(asked uint64) bool { return s.s.shrink(asked) }
