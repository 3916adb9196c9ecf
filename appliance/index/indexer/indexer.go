package indexer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/chain"
	"github.com/attestd/attestd/appliance/index"
)

// Chain is a chain to index.
type Chain struct {
	ID        string // universal chain id, such as ethereum.1
	Name      string // for people; empty means ID
	Testnet   bool
	RPCs      []string       // URLs, which may contain secrets
	Core      common.Address // the core contract of an EVM chain
	Contract  string         // the core contract of a CosmWasm chain, in bech32; empty for an EVM chain
	Minter    string         // of wrapped tokens on a CosmWasm chain, in bech32; may be empty
	Zkgm      string         // the contract for transfers; New sets it from Options.Zkgm
	FromBlock uint64         // the first block to read
	// Confirmations is the number of blocks that must follow a block before it is read. With Finalized, only finalized
	// blocks are read instead.
	Confirmations uint64
	Finalized     bool
}

// Options configure New.
type Options struct {
	Index  index.Index
	Chains []Chain
	// Zkgm are the addresses of the contracts for transfers by universal chain id, also of chains that are not read: 0x or
	// bech32. Only packets between two of them become transfers.
	Zkgm         map[string]string
	PollInterval time.Duration // between two reads of the newest block; required
	Version      string        // of attestd, for the User-Agent
	Log          *slog.Logger  // nil discards the log
	Now          func() time.Time
}

// Indexer reads chains into an index. Its methods are safe for concurrent use; Run may be called once at a time.
type Indexer struct {
	o       Options
	names   names
	ports   map[string]string // of Options.Zkgm, as rows have them
	chains  []*reader
	writing sync.Mutex // one batch at a time: each is built from the rows in the index
}

