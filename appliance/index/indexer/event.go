// Package indexer fills an index.Index from the chains themselves: it reads the events of IBC-Union's core contracts
// from the nodes of EVM and CosmWasm chains, and turns them into clients, connections, channels, packets and transfers.
package indexer

import (
	"bytes"
	"fmt"
	"math/big"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/attestd/attestd/appliance/index/zkgm"
)

// Event is an event of a chain's core contract (IBCHandler). Each kind sets some of the fields.
type Event struct {
	Kind Kind
	At   Place

	Client, Connection, Channel                                     uint32
	CounterpartyClient, CounterpartyConnection, CounterpartyChannel uint32
	ClientType, CounterpartyChain                                   string // of CreateClient
	Height                                                          uint64 // of UpdateClient: of the counterparty
	Port, CounterpartyPort                                          []byte
	Version                                                         string
	Packet                                                          *Packet // of PacketSend
	PacketHash                                                      common.Hash
	Maker, MakerMessage, Acknowledgement                            []byte

	Token                []byte   // of CreateWrappedToken and TokenBucketUpdate
	NativeToken          string   // Token as its chain writes it
	BaseToken, Metadata  []byte   // of CreateWrappedToken
	Capacity, RefillRate *big.Int // of TokenBucketUpdate
}

// Place is the position of an event.
type Place struct {
	Chain       string // universal chain id
	Block       uint64
	BlockHash   common.Hash
	Transaction common.Hash // zero for an event of a CosmWasm block itself
	Index       uint        // of the log in its block; on a CosmWasm chain: chain.WasmEvent
	Time        time.Time
}

// Packet is an IBCPacket.
type Packet struct {
	SourceChannel, DestinationChannel uint32
	Data                              []byte
	TimeoutHeight                     uint64
	TimeoutTimestamp                  uint64 // nanoseconds since 1970
}

// Hash returns the hash that identifies the packet.
func (p *Packet) Hash() common.Hash {
	return zkgm.PacketHash(p.SourceChannel, p.DestinationChannel, p.Data, p.TimeoutHeight, p.TimeoutTimestamp)
}

// Kind is the kind of an event: the name of the Solidity event.
type Kind string

// The kinds that become rows.
const (
	CreateClient      Kind = "CreateClient"
	UpdateClient      Kind = "UpdateClient"
	ConnectionOpenTry Kind = "ConnectionOpenTry"
	ConnectionOpenAck Kind = "ConnectionOpenAck"
	ChannelOpenInit   Kind = "ChannelOpenInit"
	ChannelOpenTry    Kind = "ChannelOpenTry"
	ChannelOpenAck    Kind = "ChannelOpenAck"
	PacketSend        Kind = "PacketSend"
	PacketRecv        Kind = "PacketRecv"
	IntentPacketRecv  Kind = "IntentPacketRecv"
	WriteAck          Kind = "WriteAck"
	PacketAck         Kind = "PacketAck"
	PacketTimeout     Kind = "PacketTimeout"
	// CreateWrappedToken is an event of the contract for transfers, or of the minter of a CosmWasm chain.
	CreateWrappedToken Kind = "CreateWrappedToken"
	TokenBucketUpdate  Kind = "TokenBucketUpdate" // of the contract for transfers
)

// form is the Solidity form of an event. The words of the topics after the first are in indexed, in order.
type form struct {
	kind    Kind
	topic   common.Hash
	indexed []string
	data    abi.Arguments
}

const (
	channelAck = "address* portId,uint32* channelId,bytes counterpartyPortId,uint32 counterpartyChannelId," +
		"uint32 connectionId"
	connection   = "uint32* connectionId,uint32* clientId,uint32 counterpartyClientId,uint32 counterpartyConnectionId"
	packetMaker  = "uint32* channelId,bytes32* packetHash,address* maker"
	packetBytes  = "uint32* channelId,bytes32* packetHash"
	ibcPacket    = "(uint32,uint32,bytes,uint64,uint64)"
	makerMessage = packetMaker + ",bytes makerMsg"
)

