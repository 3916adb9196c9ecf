package follower

import (
	"time"
)

// Status tells how far a Follower is.
type Status struct {
	Upstream string `json:"upstream"`
	State    State  `json:"state"`
	// Rows are what is here and what the upstream says it has, by kind: packet, transfer.
	Rows map[string]Count `json:"rows"`
	// Backfilled is when the backfill reached the oldest row; zero before.
	Backfilled time.Time `json:"backfilled,omitzero"`
	// InStep is when the index was last known to have all that the upstream had; see Lag.
	InStep     time.Time `json:"inStep,omitzero"`
	LagSeconds *float64  `json:"lagSeconds"` // null where unknown
	LagRows    int64     `json:"lagRows"`    // packets and transfers that the upstream has and this has not
	// UnlistedRows are those of LagRows that a search of everything has not found: the upstream counts them and does not list them, or
	// they cannot be read. They are searched for again every hour.
	UnlistedRows int64 `json:"unlistedRows,omitempty"`
	// SurplusRows are packets and transfers that this has and the upstream does not count. They are searched for, and removed where
	// look-ups confirm that the upstream no longer has them.
	SurplusRows int64     `json:"surplusRows,omitempty"`
	Newest      time.Time `json:"newest,omitzero"` // packet_send_timestamp of the newest packet here
	Oldest      time.Time `json:"oldest,omitzero"` // and of the oldest, which the backfill has come to
	Unfinished  int       `json:"unfinished"`      // packets that are looked up again until they end
	Unverified  uint64    `json:"unverified"`      // rows kept apart
	// Missing are fields that the upstream's schema lacks, as type.field.
	Missing []string `json:"missingFields,omitempty"`

	LastError   string    `json:"lastError,omitempty"` // the latest failure, which may be over
	LastErrorAt time.Time `json:"lastErrorAt,omitzero"`
	Failing     bool      `json:"failing"` // no request has succeeded since the latest failure

	Requests uint64 `json:"requests"` // since the start
	Failures uint64 `json:"failures"`
	Written  uint64 `json:"written"` // rows that were new or changed
	Removed  uint64 `json:"removed"` // rows that the upstream no longer has
}

// Count is a number of rows here, those kept apart included, and upstream.
type Count struct {
	Here     uint64 `json:"here"`
	Upstream uint64 `json:"upstream"`
}

// State is what a Follower is doing.
type State string

// The states.
const (
	StateStarting State = "starting" // nothing has been read yet
	StateBackfill State = "backfill" // newest rows are followed, older ones still being read
	StateLive     State = "live"     // all is here; new rows are followed
)

// Status returns how far the Follower is. It reads nothing from disk.
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

// Lag returns how long ago the index was last known to have all that the upstream had: an answer is at most that much out of
// date. It is unknown before the first time, and is kept over restarts.
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
