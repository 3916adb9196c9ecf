package zkgm

import "strconv"

// Placed is an instruction with its position in a packet.
type Placed struct {
	Instruction
	Place string // _index of AppendFlatJSON
	Type  string // _type of AppendJSON
	// Call is the decoded operand of a call; nil for other instructions.
	Call *Call
}

// Instructions returns the packet's instructions in the order of AppendFlatJSON.
func (p Packet) Instructions() []Placed {
	return p.Instruction.placed(nil, &budget{left: shareOf(p.Instruction.Operand)}, "", 0)
}

func (i Instruction) placed(found []Placed, b *budget, place string, depth int) []Placed {
	at := Placed{Instruction: i, Place: place, Type: "Unknown"}
	o, ok := b.open(i, depth)
	if !ok {
		return append(found, at)
	}
	at.Type = typeNames[o.name()]
	var inside []Instruction
	switch o := o.(type) {
	case *Call:
		at.Call = o
	case *Forward:
		inside = []Instruction{o.Next}
	case *Batch:
		inside = o.Instructions
	}
	found = append(found, at)
	for n, inner := range inside {
		if b.left < 0 {
			break
		}
		innerPlace := strconv.Itoa(n)
		if place != "" {
			innerPlace = place + "." + innerPlace
		}
		found = inner.placed(found, b, innerPlace, depth+1)
	}
	return found
}

// AppendJSON appends the instruction as in Packet.AppendJSON.
func (i Instruction) AppendJSON(dst []byte) []byte {
	return i.appendJSON(dst, &budget{left: shareOf(i.Operand)}, 0)
}

// AppendOperandJSON appends the operand alone.
func (i Instruction) AppendOperandJSON(dst []byte) []byte {
	return append(i.appendOperand(append(dst, '{'), &budget{left: shareOf(i.Operand)}), '}')
}
