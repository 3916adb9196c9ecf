package indexer

import (
	"encoding/hex"
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/attestd/attestd/appliance/chain"
)

// wasmKinds are the events of a CosmWasm core contract that become rows. Newer contracts call packet_timeout
// timeout_packet.
var wasmKinds = map[string]Kind{
	"create_client":       CreateClient,
	"update_client":       UpdateClient,
	"force_update_client": UpdateClient,
	"connection_open_try": ConnectionOpenTry,
	"connection_open_ack": ConnectionOpenAck,
	"channel_open_init":   ChannelOpenInit,
	"channel_open_try":    ChannelOpenTry,
	"channel_open_ack":    ChannelOpenAck,
	"packet_send":         PacketSend,
	"packet_recv":         PacketRecv,
	"intent_packet_recv":  IntentPacketRecv,
	"write_ack":           WriteAck,
	"packet_ack":          PacketAck,
	"packet_timeout":      PacketTimeout,
	"timeout_packet":      PacketTimeout,

	"create_wrapped_token": CreateWrappedToken,
	"token_bucket_update":  TokenBucketUpdate,
}

// DecodeWasm decodes an event of a CosmWasm chain. ok is false for an event that is not read.
//
// Errors: an attribute that is missing or malformed; a packet whose bytes do not have the hash in the event.
func DecodeWasm(w chain.WasmEvent) (e Event, ok bool, err error) {
	kind, known := wasmKinds[w.Name]
	if !known {
		return e, false, nil
	}
	e = Event{Kind: kind, At: Place{Block: w.Block.Number, BlockHash: common.Hash(w.Block.Hash),
		Transaction: common.Hash(w.Transaction), Index: w.Index,
		// PostgreSQL, and so the hosted API, stores microseconds.
		Time: w.Block.Time.UTC().Truncate(time.Microsecond)}}
	a := &attributes{event: &w}
	a.fill(&e)
	e.NativeToken = printable(string(e.Token))
	if a.err == nil && e.Packet != nil && (e.Packet.Hash() != e.PacketHash || e.Packet.SourceChannel != e.Channel) {
		a.err = fmt.Errorf("the packet's bytes have the hash %s, its event says %s", e.Packet.Hash(), e.PacketHash)
	}
	if a.err != nil {
		return Event{}, true, fmt.Errorf("%s in block %d, event %d: %w", w.Name, w.Block.Number, w.Index, a.err)
	}
	return e, true, nil
}

// attributes reads the attributes of an event. err is the first error.
type attributes struct {
	event *chain.WasmEvent
	err   error
}

// fill sets the fields of the event's kind.
func (a *attributes) fill(e *Event) {
	switch e.Kind {
	case CreateClient:
		e.Client, e.ClientType, e.CounterpartyChain = a.id("client_id"), a.text("client_type"),
			a.text("counterparty_chain_id")
	case UpdateClient:
		e.Client, e.Height = a.id("client_id"), a.number("counterparty_height", 64)
	case ConnectionOpenTry, ConnectionOpenAck:
		e.Connection, e.Client, e.CounterpartyClient, e.CounterpartyConnection = a.id("connection_id"),
			a.id("client_id"), a.id("counterparty_client_id"), a.id("counterparty_connection_id")
	case ChannelOpenInit, ChannelOpenTry, ChannelOpenAck:
		e.Channel, e.Connection = a.id("channel_id"), a.id("connection_id")
		e.Port, e.CounterpartyPort = []byte(a.text("port_id")), a.hex("counterparty_port_id")
		switch e.Kind {
		case ChannelOpenInit:
			e.Version = a.text("version")
			return
		case ChannelOpenTry:
			e.Version = a.text("counterparty_version")
		}
		e.CounterpartyChannel = a.id("counterparty_channel_id")
	case CreateWrappedToken:
		e.Channel, e.BaseToken, e.Metadata = a.id("channel_id"), a.hex("base_token"), a.hex("metadata")
		e.Token = a.denom(a.hex("quote_token"))
	case TokenBucketUpdate:
		e.Token, e.Capacity, e.RefillRate = []byte(a.text("denom")), a.amount("capacity"), a.amount("refill_rate")
	default:
		a.packet(e)
	}
}

// denom returns the denomination of a wrapped token. Osmosis has tokens of its token factory, of which the event has
// the last part only.
func (a *attributes) denom(quoteToken []byte) []byte {
	if minter := a.event.Contract(); strings.HasPrefix(minter, "osmo1") {
		return []byte("factory/" + minter + "/" + string(quoteToken))
	}
	return quoteToken
}

// packet sets the fields of an event about a packet.
func (a *attributes) packet(e *Event) {
	e.Channel = a.id("channel_id")
	if hash := a.hex("packet_hash"); len(hash) == common.HashLength {
		e.PacketHash = common.Hash(hash)
	} else {
		a.fail("packet_hash", "has %d bytes instead of %d", len(hash), common.HashLength)
	}
	switch e.Kind {
	case PacketSend:
		e.Packet = &Packet{a.id("packet_source_channel_id"), a.id("packet_destination_channel_id"),
			a.hex("packet_data"), a.number("packet_timeout_height", 64), a.number("packet_timeout_timestamp", 64)}
	case PacketRecv, IntentPacketRecv:
		e.Maker, e.MakerMessage = []byte(a.text("maker")), a.hex("maker_msg")
	case WriteAck:
		e.Acknowledgement = a.hex("acknowledgement")
	case PacketAck:
		e.Acknowledgement, e.Maker = a.hex("acknowledgement"), []byte(a.text("maker"))
	case PacketTimeout:
		e.Maker = []byte(a.text("maker"))
	}
}

func (a *attributes) fail(key, format string, args ...any) {
	if a.err == nil {
		a.err = fmt.Errorf("attribute %s "+format, append([]any{key}, args...)...)
	}
}

func (a *attributes) text(key string) string {
	value, ok := a.event.Get(key)
	if !ok {
		a.fail(key, "is missing")
	}
	return value
}

func (a *attributes) number(key string, bits int) uint64 {
	value := a.text(key)
	n, err := strconv.ParseUint(value, 10, bits)
	if err != nil {
		a.fail(key, "is %.40q, which is not a number of %d bits", value, bits)
	}
	return n
}

func (a *attributes) amount(key string) *big.Int {
	n, ok := new(big.Int).SetString(a.text(key), 10)
	if !ok || n.Sign() < 0 {
		a.fail(key, "is not an amount")
	}
	return n
}

func (a *attributes) id(key string) uint32 { return uint32(a.number(key, 32)) }

// hex decodes hex, which has a prefix 0x in some attributes.
func (a *attributes) hex(key string) []byte {
	value := a.text(key)
	raw, err := hex.DecodeString(strings.TrimPrefix(value, "0x"))
	if err != nil {
		a.fail(key, "is %.40q, which is not hex", value)
	}
	return raw
}
