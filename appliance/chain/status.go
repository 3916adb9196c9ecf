package chain

import (
	"encoding/json"
	"slices"
	"time"
)

// StatusOf returns the status of contracts from a store alone.
func StatusOf(s Store, contracts []Contract, halted bool) (Status, error) {
	status := Status{Contracts: []ContractStatus{}, Halted: halted}
	for _, c := range contracts {
		one, err := stored(s, c)
		if err != nil {
			return Status{}, err
		}
		status.Contracts = append(status.Contracts, one)
	}
	return status, nil
}

func stored(s Store, c Contract) (one ContractStatus, err error) {
	one = ContractStatus{Name: c.Name, Address: c.Address, RPCs: []RPCStatus{}}
	var positions []uint64
	shown := shownURLs(c.RPCs)
	for i, address := range c.RPCs {
		at, _, err := s.Position(c.Name, rpcID(address))
		if err != nil {
			return one, err
		}
		positions = append(positions, at.Number)
		one.RPCs = append(one.RPCs, RPCStatus{URL: shown[i], Block: at.Number})
	}
	one.Block = most(positions)
	if one.Redemptions, err = s.Count(c.Name); err != nil {
		return one, err
	}
	open, err := s.Open(c.Name)
	for _, r := range open {
		switch r.Verdict {
		case Disputed:
			one.Disputed++
			one.Unknown++
		case Unproven:
			one.Unproven++
			one.Unknown++
		case Unknown:
			one.Unknown++
		}
	}
	return one, err
}

// most returns the highest block up to which more than half of the RPCs were read.
func most(positions []uint64) uint64 {
	if len(positions) == 0 {
		return 0
	}
	slices.Sort(positions)
	return positions[(len(positions)-1)/2]
}

// Status returns the state of the watched contracts.
func (w *Watchtower) Status() (Status, error) {
	status, err := StatusOf(w.o.Store, w.o.Contracts, w.o.Halted())
	if err != nil {
		return status, err
	}
	for i, c := range w.contracts {
		one := &status.Contracts[i]
		c.identity.Lock()
		one.ChainID = json.Number(c.chainID)
		c.identity.Unlock()
		if attestor, matches, known := c.opinions.combined(len(c.feeds)); known {
			text := attestor.String()
			one.Attestor, one.SignerMatches = &text, &matches
		}
		for k, f := range c.feeds {
			s := f.get()
			one.RPCs[k].Head = s.head
			if s.err != nil {
				one.RPCs[k].Error = s.err.Error()
			}
		}
	}
	return status, nil
}

// Metrics are the values for metrics. They come from memory.
type Metrics struct {
	Unknown, Disagreements uint64 // since the start, plus those in the store
	Unproven               int    // now
	Contracts              []ContractFigures
}

// ContractFigures are the values for one contract.
type ContractFigures struct {
	Name          string
	Block         uint64    // highest block that most of its RPCs have read up to
	BlockTime     time.Time // zero if none was read
	SignerMatches *bool     // nil if unknown
	RPCs          []RPCFigures
}

// RPCFigures are the values for one RPC.
type RPCFigures struct {
	URL     string // without parts that may be secret
	Block   uint64
	Failing bool
}

// Metrics returns the values for metrics.
func (w *Watchtower) Metrics() Metrics {
	all := Metrics{Unknown: w.unknown.Load(), Disagreements: w.disagreements.Load()}
	for _, c := range w.contracts {
		one := ContractFigures{Name: c.Name}
		if _, matches, known := c.opinions.combined(len(c.feeds)); known {
			one.SignerMatches = &matches
		}
		var positions []uint64
		times := make(map[uint64]time.Time)
		for _, f := range c.feeds {
			s := f.get()
			positions = append(positions, s.at.Number)
			times[s.at.Number] = s.at.Time
			one.RPCs = append(one.RPCs, RPCFigures{URL: f.node.shown, Block: s.at.Number, Failing: s.err != nil})
		}
		all.Unproven += int(c.unproven.Load())
		one.Block = most(positions)
		one.BlockTime = times[one.Block]
		all.Contracts = append(all.Contracts, one)
	}
	return all
}
