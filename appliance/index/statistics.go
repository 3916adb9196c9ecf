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

// DayCount is a count of one UTC day.
type DayCount struct {
	Day   string // YYYY-MM-DD
	Count uint64
}

// RouteDayCount is a count of one UTC day between two chains.
type RouteDayCount struct {
	DayCount
	SourceChain, DestinationChain string // universal chain ids
}

// Latency holds percentiles of the seconds from the sending of a packet to each phase: nil for a phase that no packet has
// reached, and for phases that the query did not ask for.
type Latency struct {
	PacketRecv, WriteAck, PacketAck *Percentiles
}

// LatencyError is the most by which a percentile differs from the exact one, relative to it. Latencies below a
// second count as zero to one second.
const LatencyError = 0.01

// Percentiles are in seconds.
type Percentiles struct {
	P5, Median, P95 float64
}

// HealthCheck tells whether a network's part of the index is fresh.
type HealthCheck struct {
	Environment Network
	Status      string     // HealthOK or HealthStale
	LastUpdate  *time.Time // the newest of its chains' status timestamps and packets; nil where there is none
}

// The status of a HealthCheck.
const (
	HealthOK    = "ok"
	HealthStale = "stale" // nothing newer than StaleAfter
)

// StaleAfter is when a network counts as stale.
const StaleAfter = 10 * time.Minute

// Status tells what an index holds.
type Status struct {
	Rows    map[string]uint64 `json:"rows"`            // by kind of row
	Bytes   int64             `json:"bytes"`           // on disk
	Newest  time.Time         `json:"newest,omitzero"` // packet_send_timestamp of the newest packet by sort_order; zero where unknown
	Oldest  time.Time         `json:"oldest,omitzero"` // and of the oldest
	Updated time.Time         `json:"updated"`         // when the last batch that changed something was written
	Schema  int               `json:"schema"`          // version of the store's layout
	// Unverified is how many rows are kept apart.
	Unverified uint64 `json:"unverified"`
	// ID is another one where the index was made anew; see Batch.Index.
	ID string `json:"id,omitempty"`
}
