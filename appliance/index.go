package appliance

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Index answers reads over indexed cross-chain transfers. A replica holds one on disk; a proxy need not.
// All methods may be used at once, and readers never wait for writers.
type Index interface {
	// View calls read with the index as it is now. The snapshot and every Row it returned are valid only until
	// read returns; Row.Clone outlives it. The error is read's own, CodeReplicaUnavailable where storage fails,
	// or CodeTimeout where ctx has ended.
	View(ctx context.Context, read func(Snapshot) error) error
	// Write upserts a batch: all of it or nothing. When it returns nil the batch is on disk and seen by every
	// later View. A record that is already there as it is changes nothing; see Written.
	//
	// Rows are upserted in their order, by the key of their type: packets by packet_hash, transfers by
	// packet_hash and transfer_index, chains by universal_chain_id, tokens by universal_chain_id and denom,
	// channels, clients and connections by their (source) universal_chain_id and id. An upsert replaces the whole
	// record: members that are null in the new one are null afterwards.
	//
	// Where another record of the type has the same sort_order, the later one is kept under sort_order~key (see
	// TieBreak), so that sort_order alone is a total order and no page boundary falls between equals.
	//
	// Errors: CodeInvalidField for a row that is not of a record type or has no key; CodeReplicaUnavailable.
	Write(ctx context.Context, b Batch) (Written, error)
}

// Snapshot is an Index at one moment. Its methods may be used at once. Lists come in the order of the query's Page:
// newest first by default, which is sort_order descending, bytewise.
//
// Every method that takes a query returns CodeInvalidField, with Field set, for a query that cannot be meant, and
// CodeTimeout when ctx ends.
type Snapshot interface {
	Transfers(ctx context.Context, q TransferQuery) ([]Row, error)     // of TransferType
	Packets(ctx context.Context, q PacketQuery) ([]Row, error)         // of PacketType
	Tokens(ctx context.Context, q TokenQuery) ([]Row, error)           // of TokenType, by rank, those without one last, then chain and denom
	Chains(ctx context.Context, q ChainQuery) ([]Row, error)           // of ChainType; its sort order is universal_chain_id
	Channels(ctx context.Context, q ChannelQuery) ([]Row, error)       // of ChannelType
	Clients(ctx context.Context, q ClientQuery) ([]Row, error)         // of ClientType
	Connections(ctx context.Context, q ConnectionQuery) ([]Row, error) // of ConnectionType

	// Related returns the row that a relation of row's type leads to: a transfer's source_chain, the packet that
	// has its traces, a trace's chain. A chain or packet that is not in the index is a row with nothing but its
	// key; any other relation that leads nowhere is the zero Row. It costs a look-up in memory, for PacketType one
	// in the index.
	Related(row Row, r Relation) Row

	// Stats returns total_transfers and total_packets.
	Stats(ctx context.Context) ([]Stat, error)
	// TransfersDaily and PacketsDaily count by the UTC day of sending, newest day first, days without any left out.
	TransfersDaily(ctx context.Context, q DayQuery) ([]DayCount, error)
	PacketsDaily(ctx context.Context, q DayQuery) ([]DayCount, error)
	// TransfersByChain and PacketsByChain count by day and pair of chains, newest day first, then by chains.
	TransfersByChain(ctx context.Context, q DayQuery) ([]RouteDayCount, error)
	PacketsByChain(ctx context.Context, q DayQuery) ([]RouteDayCount, error)
	// Latency returns the percentiles of how long packets took, by nearest rank, each at most LatencyError from the
	// exact one. The chains of the query need not be given.
	Latency(ctx context.Context, q LatencyQuery) (Latency, error)

	// Health returns one check per network that has chains: mainnet, then testnet.
	Health(ctx context.Context) ([]HealthCheck, error)
	// Status tells what the index holds and how fresh it is.
	Status(ctx context.Context) (IndexStatus, error)
	// Position returns what a Batch has last set under that name, or "" and false.
	Position(ctx context.Context, name string) (string, bool, error)

	// Unfinished calls yield with each packet that is neither acknowledged nor timed out, in no certain order, until an
	// error of yield's, which it returns.
	Unfinished(ctx context.Context, yield func(Row) error) error
	// Unverified calls yield with each record that is kept apart, by type and key, until an error of yield's, which it
	// returns. Where they are served, they are also among the others.
	Unverified(ctx context.Context, yield func(Unverified) error) error
	// Sample returns n different records chosen at random, of PacketType or TransferType, in no certain order: all where
	// there are no more, and in rare cases fewer.
	//
	// Errors: CodeInvalidField for other types; CodeTimeout.
	Sample(ctx context.Context, t *Type, n int) ([]Row, error)

	// Each calls yield with each record of a type, in the order of export: by sort_order ascending, bytewise (chains
	// and tokens by key), until the end or an error of yield's, which it returns.
	Each(ctx context.Context, t *Type, yield func(Row) error) error
}

