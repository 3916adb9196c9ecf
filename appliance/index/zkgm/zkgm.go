// Package zkgm reads and writes the packets of the multi-asset transfer protocol ucs03-zkgm-0 (UCS-03): token orders,
// calls, forwards and batches of them, and their acknowledgements, in Solidity's ABI encoding.
package zkgm

import (
	"errors"
	"math/big"
	"strconv"

	"github.com/ethereum/go-ethereum/crypto"
)

// ChannelVersion is the version of the channels whose packets are of this protocol.
const ChannelVersion = "ucs03-zkgm-0"

// Packet is the data of a packet on a channel.
type Packet struct {
	Salt        [32]byte
	Path        *big.Int // channel ids of 32 bits each, the lowest first
	Instruction Instruction
}

// Instruction is what a packet asks for. Version and Opcode say how Operand is to be read; see Operation.
type Instruction struct {
	Version, Opcode uint8
	Operand         []byte
}

// The opcodes.
const (
	OpForward    = 0
	OpCall       = 1
	OpBatch      = 2
	OpTokenOrder = 3
)

// Operation is a decoded operand: a *Forward, *Call, *Batch, *TokenOrderV1 or *TokenOrderV2.
type Operation interface {
	// Instruction returns the instruction with the operation as its operand.
	Instruction() Instruction
	name() string
	appendMembers(dst []byte, b *budget) []byte
}

// Forward passes an instruction on to the next chain of a path.
type Forward struct {
	Path             *big.Int
	TimeoutHeight    uint64
	TimeoutTimestamp uint64 // nanoseconds since 1970
	Next             Instruction
}

// Call calls a contract.
type Call struct {
	Sender           []byte
	Eureka           bool
	ContractAddress  []byte
	ContractCalldata []byte
}

// Batch is several instructions that succeed or fail together.
type Batch struct{ Instructions []Instruction }

// TokenOrderV1 is a transfer: base tokens of the sender's for quote tokens to the receiver.
type TokenOrderV1 struct {
	Sender, Receiver  []byte
	BaseToken         []byte
	BaseAmount        *big.Int
	BaseTokenSymbol   string
	BaseTokenName     string
	BaseTokenDecimals uint8
	BaseTokenPath     *big.Int
	QuoteToken        []byte
	QuoteAmount       *big.Int
}

// TokenOrderV2 is a transfer as well.
type TokenOrderV2 struct {
	Sender, Receiver []byte
	BaseToken        []byte
	BaseAmount       *big.Int
	QuoteToken       []byte
	QuoteAmount      *big.Int
	Kind             uint8
	Metadata         []byte
}

// The kinds of a TokenOrderV2.
const (
	OrderInitialize = 0
	OrderEscrow     = 1
	OrderUnescrow   = 2
	OrderSolve      = 3
)

// PacketHash returns the hash that names a packet: keccak256 of the ABI encoding of IBCPacket[] with the one packet.
// timeoutTimestamp is in nanoseconds since 1970.
func PacketHash(sourceChannel, destinationChannel uint32, data []byte, timeoutHeight, timeoutTimestamp uint64) [32]byte {
	packet := newWriter(5).uint(uint64(sourceChannel)).uint(uint64(destinationChannel)).bytes(data).
		uint(timeoutHeight).uint(timeoutTimestamp).encoded()
	list := newWriter(1).dynamic(packet).encoded()
	count := newWriter(1).uint(1).encoded()
	return crypto.Keccak256Hash(newWriter(1).dynamic(append(count, list...)).encoded())
}

// Encode returns the packet's data.
func (p Packet) Encode() []byte {
	return newWriter(3).word(p.Salt).big(p.Path).dynamic(p.Instruction.encode()).encoded()
}

// Decode reads a packet's data. The packet shares its memory.
func Decode(data []byte) (Packet, error) {
	r := reader{in: data}
	p := Packet{Salt: [32]byte(r.word()), Path: r.big()}
	p.Instruction = decodeInstruction(&r)
	return p, r.err
}

// Encode returns the ABI encoding, as a contract that sends the instruction takes it.
func (i Instruction) Encode() []byte { return i.encode() }

func (i Instruction) encode() []byte {
	return newWriter(3).uint(uint64(i.Version)).uint(uint64(i.Opcode)).bytes(i.Operand).encoded()
}

func decodeInstruction(r *reader) Instruction {
	tuple := reader{in: r.dynamic(), err: r.err}
	i := readInstruction(&tuple)
	r.err = tuple.err
	return i
}

