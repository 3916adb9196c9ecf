package index

import "time"

// Stat is a counted quantity.
type Stat struct {
	Name  string
	Value uint64
}

// The names of stats.
const (
	StatTransfers = "total_transfers"
	StatPackets   = "total_packets"
)

// DayCount is the count of one UTC day.
type DayCount struct {
	Day   string // YYYY-MM-DD
	Count uint64
}

// RouteDayCount is the count of one UTC day between two chains.
type RouteDayCount struct {
	DayCount
	SourceChain, DestinationChain string // universal chain ids
}

// Latency holds percentiles of the time from the sending of a packet to each phase. It is nil for a phase that no
// packet has reached or that the query did not ask for.
type Latency struct {
	PacketRecv, WriteAck, PacketAck *Percentiles
}

// LatencyError is the largest relative error of a percentile. Latencies below a second count as zero to one second.
const LatencyError = 0.01

// Percentiles are in seconds.
type Percentiles struct {
	P5, Median, P95 float64
}

// HealthCheck reports whether a network's part of the index is fresh.
type HealthCheck struct {
	Environment Network
	Status      string     // HealthOK or HealthStale
	LastUpdate  *time.Time // the newest of its chains' status timestamps and packets; nil if it has neither
}

// The status of a HealthCheck.
const (
	HealthOK    = "ok"
	HealthStale = "stale" // the last update is older than StaleAfter
)

// StaleAfter is the age at which a network counts as stale.
const StaleAfter = 10 * time.Minute

// Held returns how many packets and transfers the index has, including those in quarantine.
func (s Status) Held() uint64 {
	n := s.Rows[PacketType.Name] + s.Rows[TransferType.Name]
	if !s.ServesUnverified {
		n += s.Unverified
	}
	return n
}

// Status describes the contents of an index.
type Status struct {
	Rows  map[string]uint64 `json:"rows"`  // by kind of row
	Bytes int64             `json:"bytes"` // on disk
	// packet_send_timestamp of the newest packet by sort_order; zero if unknown
	Newest  time.Time `json:"newest,omitzero"`
	Oldest  time.Time `json:"oldest,omitzero"` // packet_send_timestamp of the oldest packet by sort_order
	Updated time.Time `json:"updated"`         // when the last batch that changed a row was written
	Schema  int       `json:"schema"`          // version of the store's layout
	// Unverified is how many rows are quarantined.
	Unverified uint64 `json:"unverified"`
	// ServesUnverified reports whether Rows includes the quarantined rows, because they are served.
	ServesUnverified bool `json:"-"`
	// ID identifies the index. A recreated index has a new ID; see Batch.Index.
	ID string `json:"id,omitempty"`
}
