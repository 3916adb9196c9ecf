package indexer

import "time"

// Status is the state of a chain.
type Status struct {
	ID string `json:"id"`
	// Head is the highest block that may be read, by more than half of the RPCs; 0 if unknown.
	Head        uint64    `json:"head"`
	First       uint64    `json:"first"`   // the first block to read
	Begun       bool      `json:"begun"`   // a block was read
	Indexed     uint64    `json:"indexed"` // the last block read
	IndexedTime time.Time `json:"indexedTime,omitzero"`
	Lag         uint64    `json:"lag"`       // blocks between Indexed and Head
	Remaining   uint64    `json:"remaining"` // seconds until Head at the current rate; 0 if unknown
	Events      uint64    `json:"events"`    // read so far
	Refused     uint64    `json:"refused"`   // events that were left out, because what they refer to is unknown
	BlockRate   float64   `json:"blockRate"` // blocks read per second since the start
	EventRate   float64   `json:"eventRate"` // events read per second since the start
	Rescan      *Range    `json:"rescan,omitempty"`
	RPCs        []RPC     `json:"rpcs"`
	Undone      uint64    `json:"undone,omitempty"` // ranges of blocks undone since the start, after reorganisations
	Error       string    `json:"error,omitempty"`  // why the chain is not read; may be empty
	Code        string    `json:"code,omitempty"`   // of Error, such as CodeReorganised; may be empty
	Remedy      string    `json:"remedy,omitempty"` // for Error; may be empty

	started            time.Time
	firstBlock, events uint64 // at the start
}

// RPC is the state of an RPC.
type RPC struct {
	URL  string `json:"url"` // without parts that may be secret
	Head uint64 `json:"head"`
	// ranges in which its events differed from the others' since the start
	Disagreements uint64 `json:"disagreements"`
	Error         string `json:"error,omitempty"` // of its last call; may be empty
}

// Status returns the state of each chain, in the order of the configuration.
func (x *Indexer) Status() []Status {
	all := make([]Status, len(x.chains))
	for i, r := range x.chains {
		all[i] = r.status()
	}
	return all
}

func (r *reader) change(change func(*Status)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.state)
}

// publish copies the states of the RPCs.
func (r *reader) publish() {
	rpcs := make([]RPC, len(r.nodes))
	for i, n := range r.nodes {
		s := n.get()
		rpcs[i] = RPC{URL: n.node.String(), Head: s.head, Disagreements: s.disagreements}
		switch {
		case s.foreign != nil:
			rpcs[i].Error = s.foreign.Error()
		case s.err != nil:
			rpcs[i].Error = s.err.Error()
		}
	}
	r.change(func(s *Status) { s.RPCs = rpcs })
}

func (r *reader) status() Status {
	now := r.x.o.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.state
	s.Rescan = r.again
	if s.RPCs == nil {
		s.RPCs = []RPC{}
	}
	if !s.Begun {
		s.Indexed = max(r.FromBlock, 1) - 1
	}
	if s.Head > s.Indexed {
		s.Lag = s.Head - s.Indexed
	}
	if elapsed := now.Sub(s.started).Seconds(); !s.started.IsZero() && elapsed > 0 && s.Indexed >= s.firstBlock {
		s.BlockRate = float64(s.Indexed-s.firstBlock) / elapsed
		s.EventRate = float64(s.Events-min(s.Events, s.events)) / elapsed
		if s.BlockRate > 0 {
			s.Remaining = uint64(float64(s.Lag) / s.BlockRate)
		}
	}
	return s
}
