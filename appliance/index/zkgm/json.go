package zkgm

import (
	"encoding/hex"
	"encoding/json"
	"math/big"
	"strconv"
)

// AppendJSON appends the packet as a JSON object: salt, path and instruction. Members have the names of the fields of
// UCS-03. Bytes are 0x-hex; amounts, heights, times and paths are decimal text; each operand has its _type. An operand
// that cannot be decoded is {"_type":"Unknown","operand":"0x…"}.
func (p Packet) AppendJSON(dst []byte) []byte {
	b := &budget{left: shareOf(p.Instruction.Operand)}
	dst = appendHex(append(dst, `{"salt":`...), p.Salt[:])
	dst = appendBig(append(dst, `,"path":`...), p.Path)
	dst = p.Instruction.appendJSON(append(dst, `,"instruction":`...), b, 0)
	return append(dst, '}')
}

func (i Instruction) appendJSON(dst []byte, b *budget, depth int) []byte {
	dst = i.appendHead(append(dst, '{'))
	dst = append(dst, `,"operand":{`...)
	b.depth = depth
	dst = i.appendOperand(dst, b)
	return append(dst, '}', '}')
}

func (i Instruction) appendHead(dst []byte) []byte {
	dst = strconv.AppendInt(append(dst, `"opcode":`...), int64(i.Opcode), 10)
	return strconv.AppendInt(append(dst, `,"version":`...), int64(i.Version), 10)
}

// appendOperand appends the members of the operand, _type first.
func (i Instruction) appendOperand(dst []byte, b *budget) []byte {
	o, ok := b.open(i, b.depth)
	if !ok {
		return i.appendUnknown(dst, b)
	}
	dst = append(dst, `"_type":"`...)
	dst = append(dst, typeNames[o.name()]...)
	dst = append(dst, '"')
	return o.appendMembers(dst, b)
}

// appendUnknown appends an operand's bytes, unless the budget is exhausted.
func (i Instruction) appendUnknown(dst []byte, b *budget) []byte {
	dst = append(dst, `"_type":"Unknown"`...)
	if b.left < 0 {
		return dst
	}
	return appendHex(append(dst, `,"operand":`...), i.Operand)
}

var typeNames = map[string]string{"forward": "Forward", "call": "Call", "batch": "Batch", "token_order": "TokenOrder"}

func (f *Forward) appendMembers(dst []byte, b *budget) []byte {
	dst = appendBig(append(dst, `,"path":`...), f.Path)
	dst = appendUint(append(dst, `,"timeoutHeight":`...), f.TimeoutHeight)
	dst = appendUint(append(dst, `,"timeoutTimestamp":`...), f.TimeoutTimestamp)
	return f.Next.appendJSON(append(dst, `,"instruction":`...), b, b.depth+1)
}

func (c *Call) appendMembers(dst []byte, _ *budget) []byte {
	dst = appendHex(append(dst, `,"sender":`...), c.Sender)
	dst = strconv.AppendBool(append(dst, `,"eureka":`...), c.Eureka)
	dst = appendHex(append(dst, `,"contractAddress":`...), c.ContractAddress)
	return appendHex(append(dst, `,"contractCalldata":`...), c.ContractCalldata)
}

func (c *Batch) appendMembers(dst []byte, b *budget) []byte {
	dst = append(dst, `,"instructions":[`...)
	depth := b.depth
	for n, i := range c.Instructions {
		if b.left < 0 {
			break
		}
		if n > 0 {
			dst = append(dst, ',')
		}
		dst = i.appendJSON(dst, b, depth+1)
	}
	return append(dst, ']')
}