// Batch is what Index.Write writes at once.
type Batch struct {
	Rows []Row // of record types, see RecordTypes
	// Positions are set with the rows, so that a reader of an upstream or of a file knows, after a crash, what
	// has been written. An empty value removes a position.
	Positions map[string]string
	// Unverified are packets and transfers to be kept apart, by their key: a later one takes the place of an earlier
	// one, and a row of the same type and key among the Rows of a later batch ends it, even one that changes nothing
	// else. They are written behind Rows, so that of a key that is in both the row is served and this is kept apart.
	// What Rows has said of the key before is served on; where unverified records are served it comes back when they no
	// longer are. Since is ignored: it is when the key was first kept apart.
	//
	// Errors: CodeInvalidField for other types.
	Unverified []Unverified
	// Withdrawn end what is kept apart of these keys, after Rows and before Unverified: nobody claims it any more. A key of
	// which nothing is kept apart changes nothing.
	Withdrawn []RecordID
}

// RecordID names a record: its type and its Row.Key.
type RecordID struct {
	Type *Type
	Key  string
}

// ID returns the name of a record.
func (r Row) ID() RecordID { return RecordID{r.t, r.Key()} }

// Unverified is a record that contradicts what can be checked of it, or that cannot be checked. An Index keeps it apart,
// and does not serve it unless it was opened to.
type Unverified struct {
	Row    Row
	Reason string    // what does not agree, for an operator: "base_amount is 5, but the packet's data says 6"
	Since  time.Time // UTC
}

// Written counts what a batch did: each of its Rows and each of its Unverified once. A row that changes nothing but ends an
// unverified one is Updated; an unverified one with the row and the reason that are kept already is Unchanged.
type Written struct {
	Inserted, Updated, Unchanged int
}

// Add adds another batch's counts.
func (w *Written) Add(other Written) {
	w.Inserted += other.Inserted
	w.Updated += other.Updated
	w.Unchanged += other.Unchanged
}

// TieBreak returns the sort_order under which a record is kept when another of its type has the one it came with.
// key is the record's own key as text (a packet's hash, a transfer's hash and index, …), so the result is unique,
// sorts directly after the other record, and is found again when the record is written a second time.
func TieBreak(sortOrder, key string) string { return sortOrder + "~" + key }

// Page limits, of interface.md.
const (
	DefaultLimit = 100
	MaxLimit     = 100
)

// Direction is where a page lies from its cursor.
type Direction uint8

const (
	Older Direction = iota // "lt": sort_order below the cursor, descending
	Newer                  // "gt": sort_order above the cursor, ascending
)

// ParseDirection reads "lt" and "gt"; the empty text is Older.
//
// Errors: CodeInvalidField, of p_comparison.
func ParseDirection(s string) (Direction, error) {
	switch s {
	case "", "lt":
		return Older, nil
	case "gt":
		return Newer, nil
	}
	return Older, Errorf(CodeInvalidField, "must be \"lt\" (older) or \"gt\" (newer)").In("p_comparison")
}

// Page is a part of a list. Its cursor need not be the sort_order of a row that exists.
type Page struct {
	Limit     *int32    // nil means DefaultLimit; above MaxLimit means MaxLimit
	Cursor    string    // a sort_order; empty means from the newest, descending, whatever the direction
	Direction Direction // zero means Older
}