func readInstruction(r *reader) Instruction {
	return Instruction{Version: uint8(r.uint(8)), Opcode: uint8(r.uint(8)), Operand: r.bytes()}
}

// ErrUnknownInstruction is returned for a version or opcode that UCS-03 does not define.
var ErrUnknownInstruction = errors.New("unknown version or opcode")

// Operation decodes the operand.
//
// Errors: ErrUnknownInstruction, or the operand is not the encoding of its type.
func (i Instruction) Operation() (Operation, error) {
	r := &reader{in: i.Operand}
	var o Operation
	switch [2]uint8{i.Opcode, i.Version} {
	case [2]uint8{OpForward, 0}:
		f := &Forward{Path: r.big(), TimeoutHeight: r.uint(64), TimeoutTimestamp: r.uint(64)}
		f.Next = decodeInstruction(r)
		o = f
	case [2]uint8{OpCall, 0}:
		o = &Call{Sender: r.bytes(), Eureka: r.bool(), ContractAddress: r.bytes(), ContractCalldata: r.bytes()}
	case [2]uint8{OpBatch, 0}:
		b := &Batch{}
		elements, n := r.list()
		for range n {
			b.Instructions = append(b.Instructions, decodeInstruction(elements))
		}
		if r.err == nil {
			r.err = elements.err
		}
		o = b
	case [2]uint8{OpTokenOrder, 1}:
		o = &TokenOrderV1{
			Sender: r.bytes(), Receiver: r.bytes(), BaseToken: r.bytes(), BaseAmount: r.big(), BaseTokenSymbol: r.text(),
			BaseTokenName: r.text(), BaseTokenDecimals: uint8(r.uint(8)), BaseTokenPath: r.big(), QuoteToken: r.bytes(), QuoteAmount: r.big(),
		}
	case [2]uint8{OpTokenOrder, 2}:
		o = &TokenOrderV2{
			Sender: r.bytes(), Receiver: r.bytes(), BaseToken: r.bytes(), BaseAmount: r.big(), QuoteToken: r.bytes(),
			QuoteAmount: r.big(), Kind: uint8(r.uint(8)), Metadata: r.bytes(),
		}
	default:
		return nil, ErrUnknownInstruction
	}
	if r.err != nil {
		return nil, r.err
	}
	return o, nil
}

// Instruction implements Operation.
func (f *Forward) Instruction() Instruction {
	return Instruction{0, OpForward, newWriter(4).big(f.Path).uint(f.TimeoutHeight).uint(f.TimeoutTimestamp).dynamic(f.Next.encode()).encoded()}
}

// Instruction implements Operation.
func (c *Call) Instruction() Instruction {
	return Instruction{0, OpCall, newWriter(4).bytes(c.Sender).bool(c.Eureka).bytes(c.ContractAddress).bytes(c.ContractCalldata).encoded()}
}

// Instruction implements Operation.
func (b *Batch) Instruction() Instruction {
	elements := newWriter(len(b.Instructions))
	for _, i := range b.Instructions {
		elements.dynamic(i.encode())
	}
	count := newWriter(1).uint(uint64(len(b.Instructions))).encoded()
	return Instruction{0, OpBatch, newWriter(1).dynamic(append(count, elements.encoded()...)).encoded()}
}

// Instruction implements Operation.
func (t *TokenOrderV1) Instruction() Instruction {
	return Instruction{1, OpTokenOrder, newWriter(10).bytes(t.Sender).bytes(t.Receiver).bytes(t.BaseToken).big(t.BaseAmount).
		bytes([]byte(t.BaseTokenSymbol)).bytes([]byte(t.BaseTokenName)).uint(uint64(t.BaseTokenDecimals)).big(t.BaseTokenPath).
		bytes(t.QuoteToken).big(t.QuoteAmount).encoded()}
}

// Instruction implements Operation.
func (t *TokenOrderV2) Instruction() Instruction {
	return Instruction{2, OpTokenOrder, newWriter(8).bytes(t.Sender).bytes(t.Receiver).bytes(t.BaseToken).big(t.BaseAmount).
		bytes(t.QuoteToken).big(t.QuoteAmount).uint(uint64(t.Kind)).bytes(t.Metadata).encoded()}
}

func (*Forward) name() string      { return "forward" }
func (*Call) name() string         { return "call" }
func (*Batch) name() string        { return "batch" }
func (*TokenOrderV1) name() string { return "token_order" }
func (*TokenOrderV2) name() string { return "token_order" }

