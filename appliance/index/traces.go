package index

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/bits"
	"slices"
	"strconv"
)

// The traces of a packed packet: their number, a varint, and for each trace:
//
//	byte      4 bits: its number in traceKinds; 2 bits: its chain is the packet's source, its destination or a text of
//	          the dictionary; 2 bits: stepNull, stepAsPacket or stepOwn for all of stepFields, or stepMixed
//	bytes     for chainShared: the number of the chain's text, 2 bytes little-endian
//	byte      for stepMixed: 2 bits for each of stepFields
//	varint    the event index plus 1, or 0 for null; omitted for stepNull
//	values    the trace's own: the bytes of a hash; the difference of a height or time from the packet's, as a zigzag
//	          varint. The difference of a time is shifted left by one bit: a 0 bit follows seconds, a 1 bit nanoseconds.
//
// The packet's values come from the columns traceKind.of. Traces that do not fit this form are stored with the values
// from Type.rare on.

// traceKinds are the types of traces. Each has the packet columns of its step, or of the step that it prepares.
var traceKinds = func() (kinds []traceKind) {
	send, recv, written, acked := stepOf("packet_send"), stepOf("packet_recv"), stepOf("write_ack"),
		stepOf("packet_ack")
	kinds = []traceKind{{TracePacketSend, send}, {TracePacketRecv, recv}, {TraceWriteAck, written},
		{TracePacketAck, acked}}
	for i := range 6 {
		kinds = append(kinds, traceKind{TraceSendUpdate + strconv.Itoa(i), recv},
			traceKind{TraceAckUpdate + strconv.Itoa(i), acked})
	}
	return kinds
}()

type traceKind struct {
	name string
	of   [len(stepFields)]int
}

// stepFields are the fields that traces share with packets.
var stepFields = [...]string{"transaction_hash", "height", "timestamp", "block_hash"}

const (
	stepTransaction = iota
	stepHeight
	stepTime
	stepBlock
)

func stepOf(step string) (columns [len(stepFields)]int) {
	for i, name := range stepFields {
		columns[i] = PacketType.column(step + "_" + name)
	}
	return columns
}

var (
	packetTracesColumn = PacketType.column("traces")

	traceTypeColumn  = TraceType.column("type")
	traceChainColumn = TraceType.column("universal_chain_id")
	traceEventColumn = TraceType.column("event_index")
	traceStepColumns = func() (columns [len(stepFields)]int) {
		for i, name := range stepFields {
			columns[i] = TraceType.column(name)
		}
		return columns
	}()
)

// How a field of a trace is stored, and which chain the trace has.
const (
	stepNull = iota
	stepAsPacket
	stepOwn
	stepMixed // the fields are stored in different ways

	chainSource      = 0
	chainDestination = 1
	chainShared      = 2

	hashSize = 32
)

// appendTraces appends the traces of a plain packet. ok is false if they do not fit the form.
func (p *Packer) appendTraces(dst []byte, packet Row) (_ []byte, ok bool) {
	mark := len(dst)
	packet.d = &p.d
	dst = binary.AppendUvarint(dst, uint64(packet.Len(packetTracesColumn)))
	for trace := range packet.List(packetTracesColumn) {
		if dst, ok = p.appendTrace(dst, packet, trace); !ok {
			return dst, false
		}
	}
	p.plain = packet.plainTraces(p.plain[:0], dst[mark:])
	return dst, bytes.Equal(p.plain, packet.value(packetTracesColumn))
}

func (p *Packer) appendTrace(dst []byte, packet, trace Row) (_ []byte, ok bool) {
	_, name := trace.text(traceTypeColumn)
	number := slices.IndexFunc(traceKinds, func(k traceKind) bool { return k.name == string(name) })
	if number < 0 {
		return dst, false
	}
	mark := len(dst)
	of := &traceKinds[number].of
	dst = append(dst, byte(number))
	switch chain := trace.value(traceChainColumn); {
	case bytes.Equal(chain, packet.value(PacketSourceChainColumn)):
		dst[mark] |= chainSource << 4
	case bytes.Equal(chain, packet.value(PacketDestinationChainColumn)):
		dst[mark] |= chainDestination << 4
	default:
		number, ok := p.numbers[string(chain)]
		if !ok {
			return dst, false
		}
		dst[mark] |= chainShared << 4
		dst = binary.LittleEndian.AppendUint16(dst, uint16(number))
	}
	kept, all := keptOf(packet, trace, of)
	dst[mark] |= all << 6
	if all == stepMixed {
		dst = append(dst, kept)
	}
	if all == stepNull {
		return dst, true
	}
	event := uint64(0)
	if !trace.isEmpty(traceEventColumn) {
		event = uint64(trace.height(traceEventColumn)) + 1
	}
	dst = binary.AppendUvarint(dst, event)
	for i, f := range traceStepColumns {
		if kept>>(2*i)&3 == stepOwn {
			dst = appendOwn(dst, i, packet, of[i], trace, f)
		}
	}
	return dst, true
}

