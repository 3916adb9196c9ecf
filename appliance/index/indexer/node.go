package indexer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strings"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/chain"
)

// node is an RPC of a chain.
type node interface {
	String() string
	ChainID(ctx context.Context) (string, error)
	// hasCore reports whether the core contract exists.
	hasCore(ctx context.Context) (bool, error)
	// Safe returns the highest block that may be read. ok is false if no block may be read yet.
	Safe(ctx context.Context, finalized bool, confirmations uint64) (number uint64, ok bool, err error)
	Block(ctx context.Context, number uint64) (chain.Block, error)
	// read returns the events of the chain's contracts in the blocks first to last. After an error, chain.TooLarge reports
	// whether a smaller range may succeed.
	read(ctx context.Context, first, last uint64) (answer, error)
}

// answer is a node's answer to read.
type answer struct {
	last   chain.Block       // of the range
	size   int               // number of events
	digest [sha256.Size]byte // over all that the answer says
	// decode returns the events that become rows, and why others of their kinds cannot be decoded.
	decode func() (events []Event, bad []string)
}

// decoded calls decode for each element of raw.
func decoded[R any](raw []R, decode func(R) (Event, bool, error)) func() ([]Event, []string) {
	return func() (events []Event, bad []string) {
		events = make([]Event, 0, len(raw))
		for _, one := range raw {
			e, ok, err := decode(one)
			switch {
			case err != nil:
				bad = append(bad, err.Error())
			case ok:
				events = append(events, e)
			}
		}
		return events, bad
	}
}

// dial returns the nodes of a chain.
func dial(c Chain, version string) (all []node, err error) {
	if c.isCosmWasm() {
		rpcs, err := chain.DialComet(c.RPCs, version)
		for _, rpc := range rpcs {
			all = append(all, cometNode{rpc, &c})
		}
		return all, err
	}
	rpcs, err := chain.Dial(c.RPCs, version)
	for _, rpc := range rpcs {
		all = append(all, evmNode{rpc, &c})
	}
	return all, err
}

// isCosmWasm reports whether the chain is a CosmWasm chain. Others are EVM chains.
func (c *Chain) isCosmWasm() bool { return c.Contract != "" }

// core returns the address of the core contract.
func (c *Chain) core() string {
	if c.isCosmWasm() {
		return c.Contract
	}
	return c.Core.String()
}

// prefix returns the prefix of a CosmWasm chain's addresses, such as union.
func (c *Chain) prefix() string { return c.Contract[:max(0, strings.LastIndexByte(c.Contract, '1'))] }

// makesTokens reports whether the chain's events about tokens are those of a contract. The core contract has all other
// events.
func (c *Chain) makesTokens(contract string) bool {
	return contract != "" && (strings.EqualFold(contract, c.Zkgm) || contract == c.Minter)
}

// ofContract drops the events of kinds that their contract does not have: anybody may make a contract.
func (c *Chain) ofContract(e Event, contract string) bool {
	if e.Kind == CreateWrappedToken || e.Kind == TokenBucketUpdate {
		return c.makesTokens(contract)
	}
	return strings.EqualFold(contract, c.core())
}

// evmNode is an RPC of an EVM chain.
type evmNode struct {
	*chain.RPC
	of *Chain
}

func (n evmNode) hasCore(ctx context.Context) (bool, error) {
	return n.HasCode(ctx, appliance.Address(n.of.Core))
}

func (n evmNode) read(ctx context.Context, first, last uint64) (answer, error) {
	contracts := []common.Address{n.of.Core}
	if n.of.Zkgm != "" {
		contracts = append(contracts, common.HexToAddress(n.of.Zkgm))
	}
	found, err := n.Logs(ctx, contracts, Topics(), first, last)
	return answer{last: found.Last, size: len(found.Logs), digest: digestOf(&found),
		decode: decoded(found.Logs, func(l types.Log) (Event, bool, error) {
			e, ok, err := Decode(l)
			return e, ok && n.of.ofContract(e, l.Address.String()), err
		})}, err
}

// cometNode is an RPC of a CosmWasm chain.
type cometNode struct {
	*chain.Comet
	of *Chain
}

func (n cometNode) hasCore(ctx context.Context) (bool, error) {
	return n.HasContract(ctx, n.of.Contract)
}

func (n cometNode) read(ctx context.Context, first, last uint64) (answer, error) {
	contracts := slices.DeleteFunc([]string{n.of.Contract, n.of.Zkgm, n.of.Minter},
		func(address string) bool { return address == "" })
	found, err := n.Events(ctx, contracts, first, last)
	return answer{last: found.Last, size: len(found.Events), digest: found.Digest(),
		decode: decoded(found.Events, func(w chain.WasmEvent) (Event, bool, error) {
			e, ok, err := DecodeWasm(w)
			return e, ok && n.of.ofContract(e, w.Contract()), err
		})}, err
}

// digestOf returns a hash over all that an answer says.
func digestOf(found *chain.Logs) (sum [sha256.Size]byte) {
	var b bytes.Buffer
	number := func(n uint64) { b.Write(binary.BigEndian.AppendUint64(nil, n)) }
	b.Write(found.Last.Hash[:])
	for _, l := range found.Logs {
		number(l.BlockNumber)
		number(uint64(l.Index))
		number(l.BlockTimestamp)
		b.Write(l.BlockHash[:])
		b.Write(l.TxHash[:])
		b.Write(l.Address[:])
		number(uint64(len(l.Topics)))
		for _, topic := range l.Topics {
			b.Write(topic[:])
		}
		number(uint64(len(l.Data)))
		b.Write(l.Data)
	}
	return sha256.Sum256(b.Bytes())
}
