// Package zkgm reads and writes packets of the multi-asset transfer protocol ucs03-zkgm-0 (UCS-03): token orders,
// calls, forwards and batches of them, and their acknowledgements, in Solidity's ABI encoding.
package zkgm

import (
	"errors"
	"math/big"
	"strconv"

	"github.com/ethereum/go-ethereum/crypto"
)

// ChannelVersion is the version of channels with packets of this protocol.
const ChannelVersion = "ucs03-zkgm-0"

// Packet is the data of a packet on a channel.
type Packet struct {
	Salt        [32]byte
	Path        *big.Int // channel ids of 32 bits each, the lowest first
	Instruction Instruction
}

// Instruction is the request in a packet. Version and Opcode determine the type of Operand; see Operation.
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

// TokenOrderV1 is a transfer: the sender gives base tokens, the receiver gets quote tokens.
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

// TokenOrderV2 is the newer form of TokenOrderV1.
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

// PacketHash returns the hash that identifies a packet: keccak256 of the ABI encoding of IBCPacket[] with the one
// packet. timeoutTimestamp is in nanoseconds since 1970.
func PacketHash(sourceChannel, destinationChannel uint32, data []byte, timeoutHeight,
	timeoutTimestamp uint64) [32]byte {
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

// Decode decodes a packet's data. The packet shares its memory.
func Decode(data []byte) (Packet, error) {
	r := reader{in: data}
	p := Packet{Salt: [32]byte(r.word()), Path: r.big()}
	p.Instruction = decodeInstruction(&r)
	return p, r.err
}

// Encode returns the ABI encoding, in which contracts take the instruction.
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
// Errors: ErrUnknownInstruction; another error if the operand is not the encoding of its type.
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
			Sender: r.bytes(), Receiver: r.bytes(), BaseToken: r.bytes(), BaseAmount: r.big(),
			BaseTokenSymbol: r.text(),
			BaseTokenName:   r.text(), BaseTokenDecimals: uint8(r.uint(8)), BaseTokenPath: r.big(),
			QuoteToken:  r.bytes(),
			QuoteAmount: r.big(),
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
	return Instruction{0, OpForward,
		newWriter(4).big(f.Path).uint(f.TimeoutHeight).uint(f.TimeoutTimestamp).dynamic(f.Next.encode()).encoded()}
}

// Instruction implements Operation.
func (c *Call) Instruction() Instruction {
	return Instruction{0, OpCall,
		newWriter(4).bytes(c.Sender).bool(c.Eureka).bytes(c.ContractAddress).bytes(c.ContractCalldata).encoded()}
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
	return Instruction{1, OpTokenOrder,
		newWriter(10).bytes(t.Sender).bytes(t.Receiver).bytes(t.BaseToken).big(t.BaseAmount).
			bytes([]byte(t.BaseTokenSymbol)).bytes([]byte(t.BaseTokenName)).uint(uint64(t.BaseTokenDecimals)).big(
			t.BaseTokenPath).
			bytes(t.QuoteToken).big(t.QuoteAmount).encoded()}
}

// Instruction implements Operation.
func (t *TokenOrderV2) Instruction() Instruction {
	return Instruction{2, OpTokenOrder,
		newWriter(8).bytes(t.Sender).bytes(t.Receiver).bytes(t.BaseToken).big(t.BaseAmount).
			bytes(t.QuoteToken).big(t.QuoteAmount).uint(uint64(t.Kind)).bytes(t.Metadata).encoded()}
}

func (*Forward) name() string      { return "forward" }
func (*Call) name() string         { return "call" }
func (*Batch) name() string        { return "batch" }
func (*TokenOrderV1) name() string { return "token_order" }
func (*TokenOrderV2) name() string { return "token_order" }

// MaxDepth bounds how deep nested instructions are decoded.
const MaxDepth = 8

// Shape returns the instruction's structure as text: names with versions, contents in parentheses, such as
// batch_v0(token_order_v2,call_v0). An instruction that cannot be decoded is opcode_N_vM.
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

// Orders returns the token orders of an instruction, including those in batches, indexed by transfer_index. An order
// inside a forward belongs to the next packet, so Orders omits it.
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

// Bounded reports whether all nested instructions, down to MaxDepth, can be decoded at a cost proportional to the
// packet's size. If not, Shape and Orders decode only the beginning.
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

// budget bounds the bytes decoded from a packet in total. In an honest encoding, a byte is decoded at most once per
// level of nesting. A crafted packet may refer to the same bytes thousands of times.
type budget struct {
	left  int
	depth int // of the instruction being decoded
}

func shareOf(data []byte) int { return (MaxDepth + 1) * (len(data) + wordSize) }

// open decodes an instruction, unless it is too deep or the budget is exhausted. The cost is proportional to the
// operand, so it is charged first.
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
	Inner   []byte // EncodeBatchAck for a batch, a TokenOrderAck for a token order
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

// TokenOrderAck reports how an order was filled, and by which market maker.
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
