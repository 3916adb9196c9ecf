package index

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/ethereum/go-ethereum/crypto"

	"github.com/attestd/attestd/appliance/index/zkgm"
)

// InstructionQuery selects the instructions of packets. Members restrict together; zero members do not restrict.
type InstructionQuery struct {
	Page
	Sender          string // of a call, as the protocol carries it
	Contract        string // that is called, as the protocol carries it
	TransactionHash string // of the sending transaction
	PacketHash      string
	BlockHash       string // of the block that the packet was sent in
	Network         Network
}

// ownOfInstruction are the fields of an instruction's row beside those of its packet, which have the packet's numbers.
type ownOfInstruction struct {
	Instruction     json.RawMessage `json:"instruction"`
	InstructionHash *string         `json:"instruction_hash"` // keccak256 of its ABI encoding
	Path            *string         `json:"path"`             // of the packet
	Salt            *string         `json:"salt"`             // of the packet
	InstructionPath *string         `json:"instruction_path"` // its place in the packet
	Version         *int32          `json:"version"`
	Opcode          *int32          `json:"opcode"`
	Operand         json.RawMessage `json:"operand"`
	InstructionType *string         `json:"instruction_type"`
	InstructionIdx  *string         `json:"instruction_index"` // how many come before it in the packet
}

// InstructionType is the type of instructions: rows that are made of packets when they are asked for.
var InstructionType = typeOf("instruction", instructionStruct()).betweenChains()

func instructionStruct() reflect.Type {
	var fields []reflect.StructField
	add := func(f reflect.StructField) {
		name := f.Tag.Get("json")
		f.Tag = reflect.StructTag(fmt.Sprintf(`json:%q row:"%d"`, name, len(fields)))
		f.Index, f.Offset = nil, 0
		fields = append(fields, f)
	}
	for _, f := range PacketType.Fields {
		if f.Kind != FieldList { // the traces, which are last
			add(PacketType.goType.Field(f.member))
		}
	}
	own := reflect.TypeFor[ownOfInstruction]()
	for i := range own.NumField() {
		add(own.Field(i))
	}
	return reflect.StructOf(fields)
}

// instructionOrder is the sort_order of an instruction. A blank sorts below what a packet's own may go on with.
func instructionOrder(packet string, number int) string {
	return fmt.Sprintf("%s %06d", packet, number)
}

// PacketOfInstruction returns the sort_order of the packet of an instruction, given that of the instruction.
func PacketOfInstruction(order string) string {
	if at := strings.LastIndexByte(order, ' '); at >= 0 {
		return order[:at]
	}
	return order
}

// CallsOf calls add with each call of a packet.
func CallsOf(packet Row, add func(*zkgm.Call)) {
	p, ok := zkgmOf(packet)
	if !ok {
		return
	}
	for _, i := range p.Instructions() {
		if i.Call != nil {
			add(i.Call)
		}
	}
}

// Instructions makes the rows of a packet's instructions that are asked for, the last one first. A packet that cannot be read
// has none.
func (q InstructionQuery) Instructions(packet Row) ([]Row, error) {
	p, ok := zkgmOf(packet)
	if !ok {
		return nil, nil
	}
	v := packetValues(packet)
	v["salt"], v["path"] = hexOf(p.Salt[:]), p.Path.String()
	placed := p.Instructions()
	var rows []Row
	for n := len(placed) - 1; n >= 0; n-- {
		i := placed[n]
		if !q.calls(i.Call) {
			continue
		}
		v["sort_order"] = instructionOrder(packet.SortOrder(), n)
		v["instruction"] = json.RawMessage(i.AppendJSON(nil))
		v["operand"] = json.RawMessage(i.AppendOperandJSON(nil))
		v["instruction_hash"] = hexOf(crypto.Keccak256(i.Encode()))
		v["instruction_path"], v["instruction_type"], v["instruction_index"] = i.Place, i.Type, strconv.Itoa(n)
		v["version"], v["opcode"] = int32(i.Version), int32(i.Opcode)
		row, err := v.row(InstructionType)
		if err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// calls tells whether an instruction is a call that is asked for.
func (q InstructionQuery) calls(c *zkgm.Call) bool {
	if q.Sender == "" && q.Contract == "" {
		return true
	}
	return c != nil && (q.Sender == "" || strings.EqualFold(q.Sender, hexOf(c.Sender))) &&
		(q.Contract == "" || strings.EqualFold(q.Contract, hexOf(c.ContractAddress)))
}

// packetValues are the values of a packet. Of what can be made from its data there is nothing: Row.AppendJSON makes it.
func packetValues(packet Row) values {
	v := values{}
	for _, f := range PacketType.Fields {
		switch f.Kind {
		case FieldText:
			v.text(f.Name, packet, f.Number)
		case FieldTime:
			v.time(f.Name, packet, f.Number)
		case FieldInt:
			if n, ok := packet.Int(f.Number); ok {
				v[f.Name] = n
			}
		case FieldBool:
			if b, ok := packet.Bool(f.Number); ok {
				v[f.Name] = b
			}
		case FieldJSON:
			if raw := packet.value(f.Number); len(raw) > 0 {
				v[f.Name] = json.RawMessage(raw)
			}
		}
	}
	return v
}
