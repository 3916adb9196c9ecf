package comettest

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"sync"
	"time"

	abci "github.com/cometbft/cometbft/abci/types"
)

// Core is the core contract of each chain.
const Core = "union1hnuj8f6d3wy3fcprt55vddv7v2650t6uudnvd2hukqrteeam8wjqvcmecf"

// Event is an event of a contract. Its ABCI type is wasm- and the name.
type Event struct {
	Contract   string `json:"contract"` // empty means Core
	Name       string `json:"name"`
	Attributes []Attribute
}

// Attribute is a member of an event.
type Attribute struct{ Key, Value string }

// NewEvent returns an event of Core. The attributes are keys, each followed by its value.
func NewEvent(name string, attributes ...string) Event {
	e := Event{Name: name}
	for i := 0; i < len(attributes); i += 2 {
		e.Attributes = append(e.Attributes, Attribute{attributes[i], attributes[i+1]})
	}
	return e
}

// Transaction is a transaction, which emits events. Its code is 0 if it succeeds.
type Transaction struct {
	Code   uint32
	Events []Event
}

// Block is a block that the node has made.
type Block struct {
	Height       uint64
	Hash         [32]byte
	Time         time.Time
	Transactions [][32]byte // their hashes, in order
}

// appHash is the hash of the application's state. It never changes, so that no empty block follows a block. CometBFT
// misreads the results of a block without one.
var appHash = make([]byte, sha256.Size)

// application is the ABCI application.
type application struct {
	abci.BaseApplication
	committed chan Block

	mu          sync.Mutex
	made        uint64 // transactions so far
	txs         [][]byte
	blockEvents []Event
	last        Block
}

// prepare sets the content of the next block. It returns a transaction that makes the node propose the block.
func (a *application) prepare(blockEvents []Event, txs []Transaction) (trigger []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.txs, a.blockEvents = nil, blockEvents
	for _, tx := range txs {
		a.txs = append(a.txs, a.encode(tx))
	}
	return a.encode(Transaction{})
}

// encode returns distinct bytes for each transaction.
func (a *application) encode(tx Transaction) []byte {
	a.made++
	raw, err := json.Marshal(tx)
	if err != nil {
		panic(err)
	}
	return append(binary.BigEndian.AppendUint64(nil, a.made), raw...)
}

// InitChain implements abci.Application.
func (a *application) InitChain(context.Context, *abci.RequestInitChain) (*abci.ResponseInitChain, error) {
	return &abci.ResponseInitChain{AppHash: appHash}, nil
}

// CheckTx implements abci.Application. It removes the trigger of a block after the block.
func (a *application) CheckTx(_ context.Context, r *abci.RequestCheckTx) (*abci.ResponseCheckTx, error) {
	if r.Type == abci.CheckTxType_Recheck {
		return &abci.ResponseCheckTx{Code: 1}, nil
	}
	return &abci.ResponseCheckTx{}, nil
}

// PrepareProposal implements abci.Application.
func (a *application) PrepareProposal(context.Context,
	*abci.RequestPrepareProposal) (*abci.ResponsePrepareProposal, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return &abci.ResponsePrepareProposal{Txs: a.txs}, nil
}

// FinalizeBlock implements abci.Application.
func (a *application) FinalizeBlock(_ context.Context,
	r *abci.RequestFinalizeBlock) (*abci.ResponseFinalizeBlock, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last = Block{Height: uint64(r.Height), Hash: [32]byte(r.Hash), Time: r.Time.UTC()}
	answer := &abci.ResponseFinalizeBlock{Events: encoded(a.blockEvents), AppHash: appHash}
	for _, raw := range r.Txs {
		var tx Transaction
		if err := json.Unmarshal(raw[8:], &tx); err != nil {
			return nil, err
		}
		a.last.Transactions = append(a.last.Transactions, sha256.Sum256(raw))
		answer.TxResults = append(answer.TxResults, &abci.ExecTxResult{Code: tx.Code, Events: encoded(tx.Events)})
	}
	return answer, nil
}

// Commit implements abci.Application.
func (a *application) Commit(context.Context, *abci.RequestCommit) (*abci.ResponseCommit, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.committed <- a.last
	return &abci.ResponseCommit{}, nil
}

// Query implements abci.Application. It answers wasmd's query for a contract: only Core exists.
func (a *application) Query(_ context.Context, r *abci.RequestQuery) (*abci.ResponseQuery, error) {
	if r.Path == "/cosmwasm.wasm.v1.Query/ContractInfo" && len(r.Data) > 2 && string(r.Data[2:]) == Core {
		return &abci.ResponseQuery{Value: []byte{0x0a, 0}}, nil
	}
	return &abci.ResponseQuery{Code: 22, Log: "no such contract"}, nil
}

// encoded returns events as wasmd emits them.
func encoded(events []Event) (all []abci.Event) {
	for _, e := range events {
		contract := e.Contract
		if contract == "" {
			contract = Core
		}
		one := abci.Event{Type: "wasm-" + e.Name,
			Attributes: []abci.EventAttribute{{Key: "_contract_address", Value: contract, Index: true}}}
		for _, attribute := range e.Attributes {
			one.Attributes = append(one.Attributes,
				abci.EventAttribute{Key: attribute.Key, Value: attribute.Value, Index: true})
		}
		one.Attributes = append(one.Attributes, abci.EventAttribute{Key: "msg_index", Value: "0", Index: true})
		all = append(all, one)
	}
	return all
}
