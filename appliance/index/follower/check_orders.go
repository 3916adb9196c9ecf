package follower

import (
	"fmt"
	"math/big"

	"github.com/ethereum/go-ethereum/accounts/abi"

	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/zkgm"
)

// order holds the fields of a packet's token order that its transfer is checked against.
type order struct {
	sender, receiver, baseToken, quoteToken []byte
	baseAmount, quoteAmount                 *big.Int
}

// orders are the token orders of a packet, indexed by transfer_index.
type orders struct {
	list []order
	// carried means that the packet forwards the orders: they end on a different chain than the packet.
	carried bool
	err     error // why the list is empty: the packet's version has no transfers, or its data cannot be read
}

// decodeOrders returns the token orders of a packet: those directly in it or in its batches. If it has no such orders
// and it forwards, decodeOrders returns the forwarded orders. A null channel_version counts as zkgm.ChannelVersion.
//
// The orders are decoded with go-ethereum's abi, independently of the code that generates and displays packets.
func decodeOrders(packet index.Row) *orders {
	o := &orders{}
	o.list, o.carried, o.err = listOrders(packet)
	return o
}

func listOrders(packet index.Row) (list []order, carried bool, err error) {
	if version, ok := packet.Text(index.PacketChannelVersionColumn); ok && version != zkgm.ChannelVersion {
		return nil, false,
			fmt.Errorf("the packet's channel_version is %s, which does not support transfers", show(version))
	}
	data, err := packetData(packet)
	if err != nil {
		return nil, false, err
	}
	// A crafted packet can point to the same bytes again and again, and abi would follow every pointer.
	if p, err := zkgm.Decode(data); err != nil || !p.Instruction.Bounded() {
		return nil, false, fmt.Errorf("the packet's data does not have the format of %s", zkgm.ChannelVersion)
	}
	values, err := packetABI.Unpack(data)
	if err != nil {
		return nil, false, fmt.Errorf("the packet's data does not have the format of %s: %w", zkgm.ChannelVersion, err)
	}
	instruction := values[2].(instructionTuple)
	if list = ordersIn(nil, instruction, false, 0); len(list) > 0 {
		return list, false, nil
	}
	return ordersIn(nil, instruction, true, 0), true, nil
}

// ordersIn appends the orders of an instruction. It skips instructions that cannot be read, as zkgm.Instruction.Orders
// does.
func ordersIn(found []order, i instructionTuple, forwarded bool, depth int) []order {
	shape := shapes[[2]uint8{i.Opcode, i.Version}]
	if shape.arguments == nil || depth >= zkgm.MaxDepth {
		return found
	}
	values, err := shape.arguments.Unpack(i.Operand)
	if err != nil {
		return found
	}
	switch {
	case i.Opcode == zkgm.OpTokenOrder:
		return append(found, order{
			sender: values[0].([]byte), receiver: values[1].([]byte), baseToken: values[2].([]byte),
			baseAmount: values[3].(*big.Int),
			quoteToken: values[shape.quote].([]byte), quoteAmount: values[shape.quote+1].(*big.Int),
		})
	case i.Opcode == zkgm.OpBatch:
		for _, inner := range values[0].([]instructionTuple) {
			found = ordersIn(found, inner, forwarded, depth+1)
		}
	case forwarded:
		found = ordersIn(found, values[3].(instructionTuple), forwarded, depth+1)
	}
	return found
}

// instructionTuple is the type that abi decodes an instruction into.
type instructionTuple = struct {
	Version uint8  `json:"version"`
	Opcode  uint8  `json:"opcode"`
	Operand []byte `json:"operand"`
}

// The encodings of UCS-03.
var (
	packetABI = arguments("bytes32", "uint256", "tuple")

	shapes = map[[2]uint8]struct { // by opcode and version
		arguments abi.Arguments
		quote     int // position of the quote token among a token order's arguments
	}{
		{zkgm.OpForward, 0}: {arguments: arguments("uint256", "uint64", "uint64", "tuple")},
		{zkgm.OpBatch, 0}:   {arguments: arguments("tuple[]")},
		{zkgm.OpTokenOrder, 1}: {quote: 8, arguments: arguments(
			"bytes", "bytes", "bytes", "uint256", "string", "string", "uint8", "uint256", "bytes", "uint256")},
		{zkgm.OpTokenOrder, 2}: {quote: 4,
			arguments: arguments("bytes", "bytes", "bytes", "uint256", "bytes", "uint256", "uint8", "bytes")},
	}
)

// arguments returns the abi arguments for these types; a tuple is an instruction.
func arguments(types ...string) (list abi.Arguments) {
	instruction := []abi.ArgumentMarshaling{{Name: "version", Type: "uint8"}, {Name: "opcode", Type: "uint8"},
		{Name: "operand", Type: "bytes"}}
	for _, t := range types {
		made, err := abi.NewType(t, "", instruction)
		if err != nil { // a constant above is invalid
			panic(err)
		}
		list = append(list, abi.Argument{Type: made})
	}
	return list
}
