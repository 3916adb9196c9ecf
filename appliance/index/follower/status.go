package follower

import (
	"time"
)

// Status describes the progress of a Follower.
type Status struct {
	Upstream string `json:"upstream"`
	State    State  `json:"state"`
	// Rows counts the rows here and upstream, by kind: packet, transfer.
	Rows map[string]Count `json:"rows"`
	// Backfilled is when the backfill reached the oldest row; zero before.
	Backfilled time.Time `json:"backfilled,omitzero"`
	// InStep is when the index was last known to have every row of the upstream; see Lag.
	InStep     time.Time `json:"inStep,omitzero"`
	LagSeconds *float64  `json:"lagSeconds"` // null if unknown
	LagRows    int64     `json:"lagRows"`    // packets and transfers that the upstream has and the index lacks
	// UnlistedRows are the LagRows that a full rescan did not find: the upstream counts them but does not list them, or
	// they cannot be read. They are searched for again every hour.
	UnlistedRows int64 `json:"unlistedRows,omitempty"`
	// SurplusRows are packets and transfers that the index has beyond the upstream's counts. They are searched for, and
	// removed if lookups confirm that the upstream no longer has them.
	SurplusRows int64     `json:"surplusRows,omitempty"`
	Newest      time.Time `json:"newest,omitzero"` // packet_send_timestamp of the newest packet here
	// packet_send_timestamp of the oldest packet here, which the backfill has reached
	Oldest     time.Time `json:"oldest,omitzero"`
	Unfinished int       `json:"unfinished"` // packets that are looked up again until they end
	Unverified uint64    `json:"unverified"` // quarantined rows
	// Waiting are the quarantined rows that are not contradicted: they wait for a check against their chain.
	Waiting uint64 `json:"waiting,omitempty"`
	// ChainError is why packets cannot be checked against their chains; empty if they can, or are not checked.
	ChainError string `json:"chainError,omitempty"`
	// Missing are fields that the upstream's schema lacks, as type.field.
	Missing []string `json:"missingFields,omitempty"`

	LastError   string    `json:"lastError,omitempty"` // the latest failure, which may be over
	LastErrorAt time.Time `json:"lastErrorAt,omitzero"`
	Failing     bool      `json:"failing"` // no step has succeeded since the latest failure

	Requests uint64 `json:"requests"` // since the start
	Failures uint64 `json:"failures"`
	Written  uint64 `json:"written"` // rows that were new or changed
	Removed  uint64 `json:"removed"` // rows that were removed because the upstream no longer has them
}

// Count is a number of rows in the index and upstream. Here includes quarantined rows only if the index serves them.
type Count struct {
	Here     uint64 `json:"here"`
	Upstream uint64 `json:"upstream"`
}

// State is the phase that a Follower is in.
type State string

// The states.
const (
	StateStarting State = "starting" // before the first read
	StateBackfill State = "backfill" // the newest rows are followed while older ones are still being read
	StateLive     State = "live"     // the backfill is done; new rows are followed
)

// Status returns the Follower's progress. It does not read from disk.
func (f *Follower) Status() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.status
	s.Rows = make(map[string]Count, len(f.status.Rows))
	for kind, n := range f.status.Rows {
		s.Rows[kind] = n
	}
	switch {
	case !s.Backfilled.IsZero():
		s.State = StateLive
	case len(s.Rows) > 0:
		s.State = StateBackfill
	default:
		s.State = StateStarting
	}
	if lag, known := f.lag(); known {
		seconds := lag.Seconds()
		s.LagSeconds = &seconds
	}
	return s
}

// Lag returns how long ago the index was last known to have every row of the upstream. An answer from the index is at
// most that much out of date. The lag is unknown until the index is in step for the first time. It persists across
// restarts.
func (f *Follower) Lag() (lag time.Duration, known bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lag()
}

func (f *Follower) lag() (time.Duration, bool) {
	if f.status.InStep.IsZero() {
		return 0, false
	}
	return max(0, f.o.Now().Sub(f.status.InStep)), true
}

// update changes the status under its lock.
func (f *Follower) update(change func(*Status)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.status)
}