// forms are the events that are read. * marks an indexed parameter.
var forms = formsOf(map[Kind]string{
	CreateClient:      "string* clientTypeIndex,string clientType,uint32* clientId,string counterpartyChainId",
	UpdateClient:      "uint32* clientId,uint64 height",
	ConnectionOpenTry: connection,
	ConnectionOpenAck: connection,
	ChannelOpenInit: "address* portId,uint32* channelId,bytes counterpartyPortId,uint32 connectionId," +
		"string* versionIndex,string version",
	ChannelOpenTry: "address* portId,uint32* channelId,bytes counterpartyPortId,uint32 counterpartyChannelId," +
		"uint32 connectionId,string* versionIndex,string version",
	ChannelOpenAck:   channelAck,
	PacketSend:       packetBytes + "," + ibcPacket + " packet",
	PacketRecv:       makerMessage,
	IntentPacketRecv: makerMessage,
	WriteAck:         packetBytes + ",bytes acknowledgement",
	PacketAck:        packetBytes + ",bytes acknowledgement,address* maker",
	PacketTimeout:    packetMaker,
	CreateWrappedToken: "uint256 path,uint32* channelId,bytes baseToken,address* quoteToken,bytes metadata," +
		"uint8 kind",
	TokenBucketUpdate: "address* token,uint256 capacity,uint256 refillRate",
})

// Topics returns the first topics of the events that are read.
func Topics() []common.Hash {
	topics := make([]common.Hash, 0, len(forms))
	for topic := range forms {
		topics = append(topics, topic)
	}
	return topics
}

// formsOf parses the parameters of events. It panics on a mistake.
func formsOf(parameters map[Kind]string) map[common.Hash]*form {
	all := make(map[common.Hash]*form)
	for kind, list := range parameters {
		f := &form{kind: kind}
		var signature []string
		for _, parameter := range splitParameters(list) {
			solidity, name, _ := strings.Cut(parameter, " ")
			solidity, isIndexed := strings.CutSuffix(solidity, "*")
			signature = append(signature, solidity)
			if isIndexed {
				f.indexed = append(f.indexed, name)
				continue
			}
			f.data = append(f.data, abi.Argument{Name: name, Type: typeOf(solidity)})
		}
		f.topic = common.BytesToHash(keccak([]byte(string(kind) + "(" + strings.Join(signature, ",") + ")")))
		all[f.topic] = f
	}
	return all
}

// splitParameters splits at the commas outside of parentheses.
func splitParameters(list string) (parts []string) {
	depth, start := 0, 0
	for i, c := range list {
		switch c {
		case '(':
			depth++
		case ')':
			depth--
		case ',':
			if depth == 0 {
				parts, start = append(parts, list[start:i]), i+1
			}
		}
	}
	return append(parts, list[start:])
}

func typeOf(solidity string) abi.Type {
	var members []abi.ArgumentMarshaling
	name := solidity
	if solidity == ibcPacket {
		name = "tuple"
		for i, member := range strings.Split(strings.Trim(solidity, "()"), ",") {
			members = append(members, abi.ArgumentMarshaling{Name: packetMembers[i], Type: member})
		}
	}
	t, err := abi.NewType(name, "", members)
	if err != nil {
		panic(err)
	}
	return t
}

// packetMembers are the names of an IBCPacket's members. The Go members of solidityPacket have the same names.
var packetMembers = []string{"sourceChannelId", "destinationChannelId", "data", "timeoutHeight", "timeoutTimestamp"}

type solidityPacket struct {
	SourceChannelId      uint32 //nolint:revive,staticcheck // the ABI package derives the name
	DestinationChannelId uint32 //nolint:revive,staticcheck // the ABI package derives the name
	Data                 []byte
	TimeoutHeight        uint64
	TimeoutTimestamp     uint64
}