// Size returns how many rows the page holds at most.
//
// Errors: CodeInvalidField, of p_limit, for zero and below.
func (p Page) Size() (int, error) {
	switch {
	case p.Limit == nil:
		return DefaultLimit, nil
	case *p.Limit <= 0:
		return 0, Errorf(CodeInvalidField, "must be 1 to %d", MaxLimit).In("p_limit")
	}
	return min(int(*p.Limit), MaxLimit), nil
}

// Ascending tells in which order the page's rows come.
func (p Page) Ascending() bool { return p.Direction == Newer && p.Cursor != "" }

// Network is mainnet or testnet: what the source chain's testnet flag says. A chain without the flag, or without a
// record, is of the mainnet.
type Network string

const (
	AnyNetwork Network = ""
	Mainnet    Network = "mainnet"
	Testnet    Network = "testnet"
)

// ParseNetwork reads "mainnet" and "testnet"; the empty text is AnyNetwork.
//
// Errors: CodeInvalidField, of p_network.
func ParseNetwork(s string) (Network, error) {
	switch n := Network(s); n {
	case AnyNetwork, Mainnet, Testnet:
		return n, nil
	}
	return "", Errorf(CodeInvalidField, "must be \"mainnet\" or \"testnet\"").In("p_network")
}

// SLA selects packets that are late: neither acknowledged nor timed out, though the sla of their channel has passed
// since they were sent (DefaultSLA where the channel has none).
type SLA string

const (
	AnySLA           SLA = ""
	ExceedingAll     SLA = "all"
	ExceedingMainnet SLA = "mainnet"
	ExceedingTestnet SLA = "testnet"
)

// DefaultSLA is how long a packet may take on a channel without an sla.
const DefaultSLA = time.Hour

// ParseSLA reads "all", "mainnet" and "testnet"; the empty text is AnySLA.
//
// Errors: CodeInvalidField, of p_exceeding_sla.
func ParseSLA(s string) (SLA, error) {
	switch sla := SLA(s); sla {
	case AnySLA, ExceedingAll, ExceedingMainnet, ExceedingTestnet:
		return sla, nil
	}
	return "", Errorf(CodeInvalidField, "must be \"all\", \"mainnet\" or \"testnet\"").In("p_exceeding_sla")
}

// TransferQuery selects transfers. Members restrict together; zero members do not restrict. Hashes and addresses
// match whatever the case of their hex digits.
type TransferQuery struct {
	Page
	// Addresses match a transfer whose sender_canonical or receiver_canonical is one of them. nil does not
	// restrict; an empty list that is not nil matches nothing. More than MaxAddresses are CodeInvalidField.
	Addresses        []string
	TransactionHash  string // of the sending transaction
	PacketHash       string
	TransferIndex    *int32
	BlockHash        string // of the block that the packet was sent in
	SourceChain      string // universal chain id
	DestinationChain string // universal chain id
	Network          Network
}

// MaxAddresses is how many addresses a TransferQuery may have.
const MaxAddresses = 100

// PacketQuery selects packets. Members restrict together; zero members do not restrict.
type PacketQuery struct {
	Page
	TransactionHash  string // of the sending transaction
	PacketHash       string
	BlockHash        string // of the block that the packet was sent in
	SourceChain      string // universal chain id
	DestinationChain string // universal chain id
	Network          Network
	Exceeding        SLA
	Sent             time.Time // exactly this packet_send_timestamp
}

// TokenQuery selects tokens. Zero members do not restrict.
type TokenQuery struct {
	Chain     string // universal chain id
	Denom     string
	Whitelist *bool // only tokens that are, or are not, on the whitelist
}

// ChainQuery selects chains.
type ChainQuery struct {
	Page
	Chain string // universal chain id
}

// ChannelQuery selects channels. Zero members do not restrict.
type ChannelQuery struct {
	Page
	Source, Destination End
	SourceChannel       *int32
	DestinationChannel  *int32
	SourcePort          string
	DestinationPort     string
	Version             string
	Tags                []string // channels that have all of these
	Recommended         *bool
}

// End is one end of a connection or channel. Zero members do not restrict.
type End struct {
	Chain      string // universal chain id
	Client     *int32
	Connection *int32
}