// keptOf returns how each of stepFields is stored, in 2 bits each, and how all of them are.
func keptOf(packet, trace Row, of *[len(stepFields)]int) (kept, all byte) {
	for i, f := range traceStepColumns {
		is := byte(stepOwn)
		switch v := trace.value(f); {
		case len(v) == 0:
			is = stepNull
		case bytes.Equal(v, packet.value(packet.first(of[i]))):
			is = stepAsPacket
		}
		kept |= is << (2 * i)
	}
	if all = kept & 3; kept != all*allSteps {
		all = stepMixed
	}
	return kept, all
}

const allSteps = 0b01_01_01_01

// appendOwn appends a value that differs from the packet's.
func appendOwn(dst []byte, step int, packet Row, of int, trace Row, f int) []byte {
	switch step {
	case stepHeight:
		return binary.AppendVarint(dst, trace.height(f)-packet.height(of))
	case stepTime:
		n, _ := trace.Nanoseconds(f)
		base, _ := packet.Nanoseconds(of)
		if n -= base; n%1e9 == 0 {
			return binary.AppendVarint(dst, n/1e9<<1)
		}
		return binary.AppendVarint(dst, n<<1|1)
	}
	_, v := trace.text(f)
	var hash [hashSize]byte
	copy(hash[:], v)
	return append(dst, hash[:]...)
}

// height returns a text as a number, 0 if it is not one. A plain row and its packed form give the same number.
func (r *Row) height(f int) int64 {
	form, v := r.text(f)
	if form == textDecimal {
		if high, low := number(v); high == 0 && low <= math.MaxInt64 {
			return int64(low)
		}
		return 0
	}
	if form != textPlain {
		v = r.AppendText(nil, f)
	}
	n, err := strconv.ParseInt(string(v), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// plainTraces appends the traces of a packed packet in the form of a plain row.
func (r *Row) plainTraces(dst, v []byte) []byte {
	const usual = 170 // bytes of a trace
	n, v := uvarint(v)
	dst = binary.AppendUvarint(slices.Grow(dst, int(usual*(n+1))), n)
	for range n {
		mark := len(dst)
		dst, v = r.appendPlainTrace(append(dst, 0, 0), v)
		size := len(dst) - mark - 2
		if size < 1<<7 {
			dst = append(append(dst[:mark], byte(size)), dst[mark+2:]...)
		} else {
			dst[mark], dst[mark+1] = byte(size)|1<<7, byte(size>>7)
		}
	}
	return dst
}

// appendPlainTrace appends the next trace as a plain row, and returns the bytes after it.
func (r *Row) appendPlainTrace(dst, v []byte) (_, rest []byte) {
	first, v := v[0], v[1:]
	kind, all := &traceKinds[first&15], first>>6
	var chain []byte
	if first>>4&3 == chainShared {
		chain, v = r.shared(v), v[2:]
	}
	kept, event := all*allSteps, uint64(0)
	if all == stepMixed {
		kept, v = v[0], v[1:]
	}
	if all != stepNull {
		event, v = uvarint(v)
	}
	fields := traceChainColumn + 1 + (bits.Len8(kept)+1)/2
	if event > 0 {
		fields = traceEventColumn + 1
	}
	mark, head := len(dst), 2+2*fields
	dst = append(append(dst, byte(fields), 2), noOffsets[:2*fields]...)
	end := func(f int) { binary.LittleEndian.PutUint16(dst[mark+2+2*f:], uint16(len(dst)-mark-head)) }

	dst = append(append(dst, textPlain), kind.name...)
	end(traceTypeColumn)
	switch first >> 4 & 3 {
	case chainSource:
		dst = r.AppendText(append(dst, textPlain), PacketSourceChainColumn)
	case chainDestination:
		dst = r.AppendText(append(dst, textPlain), PacketDestinationChainColumn)
	default:
		dst = append(dst, chain...)
	}
	end(traceChainColumn)
	for i, f := range traceStepColumns[:min(len(stepFields), fields-traceStepColumns[0])] {
		dst, v = r.appendStep(dst, v, kept>>(2*i)&3, i, kind.of[i])
		end(f)
	}
	if event > 0 {
		dst = strconv.AppendUint(append(dst, textPlain), event-1, 10)
		end(traceEventColumn)
	}
	return dst, v
}

var noOffsets [2 * 7]byte

// appendStep appends one of stepFields. own is the rest of the packed form, and of is the packet's column.
func (r *Row) appendStep(dst, own []byte, kept byte, step, of int) (_, rest []byte) {
	more := int64(0)
	switch {
	case kept == stepNull:
		return dst, own
	case step == stepTime || step == stepHeight:
		if kept == stepOwn {
			n, size := binary.Varint(own)
			more, own = n, own[size:]
		}
	case kept == stepOwn:
		return append(append(dst, textHex), own[:hashSize]...), own[hashSize:]
	default:
		return r.appendPlain(dst, r.first(of)), own
	}
	if step == stepHeight {
		if kept == stepAsPacket {
			return r.AppendText(append(dst, textPlain), of), own
		}
		return strconv.AppendInt(append(dst, textPlain), r.height(of)+more, 10), own
	}
	if more&1 == 0 {
		more *= 1e9
	}
	at, _ := r.Nanoseconds(of)
	return binary.BigEndian.AppendUint64(dst, uint64(at+more>>1)), own
}