// MaxDepth bounds how deep instructions are followed into each other.
const MaxDepth = 8

// Shape returns the instruction's structure as text: names with versions, what is inside in parentheses, such as
// batch_v0(token_order_v2,call_v0). An instruction that cannot be read is opcode_N_vM.
func (i Instruction) Shape() string { return i.shape(&budget{left: shareOf(i.Operand)}, 0) }

func (i Instruction) shape(b *budget, depth int) string {
	version := "_v" + strconv.Itoa(int(i.Version))
	o, ok := b.open(i, depth)
	if !ok {
		return "opcode_" + strconv.Itoa(int(i.Opcode)) + version
	}
	switch o := o.(type) {
	case *Forward:
		return o.name() + version + "(" + o.Next.shape(b, depth+1) + ")"
	case *Batch:
		text := o.name() + version + "("
		for n, inner := range o.Instructions {
			if n > 0 {
				text += ","
			}
			text += inner.shape(b, depth+1)
		}
		return text + ")"
	}
	return o.name() + version
}

// Orders returns the token orders of an instruction, those in batches in order: the place of each is its transfer_index.
// What a forward carries is an order of the next packet, not of this one.
func (i Instruction) Orders() []Operation { return i.orders(nil, &budget{left: shareOf(i.Operand)}, 0) }

func (i Instruction) orders(found []Operation, b *budget, depth int) []Operation {
	o, ok := b.open(i, depth)
	if !ok {
		return found
	}
	switch o := o.(type) {
	case *TokenOrderV1, *TokenOrderV2:
		return append(found, o)
	case *Batch:
		for _, inner := range o.Instructions {
			found = inner.orders(found, b, depth+1)
		}
	}
	return found
}

// Bounded tells whether all that is in an instruction, down to MaxDepth, can be decoded at a cost in proportion to its
// size. Of one that is not bounded, Shape and Orders read the beginning only.
func (i Instruction) Bounded() bool { return i.bounded(&budget{left: shareOf(i.Operand)}, 0) }

func (i Instruction) bounded(b *budget, depth int) bool {
	o, _ := b.open(i, depth)
	switch o := o.(type) {
	case *Forward:
		return o.Next.bounded(b, depth+1)
	case *Batch:
		for _, inner := range o.Instructions {
			if !inner.bounded(b, depth+1) {
				return false
			}
		}
	}
	return b.left >= 0
}

// budget bounds what is read of a packet in all. In an honest encoding no byte is read more often than instructions are deep;
// a crafted one may point to the same bytes from each of thousands of places.
type budget struct {
	left  int
	depth int // of the instruction that is read
}

func shareOf(data []byte) int { return (MaxDepth + 1) * (len(data) + wordSize) }

// open decodes an instruction, unless it is too deep or the budget is spent: decoding costs in proportion to the operand,
// so it is paid for first.
func (b *budget) open(i Instruction, depth int) (o Operation, ok bool) {
	if depth >= MaxDepth || !b.take(len(i.Operand)) {
		return nil, false
	}
	o, err := i.Operation()
	return o, err == nil
}

func (b *budget) take(n int) bool {
	b.left -= n + wordSize
	return b.left >= 0
}

// Ack is the acknowledgement of a packet.
type Ack struct {
	Success bool
	Inner   []byte // of a batch EncodeBatchAck, of a token order a TokenOrderAck
}

// Encode returns the ABI encoding.
func (a Ack) Encode() []byte { return newWriter(2).bool(a.Success).bytes(a.Inner).encoded() }

// EncodeBatchAck returns the inner acknowledgement of a batch.
func EncodeBatchAck(acks [][]byte) []byte {
	elements := newWriter(len(acks))
	for _, a := range acks {
		elements.bytes(a)
	}
	count := newWriter(1).uint(uint64(len(acks))).encoded()
	return newWriter(1).dynamic(append(count, elements.encoded()...)).encoded()
}

// TokenOrderAck says who filled an order.
type TokenOrderAck struct {
	FillType    uint64 // FillProtocol or FillMarketMaker
	MarketMaker []byte
}

// The fill types.
const (
	FillProtocol    = 0xB0CAD0
	FillMarketMaker = 0xD1CEC45E
)

// Encode returns the ABI encoding.
func (a TokenOrderAck) Encode() []byte {
	return newWriter(2).uint(a.FillType).bytes(a.MarketMaker).encoded()
}