// Decode decodes a log. ok is false for an event that is not read.
//
// Errors: a log that is not the encoding of its event; a packet whose bytes do not have the hash in the topics.
func Decode(l types.Log) (e Event, ok bool, err error) {
	if len(l.Topics) == 0 {
		return e, false, nil
	}
	f := forms[l.Topics[0]]
	if f == nil {
		return e, false, nil
	}
	fail := func(err error) (Event, bool, error) {
		return Event{}, true, fmt.Errorf("%s in transaction %s, log %d: %w", f.kind, l.TxHash, l.Index, err)
	}
	if len(l.Topics) != 1+len(f.indexed) {
		return fail(fmt.Errorf("%d topics instead of %d", len(l.Topics), 1+len(f.indexed)))
	}
	e = Event{Kind: f.kind, At: Place{Block: l.BlockNumber, BlockHash: l.BlockHash, Transaction: l.TxHash,
		Index: l.Index, Time: time.Unix(int64(l.BlockTimestamp), 0).UTC()}}
	for i, name := range f.indexed {
		if err := e.setTopic(name, l.Topics[1+i]); err != nil {
			return fail(err)
		}
	}
	values, err := f.data.Unpack(l.Data)
	if err != nil {
		return fail(err)
	}
	for i, argument := range f.data {
		e.setData(argument.Name, values[i])
	}
	if e.Packet != nil && (e.Packet.Hash() != e.PacketHash || e.Packet.SourceChannel != e.Channel) {
		return fail(fmt.Errorf("the packet's bytes have the hash %s, its topic says %s", e.Packet.Hash(), e.PacketHash))
	}
	return e, true, nil
}

// setTopic sets the field of an indexed parameter. It ignores the hashes of indexed strings, whose text is in the data.
func (e *Event) setTopic(name string, word common.Hash) error {
	switch name {
	case "clientId", "connectionId", "channelId":
		if !bytes.Equal(word[:28], make([]byte, 28)) {
			return fmt.Errorf("%s %s is not an uint32", name, word)
		}
		e.setID(name, uint32(word.Big().Uint64()))
	case "packetHash":
		e.PacketHash = word
	case "portId":
		e.Port = word[12:]
	case "maker":
		e.Maker = word[12:]
	case "token", "quoteToken":
		e.Token, e.NativeToken = word[12:], hexOf(word[12:])
	}
	return nil
}

func (e *Event) setID(name string, id uint32) {
	switch name {
	case "clientId":
		e.Client = id
	case "connectionId":
		e.Connection = id
	case "channelId":
		e.Channel = id
	case "counterpartyClientId":
		e.CounterpartyClient = id
	case "counterpartyConnectionId":
		e.CounterpartyConnection = id
	case "counterpartyChannelId":
		e.CounterpartyChannel = id
	}
}

func (e *Event) setData(name string, value any) {
	switch v := value.(type) {
	case uint32:
		e.setID(name, v)
	case uint64:
		e.Height = v
	case uint8: // kind: who has chosen the implementation
	case *big.Int:
		switch name {
		case "capacity":
			e.Capacity = v
		case "refillRate":
			e.RefillRate = v
		}
	case string:
		switch name {
		case "clientType":
			e.ClientType = v
		case "counterpartyChainId":
			e.CounterpartyChain = v
		case "version":
			e.Version = v
		}
	case []byte:
		switch name {
		case "counterpartyPortId":
			e.CounterpartyPort = v
		case "makerMsg":
			e.MakerMessage = v
		case "acknowledgement":
			e.Acknowledgement = v
		case "baseToken":
			e.BaseToken = v
		case "metadata":
			e.Metadata = v
		}
	default:
		p := *abi.ConvertType(value, new(solidityPacket)).(*solidityPacket)
		e.Packet = &Packet{p.SourceChannelId, p.DestinationChannelId, p.Data, p.TimeoutHeight, p.TimeoutTimestamp}
	}
}