func (t *TokenOrderV1) appendMembers(dst []byte, _ *budget) []byte {
	dst = appendHex(append(dst, `,"sender":`...), t.Sender)
	dst = appendHex(append(dst, `,"receiver":`...), t.Receiver)
	dst = appendHex(append(dst, `,"baseToken":`...), t.BaseToken)
	dst = appendBig(append(dst, `,"baseAmount":`...), t.BaseAmount)
	dst = appendText(append(dst, `,"baseTokenSymbol":`...), t.BaseTokenSymbol)
	dst = appendText(append(dst, `,"baseTokenName":`...), t.BaseTokenName)
	dst = strconv.AppendInt(append(dst, `,"baseTokenDecimals":`...), int64(t.BaseTokenDecimals), 10)
	dst = appendBig(append(dst, `,"baseTokenPath":`...), t.BaseTokenPath)
	dst = appendHex(append(dst, `,"quoteToken":`...), t.QuoteToken)
	return appendBig(append(dst, `,"quoteAmount":`...), t.QuoteAmount)
}

func (t *TokenOrderV2) appendMembers(dst []byte, _ *budget) []byte {
	dst = appendHex(append(dst, `,"sender":`...), t.Sender)
	dst = appendHex(append(dst, `,"receiver":`...), t.Receiver)
	dst = appendHex(append(dst, `,"baseToken":`...), t.BaseToken)
	dst = appendBig(append(dst, `,"baseAmount":`...), t.BaseAmount)
	dst = appendHex(append(dst, `,"quoteToken":`...), t.QuoteToken)
	dst = appendBig(append(dst, `,"quoteAmount":`...), t.QuoteAmount)
	dst = strconv.AppendInt(append(dst, `,"kind":`...), int64(t.Kind), 10)
	return appendHex(append(dst, `,"metadata":`...), t.Metadata)
}

// AppendFlatJSON appends the packet's instructions as a JSON array in depth-first order, containers first. Each has its
// position as _index: "" for the packet's own, "0" for the first inside it, "0.1" for the second inside the latter. The
// operand of a container does not repeat its contents.
func (p Packet) AppendFlatJSON(dst []byte) []byte {
	b := &budget{left: shareOf(p.Instruction.Operand)}
	dst = p.Instruction.appendFlat(append(dst, '['), b, "", 0)
	return append(dst, ']')
}

func (i Instruction) appendFlat(dst []byte, b *budget, place string, depth int) []byte {
	if depth > 0 {
		dst = append(dst, ',')
	}
	dst = appendText(append(dst, `{"_index":`...), place)
	dst = i.appendHead(append(dst, ','))
	dst = append(dst, `,"operand":{`...)
	var inside []Instruction
	o, ok := b.open(i, depth)
	if !ok {
		dst = i.appendUnknown(dst, b)
	} else {
		dst = append(dst, `"_type":"`+typeNames[o.name()]+`"`...)
		switch o := o.(type) {
		case *Forward:
			dst = appendBig(append(dst, `,"path":`...), o.Path)
			dst = appendUint(append(dst, `,"timeoutHeight":`...), o.TimeoutHeight)
			dst = appendUint(append(dst, `,"timeoutTimestamp":`...), o.TimeoutTimestamp)
			inside = []Instruction{o.Next}
		case *Batch:
			inside = o.Instructions
		default:
			dst = o.appendMembers(dst, b)
		}
	}
	dst = append(dst, '}', '}')
	for n, inner := range inside {
		if b.left < 0 {
			break
		}
		at := strconv.Itoa(n)
		if place != "" {
			at = place + "." + at
		}
		dst = inner.appendFlat(dst, b, at, depth+1)
	}
	return dst
}

func appendHex(dst, b []byte) []byte {
	dst = hex.AppendEncode(append(dst, `"0x`...), b)
	return append(dst, '"')
}

func appendBig(dst []byte, n *big.Int) []byte {
	if n == nil {
		return append(dst, `"0"`...)
	}
	return append(n.Append(append(dst, '"'), 10), '"')
}

func appendUint(dst []byte, n uint64) []byte {
	return append(strconv.AppendUint(append(dst, '"'), n, 10), '"')
}

func appendText(dst []byte, s string) []byte {
	quoted, err := json.Marshal(s)
	if err != nil { // text always marshals
		panic(err)
	}
	return append(dst, quoted...)
}