// New returns an indexer. Run starts it.
func New(o Options) (*Indexer, error) {
	if o.PollInterval <= 0 {
		return nil, errors.New("indexer.Options: PollInterval must be set")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	x := &Indexer{o: o}
	ids := make([]string, len(o.Chains))
	for i, c := range o.Chains {
		ids[i] = c.ID
	}
	x.names, x.ports = newNames(ids), make(map[string]string)
	for id, address := range o.Zkgm {
		x.ports[id] = portOf(address)
	}
	for _, c := range o.Chains {
		c.Zkgm = o.Zkgm[c.ID]
		nodes, err := dial(c, o.Version)
		if err != nil {
			return nil, fmt.Errorf("chain %s: %w", c.ID, err)
		}
		x.chains = append(x.chains, newReader(x, c, nodes))
	}
	return x, nil
}

// Run reads all chains until ctx ends, and then returns nil. It retries errors. A chain that fails stops no other.
func (x *Indexer) Run(ctx context.Context) error {
	var all sync.WaitGroup
	for _, r := range x.chains {
		all.Go(func() { x.keepReading(ctx, r) })
	}
	all.Wait()
	return nil
}

// keepReading restarts a reader that panics, because the process also signs.
func (x *Indexer) keepReading(ctx context.Context, r *reader) {
	for ctx.Err() == nil {
		err := func() (err error) {
			defer func() {
				if cause := recover(); cause != nil {
					err = fmt.Errorf("panic: %v\n%s", cause, debug.Stack())
				}
			}()
			r.run(ctx)
			return nil
		}()
		if err == nil {
			return
		}
		r.log.Error("indexer: reading a chain failed and restarts", "in", mostWait.String(), "error", err.Error())
		sleep(ctx, mostWait)
	}
}

// progress is how far a chain has been read. The index stores it with the rows.
type progress struct {
	Core  string      `json:"core"`
	Block chain.Block `json:"block"` // the last block read
	Read  uint64      `json:"read"`  // events read so far
	// Refused counts events that did not fit, such as those on a channel that was opened before FromBlock.
	Refused uint64 `json:"refused"`
	// Kept are the last blocks of the ranges that can be undone, in their order. See undoName.
	Kept []uint64 `json:"kept,omitempty"`
}

// Range is a range of blocks.
type Range struct {
	From uint64 `json:"from"`
	To   uint64 `json:"to"`
}

// reading is a range of blocks that was read.
type reading struct {
	last     uint64 // block
	events   []Event
	to       progress // after it
	undoable bool     // what it changes is kept, so that it can be undone
	rescan   bool
	rest     *Range // the rest of the rescan after it; nil at its end
}

// write adds the events of a range and the new progress to the index. It returns the progress as written, and why
// events were left out.
func (x *Indexer) write(ctx context.Context, r *reader, read reading) (to progress, refused []string, err error) {
	x.writing.Lock()
	defer x.writing.Unlock()
	var batch index.Batch
	to = read.to
	err = x.o.Index.View(ctx, func(snap index.Snapshot) error {
		b := newBook(snap, x, read.rescan)
		for i := range read.events {
			if err := b.add(ctx, &read.events[i]); err != nil {
				return err
			}
		}
		var u undo
		if batch, u, err = b.batch(ctx); err != nil {
			return err
		}
		refused = b.refused
		if read.rescan {
			err = r.extendUndo(ctx, snap, &batch, u.Packets, read.last)
		} else {
			err = r.keepUndo(&batch, &u, &to, read.undoable)
		}
		if err != nil {
			return err
		}
		status, err := snap.Status(ctx)
		batch.Index = status.ID
		return err
	})
	if err != nil {
		return to, nil, err
	}
	to.Refused += uint64(len(refused))
	if read.rescan {
		text := ""
		if read.rest != nil {
			raw, err := json.Marshal(read.rest)
			if err != nil {
				return to, nil, err
			}
			text = string(raw)
		}
		batch.Positions[rescanName(r.ID)] = text
	} else {
		row, err := index.NewRow(r.row(to))
		if err != nil {
			return to, nil, err
		}
		batch.Rows = append(batch.Rows, row)
	}
	raw, err := json.Marshal(to)
	if err != nil {
		return to, nil, err
	}
	batch.Positions[progressName(r.ID)] = string(raw)
	_, err = x.o.Index.Write(ctx, batch)
	return to, refused, err
}

// row returns the chain's row.
func (r *reader) row(at progress) index.Chain {
	_, id, _ := strings.Cut(r.ID, ".")
	family, _, _ := strings.Cut(r.ID, ".")
	name := r.Name
	if name == "" {
		name = r.ID
	}
	c := index.Chain{
		UniversalChainID: r.ID, ChainID: new(id), DisplayName: new(name), Testnet: new(r.Testnet), RPCType: new("evm"),
		Family: index.ChainFamily{Name: new(family), IBCInterface: new("ibc-solidity")},
		Status: index.ChainStatus{Height: new(fmt.Sprint(at.Block.Number)), Status: new("ok"),
			Timestamp: new(at.Block.Time)},
	}
	if r.isCosmWasm() {
		c.RPCType, c.AddrPrefix = new("cosmos"), new(r.prefix())
		c.Family.IBCInterface = new("ibc-cosmwasm")
	}
	return c
}

// Rescan asks for blocks of a chain to be read again. It replaces an unfinished rescan of the chain.
//
// Errors: CodeNotFound for a chain that is not indexed; CodeInvalidField for an empty range, or for one beyond the last
// block read; those of the index.
func (x *Indexer) Rescan(ctx context.Context, id string, blocks Range) error {
	for _, r := range x.chains {
		if r.ID != id {
			continue
		}
		at := r.status().Indexed
		if blocks.From > blocks.To || blocks.To > at {
			return appliance.Errorf(appliance.CodeInvalidField,
				"blocks %d to %d cannot be read again: chain %s is indexed to block %d", blocks.From, blocks.To, id, at)
		}
		text, err := json.Marshal(blocks)
		if err != nil {
			return err
		}
		x.writing.Lock()
		_, err = x.o.Index.Write(ctx, index.Batch{Positions: map[string]string{rescanName(id): string(text)}})
		x.writing.Unlock()
		if err == nil {
			r.ask(blocks)
		}
		return err
	}
	return appliance.Errorf(appliance.CodeNotFound, "chain %s is not in indexer.chains", id)
}

// sleep returns when ctx ends or d has passed.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
