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

// InstructionQuery selects the instructions of packets. Its conditions combine with AND; zero fields do not restrict.
type InstructionQuery struct {
	Page
	Sender          string // of a call, as bytes in the protocol in 0x-hex
	Contract        string // the called contract, as bytes in the protocol in 0x-hex
	TransactionHash string // of the sending transaction
	PacketHash      string
	BlockHash       string // of the block that the packet was sent in
	Network         Network
}

// ownOfInstruction holds the fields of an instruction's row that its packet does not have. The packet's fields keep
// their numbers.
type ownOfInstruction struct {
	Instruction     json.RawMessage `json:"instruction"`
	InstructionHash *string         `json:"instruction_hash"` // keccak256 of its ABI encoding
	Path            *string         `json:"path"`             // of the packet
	Salt            *string         `json:"salt"`             // of the packet
	InstructionPath *string         `json:"instruction_path"` // its position in the packet
	Version         *int32          `json:"version"`
	Opcode          *int32          `json:"opcode"`
	Operand         json.RawMessage `json:"operand"`
	InstructionType *string         `json:"instruction_type"`
	InstructionIdx  *string         `json:"instruction_index"` // number of instructions before it in the packet
}

// InstructionType is the type of instructions. Their rows are built from packets on request.
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
		if f.Kind != FieldList { // lists are left out: the only one is the traces, which are last
			add(PacketType.goType.Field(f.member))
		}
	}
	own := reflect.TypeFor[ownOfInstruction]()
	for i := range own.NumField() {
		add(own.Field(i))
	}
	return reflect.StructOf(fields)
}

// instructionOrder returns the sort_order of an instruction. The space sorts below any character that may extend a
// packet's sort_order.
func instructionOrder(packet string, number int) string {
	return fmt.Sprintf("%s %06d", packet, number)
}

// PacketOfInstruction returns the sort_order of the packet of an instruction, given the instruction's sort_order.
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

// Instructions builds the rows of a packet's instructions that match the query, the last one first. A packet that
// cannot be decoded yields no rows.
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

// calls reports whether an instruction matches Sender and Contract.
func (q InstructionQuery) calls(c *zkgm.Call) bool {
	if q.Sender == "" && q.Contract == "" {
		return true
	}
	return c != nil && (q.Sender == "" || strings.EqualFold(q.Sender, hexOf(c.Sender))) &&
		(q.Contract == "" || strings.EqualFold(q.Contract, hexOf(c.ContractAddress)))
}

// packetValues returns the values of a packet. It omits decoded fields that Row.AppendJSON computes from the data.
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