// ClientQuery selects light clients. Zero members do not restrict.
type ClientQuery struct {
	Page
	Chain        string // the universal chain id where the client lives
	Counterparty string // the universal chain id that it follows
	Client       *int32
}

// ConnectionQuery selects connections. Zero members do not restrict.
type ConnectionQuery struct {
	Page
	Source, Destination End
}

// DayQuery selects daily counts.
type DayQuery struct {
	DaysBack         *int32 // the last so many UTC days, today included; nil means all; below 1 is CodeInvalidField
	SourceChain      string // only for counts by chain
	DestinationChain string // only for counts by chain
}

// LatencyQuery selects latencies. Zero members do not restrict.
type LatencyQuery struct {
	SourceChain      string
	DestinationChain string
	Phase            Phase
}

// Phase is a part of a packet's way, counted from its sending.
type Phase string

const (
	AnyPhase        Phase = ""
	PhasePacketRecv Phase = "packet_recv"
	PhaseWriteAck   Phase = "write_ack"
	PhasePacketAck  Phase = "packet_ack"
)

// ParsePhase reads a Phase, also written as the field that shows it (secs_until_packet_recv) or in capitals as in a
// trace (PACKET_RECV).
//
// Errors: CodeInvalidField, of p_phase.
func ParsePhase(s string) (Phase, error) {
	switch s {
	case "":
		return AnyPhase, nil
	case "packet_recv", "secs_until_packet_recv", TracePacketRecv:
		return PhasePacketRecv, nil
	case "write_ack", "secs_until_write_ack", TraceWriteAck:
		return PhaseWriteAck, nil
	case "packet_ack", "secs_until_packet_ack", TracePacketAck:
		return PhasePacketAck, nil
	}
	return "", Errorf(CodeInvalidField, "must be packet_recv, write_ack or packet_ack").In("p_phase")
}

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

// Latency holds percentiles of the seconds from a packet's sending until …. nil where no packet has got there, and
// for phases that the query did not ask for.
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

// IndexStatus tells what an index holds.
type IndexStatus struct {
	Rows    map[string]uint64 `json:"rows"`            // by kind of record
	Bytes   int64             `json:"bytes"`           // on disk
	Newest  time.Time         `json:"newest,omitzero"` // packet_send_timestamp of the newest packet by sort_order; zero where unknown
	Oldest  time.Time         `json:"oldest,omitzero"` // and of the oldest
	Updated time.Time         `json:"updated"`         // when the last batch that changed something was written
	Schema  int               `json:"schema"`          // version of the storage format
	// Unverified is how many records are kept apart.
	Unverified uint64 `json:"unverified"`
}

// ParseInterval reads an interval as a channel's sla has it: hours, minutes and seconds (01:00:00), a number with a
// unit (1 hour, 30 minutes, 2 days), ISO 8601 of that much (PT1H30M), or a Go duration (1h30m).
func ParseInterval(s string) (time.Duration, error) {
	text := strings.ToLower(strings.TrimSpace(s))
	var h, m, sec int
	if n, err := fmt.Sscanf(text, "%d:%d:%d", &h, &m, &sec); err == nil && n == 3 {
		return time.Duration(h)*time.Hour + time.Duration(m)*time.Minute + time.Duration(sec)*time.Second, nil
	}
	text = strings.TrimPrefix(text, "pt")
	if d, err := time.ParseDuration(text); err == nil {
		return d, nil
	}
	var total time.Duration
	words := strings.Fields(text)
	for i := 0; i+1 < len(words); i += 2 {
		n, err := strconv.ParseFloat(words[i], 64)
		unit, known := intervalUnits[strings.TrimSuffix(words[i+1], "s")]
		if err != nil || !known {
			return 0, fmt.Errorf("%q is not an interval", s)
		}
		total += time.Duration(n * float64(unit))
	}
	if len(words) == 0 || len(words)%2 != 0 {
		return 0, fmt.Errorf("%q is not an interval", s)
	}
	return total, nil
}

var intervalUnits = map[string]time.Duration{
	"second": time.Second, "sec": time.Second, "minute": time.Minute, "min": time.Minute, "hour": time.Hour, "day": 24 * time.Hour,
}
