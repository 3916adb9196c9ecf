package index

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/attestd/attestd/appliance"
)

// Page limits of the hosted API, which its clients rely on.
const (
	DefaultLimit = 100
	MaxLimit     = 100
)

// Direction is the direction of a page from its cursor.
type Direction uint8

const (
	Older Direction = iota // "lt": sort_order below the cursor, descending
	Newer                  // "gt": sort_order above the cursor, ascending
)

// ParseDirection parses "lt" and "gt"; the empty text is Older.
//
// Errors: CodeInvalidField, of p_comparison.
func ParseDirection(s string) (Direction, error) {
	switch s {
	case "", "lt":
		return Older, nil
	case "gt":
		return Newer, nil
	}
	return Older,
		appliance.Errorf(appliance.CodeInvalidField, "must be \"lt\" (older) or \"gt\" (newer)").In("p_comparison")
}

// Page selects a part of a list. The cursor need not be the sort_order of an existing row.
type Page struct {
	Limit     *int32    // nil means DefaultLimit; above MaxLimit means MaxLimit
	Cursor    string    // a sort_order; empty means from the newest, descending, regardless of the direction
	Direction Direction // zero means Older
}

// Size returns the largest number of rows on the page.
//
// Errors: CodeInvalidField, of p_limit, for zero and below.
func (p Page) Size() (int, error) {
	switch {
	case p.Limit == nil:
		return DefaultLimit, nil
	case *p.Limit <= 0:
		return 0, appliance.Errorf(appliance.CodeInvalidField, "must be 1 to %d", MaxLimit).In("p_limit")
	}
	return min(int(*p.Limit), MaxLimit), nil
}

// Ascending reports whether the page's rows are in ascending order.
func (p Page) Ascending() bool { return p.Direction == Newer && p.Cursor != "" }

// Network is mainnet or testnet, as the source chain's testnet flag determines. A chain without the flag, or without a
// row, counts as mainnet.
type Network string

const (
	AnyNetwork Network = ""
	Mainnet    Network = "mainnet"
	Testnet    Network = "testnet"
)

// ParseNetwork parses "mainnet" and "testnet"; the empty text is AnyNetwork.
//
// Errors: CodeInvalidField, of p_network.
func ParseNetwork(s string) (Network, error) {
	switch n := Network(s); n {
	case AnyNetwork, Mainnet, Testnet:
		return n, nil
	}
	return "", appliance.Errorf(appliance.CodeInvalidField, "must be \"mainnet\" or \"testnet\"").In("p_network")
}

// SLA selects late packets: neither acknowledged nor timed out, although the sla of their channel has passed since they
// were sent (DefaultSLA if the channel does not have an sla).
type SLA string

const (
	AnySLA           SLA = ""
	ExceedingAll     SLA = "all"
	ExceedingMainnet SLA = "mainnet"
	ExceedingTestnet SLA = "testnet"
)

// DefaultSLA is how long a packet may take on a channel without an sla.
const DefaultSLA = time.Hour

// ParseSLA parses "all", "mainnet" and "testnet"; the empty text is AnySLA.
//
// Errors: CodeInvalidField, of p_exceeding_sla.
func ParseSLA(s string) (SLA, error) {
	switch sla := SLA(s); sla {
	case AnySLA, ExceedingAll, ExceedingMainnet, ExceedingTestnet:
		return sla, nil
	}
	return "", appliance.Errorf(appliance.CodeInvalidField,
		"must be \"all\", \"mainnet\" or \"testnet\"").In("p_exceeding_sla")
}

// TransferQuery selects transfers. Its conditions combine with AND; zero fields do not restrict. Hashes and addresses
// match regardless of the case of their hex digits.
type TransferQuery struct {
	Page
	// Addresses selects transfers with one of these as sender_canonical or receiver_canonical. nil does not restrict;
	// an empty list that is not nil matches no transfer. More than MaxAddresses are CodeInvalidField.
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

// PacketQuery selects packets. Its conditions combine with AND; zero fields do not restrict.
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

// TokenQuery selects tokens. Zero fields do not restrict.
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

// ChannelQuery selects channels. Zero fields do not restrict.
type ChannelQuery struct {
	Page
	Source, Destination End
	SourceChannel       *int32
	DestinationChannel  *int32
	SourcePort          string
	DestinationPort     string
	Version             string
	// channels with one of these; nil does not restrict, an empty list that is not nil matches no channel
	Tags        []string
	Recommended *bool
}

// End is one end of a connection or channel. Zero fields do not restrict.
type End struct {
	Chain      string // universal chain id
	Client     *int32
	Connection *int32
}

// ClientQuery selects light clients. Zero fields do not restrict.
type ClientQuery struct {
	Page
	Chain        string // universal chain id of the client's own chain
	Counterparty string // universal chain id of the chain that it follows
	Client       *int32
}

// ConnectionQuery selects connections. Zero fields do not restrict.
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

// LatencyQuery selects latencies. Zero fields do not restrict.
type LatencyQuery struct {
	SourceChain      string
	DestinationChain string
	Phase            Phase
}

// Phase is a stage of a packet's journey, measured from its sending.
type Phase string

const (
	AnyPhase        Phase = ""
	PhasePacketRecv Phase = "packet_recv"
	PhaseWriteAck   Phase = "write_ack"
	PhasePacketAck  Phase = "packet_ack"
)

// ParsePhase parses a Phase. It also accepts the name of the field that shows it (secs_until_packet_recv) and the type
// of its trace (PACKET_RECV).
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
	return "",
		appliance.Errorf(appliance.CodeInvalidField, "must be packet_recv, write_ack or packet_ack").In("p_phase")
}

// ParseInterval parses an interval such as a channel's sla: hours, minutes and seconds (01:00:00), a number with a unit
// (1 hour, 30 minutes, 2 days), the time part of ISO 8601 (PT1H30M), or a Go duration (1h30m).
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
	"second": time.Second, "sec": time.Second, "minute": time.Minute, "min": time.Minute, "hour": time.Hour,
	"day": 24 * time.Hour,
}
