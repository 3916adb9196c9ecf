package chain

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/attestd/attestd/appliance"
)

// WasmEvent is an event of a CosmWasm contract.
type WasmEvent struct {
	Name        string // the type without its prefix "wasm-"
	Attributes  []Attribute
	Block       Block
	Transaction appliance.Digest // zero for an event of the block itself
	// Index is the position among the events of the block's successful transactions, which the events of the block
	// itself follow.
	Index uint
}

// Attribute is a member of an event.
type Attribute struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// Get returns the value of the first attribute with a key. ok is false if the event lacks the key.
func (e *WasmEvent) Get(key string) (value string, ok bool) {
	for _, a := range e.Attributes {
		if a.Key == key {
			return a.Value, true
		}
	}
	return "", false
}

// Contract returns the address of the contract. wasmd sets the attribute: a contract's own ones cannot begin with _.
func (e *WasmEvent) Contract() string {
	address, _ := e.Get("_contract_address")
	return address
}

// WasmEvents are the events of contracts in a range of blocks.
type WasmEvents struct {
	Events []WasmEvent // in order
	Last   Block       // the last block of the range
}

// Digest returns a hash over all that an answer says.
func (w *WasmEvents) Digest() [sha256.Size]byte {
	h := sha256.New()
	text := func(s string) {
		_ = binary.Write(h, binary.BigEndian, uint64(len(s))) // a hash accepts all
		_, _ = h.Write([]byte(s))
	}
	h.Write(w.Last.Hash[:])
	for i := range w.Events {
		e := &w.Events[i]
		text(e.Name)
		h.Write(e.Block.Hash[:])
		h.Write(e.Transaction[:])
		_ = binary.Write(h, binary.BigEndian, []uint64{e.Block.Number, uint64(e.Block.Time.UnixNano()), uint64(e.Index),
			uint64(len(e.Attributes))})
		for _, a := range e.Attributes {
			text(a.Key)
			text(a.Value)
		}
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// cometEvent is an event in an answer.
type cometEvent struct {
	Type       string      `json:"type"`
	Attributes []Attribute `json:"attributes"`
}

type cometResult struct {
	Code   uint32       `json:"code"`
	Events []cometEvent `json:"events"`
}

// cometTransaction is a transaction that tx_search has found.
type cometTransaction struct {
	Hash   cometHash   `json:"hash"`
	Height cometNumber `json:"height"`
	Index  uint32      `json:"index"`
	Result cometResult `json:"tx_result"`
}

// callsAtOnce is the number of calls that a query makes at the same time.
const callsAtOnce = 8

// Events returns the events of contracts in the blocks first to last, with and without a transaction. It leaves out
// failed transactions. The node must report the same transactions and events by both block_results and tx_search.
//
// Errors: TooLarge reports whether a smaller range may succeed. If a node has lost events, its answer is incomplete. A
// later query may be complete.
func (c *Comet) Events(ctx context.Context, contracts []string, first, last uint64) (found WasmEvents, err error) {
	blocks := make([]cometBlock, last-first+1)
	calls, limited := errgroup.WithContext(ctx)
	calls.SetLimit(callsAtOnce)
	for from := first; from <= last; from += mostBlocks {
		calls.Go(func() error {
			some, err := c.blocks(limited, from, min(from+mostBlocks-1, last))
			copy(blocks[from-first:], some)
			return err
		})
	}
	if err := calls.Wait(); err != nil {
		return found, err
	}
	calls, limited = errgroup.WithContext(ctx)
	calls.SetLimit(callsAtOnce)
	events := make([][]WasmEvent, len(blocks))
	for i, b := range blocks {
		calls.Go(func() (err error) {
			events[i], err = c.eventsOf(limited, contracts, b)
			return err
		})
	}
	if err := calls.Wait(); err != nil {
		return found, err
	}
	for _, some := range events {
		found.Events = append(found.Events, some...)
	}
	found.Last = blocks[len(blocks)-1].Block
	return found, nil
}

// eventsOf returns the events of contracts in a block.
func (c *Comet) eventsOf(ctx context.Context, contracts []string, b cometBlock) ([]WasmEvent, error) {
	var results struct {
		Transactions []cometResult `json:"txs_results"`
		Block        []cometEvent  `json:"finalize_block_events"`
	}
	height := strconv.FormatUint(b.Number, 10)
	if err := c.call(ctx, "results of block "+height, &results, "block_results", height); err != nil {
		return nil, err
	}
	if len(results.Transactions) != b.transactions {
		return nil, fmt.Errorf("block %d has %d transactions, block_results returned %d: %w", b.Number, b.transactions,
			len(results.Transactions), errIncomplete)
	}
	succeeded := make(map[uint32]*cometResult)
	for i := range results.Transactions {
		if one := &results.Transactions[i]; one.Code == 0 {
			succeeded[uint32(i)] = one
		}
	}
	hashes, err := c.transactions(ctx, b, succeeded)
	if err != nil {
		return nil, err
	}
	pick := picker{contracts: contracts, block: b.Block}
	for i := range results.Transactions {
		if one := succeeded[uint32(i)]; one != nil {
			pick.add(one.Events, hashes[uint32(i)])
		}
	}
	pick.add(results.Block, appliance.Digest{})
	return pick.found, nil
}

// transactions returns the hashes of a block's successful transactions from tx_search, which must report the events of
// block_results.
func (c *Comet) transactions(ctx context.Context, b cometBlock,
	succeeded map[uint32]*cometResult) (map[uint32]appliance.Digest, error) {
	block, hashes := b.Number, make(map[uint32]appliance.Digest)
	if len(succeeded) == 0 {
		return hashes, nil
	}
	const perPage = 100
	for page, seen := 1, 0; ; page++ {
		var answer struct {
			Transactions []cometTransaction `json:"txs"`
			Total        cometNumber        `json:"total_count"`
		}
		err := c.call(ctx, fmt.Sprintf("transactions of block %d", block), &answer, "tx_search",
			fmt.Sprintf("tx.height=%d", block), false, strconv.Itoa(page), strconv.Itoa(perPage), "asc")
		if err != nil {
			return nil, err
		}
		for _, tx := range answer.Transactions {
			same := succeeded[tx.Index]
			if uint64(tx.Height) != block || tx.Result.Code != 0 { // failed, or repeated in a later block
				continue
			}
			if same == nil || !sameEvents(same.Events, tx.Result.Events) {
				return nil, fmt.Errorf("transaction %d of block %d has other events in tx_search than in "+
					"block_results: %w", tx.Index, block, errIncomplete)
			}
			hashes[tx.Index] = appliance.Digest(tx.Hash)
		}
		seen += len(answer.Transactions)
		if seen > 2*b.transactions+perPage { // some may be of other blocks
			return nil, fmt.Errorf("block %d has %d transactions, tx_search returned %d: %w", block, b.transactions, seen,
				errIncomplete)
		}
		if len(answer.Transactions) == 0 || uint64(seen) >= uint64(answer.Total) {
			break
		}
	}
	if len(hashes) != len(succeeded) {
		return nil, fmt.Errorf("block %d has %d successful transactions, tx_search returned %d: %w", block,
			len(succeeded), len(hashes), errIncomplete)
	}
	return hashes, nil
}

func sameEvents(a, b []cometEvent) bool {
	return len(a) == len(b) && (len(a) == 0 || reflect.DeepEqual(a, b))
}

// picker collects the events of contracts in a block.
type picker struct {
	contracts []string
	block     Block
	seen      uint // events of all contracts and modules
	found     []WasmEvent
}

func (p *picker) add(events []cometEvent, tx appliance.Digest) {
	for _, e := range events {
		at := WasmEvent{Attributes: e.Attributes, Block: p.block, Transaction: tx, Index: p.seen}
		p.seen++
		name, isWasm := strings.CutPrefix(e.Type, "wasm-")
		if isWasm && slices.Contains(p.contracts, at.Contract()) {
			at.Name = name
			p.found = append(p.found, at)
		}
	}
}
