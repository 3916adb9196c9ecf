package index

import (
	"encoding/binary"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Dictionary is what the packed rows of a store have in common. A packed row is a row in a shorter form that is read as it is
// (see Row); Row.Bytes returns its plain form. A Dictionary never changes: a Packer makes a larger one.
type Dictionary struct {
	texts   [][]byte // the values of texts, as rows have them, by number
	samples []*sample
}

// Row returns the row with that sort_order that Packer.Pack has packed with this dictionary or an earlier one. Neither is copied.
func (d *Dictionary) Row(t *Type, order, packed []byte) Row {
	return Row{t: t, b: packed, d: d, order: order}
}

// The most texts of a dictionary, and bytes of one: some megabytes of memory in all.
const (
	maxTexts    = 1 << 15
	maxTextSize = 256
)

// Packer packs rows, and notes what they have in common: of texts those that have come several times, such as tokens, ports
// and busy addresses. It is for one goroutine.
type Packer struct {
	d       Dictionary
	numbers map[string]uint32 // of the dictionary's texts
	seen    map[string]uint8  // how often other texts have come
	forked  bool              // see Fork
	out     []byte            // the row that is packed
}

// NewPacker goes on with what Texts and Samples of an earlier one have returned.
func NewPacker(texts, samples [][]byte) *Packer {
	p := &Packer{numbers: make(map[string]uint32, len(texts)), seen: make(map[string]uint8)}
	for _, text := range texts {
		p.share(text)
	}
	for _, text := range samples {
		p.d.samples = append(p.d.samples, newSample(text))
	}
	return p
}

// Dictionary returns what Pack has needed so far.
func (p *Packer) Dictionary() *Dictionary {
	d := p.d
	d.texts, d.samples = slices.Clip(d.texts), slices.Clip(d.samples)
	return &d
}

// Texts returns the dictionary's texts from a number on.
func (p *Packer) Texts(from int) [][]byte { return p.d.texts[from:] }

// Samples returns how many samples there are.
func (p *Packer) Samples() int { return len(p.d.samples) }

// Row returns a row that this Packer has packed, until it packs the next.
func (p *Packer) Row(t *Type, order, packed []byte) Row { return p.d.Row(t, order, packed) }

// Learn makes the next sample of some rows, and returns it. Rows that are packed from now on are packed with it.
func (p *Packer) Learn(rows []Row) []byte {
	var text []byte
	for _, row := range rows {
		plain := row.Bytes()
		if from := RowOf(row.t, plain).tail(); len(text)+len(plain)-from <= maxSample {
			text = append(text, plain[from:]...)
		}
	}
	p.d.samples = append(p.d.samples, newSample(text))
	return text
}

// share gives a text its number.
func (p *Packer) share(text []byte) {
	p.numbers[string(text)] = uint32(len(p.d.texts))
	p.d.texts = append(p.d.texts, text)
}

// Pack appends a row in its packed form: its texts in the shorter forms that textTag has for such, and from Type.rare on
// compressed. A plain sort_order is left out: it is the key that a store has the row under.
func (p *Packer) Pack(dst []byte, row Row) []byte {
	if row.b = row.Bytes(); len(row.b) < 2 {
		return append(dst, row.b...)
	}
	row.d, row.order = nil, nil
	n := int(row.b[0])
	width := 2
	if len(row.b) > math.MaxUint16 {
		width = 4
	}
	out := append(p.out[:0], byte(n), byte(width))
	out = append(out, make([]byte, width*n)...)
	head := len(out)
	tail := 0
	for i := range n {
		if i == row.t.rare {
			tail = len(out)
		}
		out = p.appendValue(out, row, i)
		putOffset(out[2+width*i:], width, len(out)-head)
	}
	p.out = out
	if tail == 0 && len(out)-head <= math.MaxUint8 { // so small that a byte does for an offset
		out = append(dst, byte(n), 1)
		for i := range n {
			out = append(out, p.out[2+width*i])
		}
		return append(out, p.out[head:]...)
	}
	if tail == 0 || tail == len(out) {
		return append(dst, out...)
	}
	out[1] |= packedTail
	number := len(p.d.samples)
	dst = append(append(dst, out[:tail]...), byte(number))
	return p.d.sample(number).compress(dst, out, tail)
}

func putOffset(at []byte, width, offset int) {
	if width == 2 {
		binary.LittleEndian.PutUint16(at, uint16(offset))
	} else {
		binary.LittleEndian.PutUint32(at, uint32(offset))
	}
}

// packedTail is set in the second byte of a packed row of which the values from Type.rare on are compressed.
const packedTail = 0x80

var noSample = newSample(nil)

// sample returns the sample of that number; 0 is an empty one.
func (d *Dictionary) sample(number int) *sample {
	if number == 0 {
		return noSample
	}
	return d.samples[number-1]
}

// whole returns a row in which no values are compressed.
func (r Row) whole() Row {
	if len(r.b) < 2 || r.b[1]&packedTail == 0 {
		return r
	}
	tail := r.tail()
	full := make([]byte, r.head()+r.offset(int(r.b[0])-1)+expandRoom)
	end := r.d.sample(int(r.b[tail])).expand(full, copy(full, r.b[:tail]), r.b[tail+1:])
	full = full[:end]
	full[1] &^= packedTail
	return Row{t: r.t, b: full, d: r.d, order: r.order}
}

// tail is where the values from Type.rare on begin.
func (r Row) tail() int {
	if len(r.b) < 2 || int(r.b[0]) <= r.t.rare {
		return len(r.b)
	}
	return r.head() + r.offset(r.t.rare-1)
}

// appendValue appends the value of a field in the form that packed rows have.
func (p *Packer) appendValue(out []byte, row Row, i int) []byte {
	v := row.value(i)
	if len(v) < 4 || row.t.Fields[i].Kind != FieldText || i >= row.t.rare || v[0] == textSame || v[0] == textHexOf {
		return append(out, v...)
	}
	if i == row.t.order && v[0] == textPlain {
		return append(out, textOrder)
	}
	if number, ok := p.numbers[string(v)]; ok {
		return binary.AppendUvarint(append(out, textShared), uint64(number))
	}
	if v[0] == textPlain {
		// Heights are also in the traces, as text.
		if n, err := strconv.ParseUint(string(v[1:]), 10, 63); err == nil && v[1] != '0' && !strings.HasSuffix(row.t.Fields[i].Name, "_height") {
			return binary.AppendUvarint(append(out, textDecimal), n)
		}
	}
	field := &row.t.Fields[i]
	if field.raw >= 0 && v[0] == textPlain {
		if packed := row.addressOf(field.raw, v[1:]); packed != nil {
			return append(out, packed...)
		}
	}
	if field.common {
		p.see(v)
	}
	return append(out, v...)
}

// see counts a text, which is shared when it has come several times.
func (p *Packer) see(text []byte) {
	if len(p.d.texts) < maxTexts && len(text) <= maxTextSize {
		p.count(text, 1)
	}
}

// count adds to how often a text has come.
func (p *Packer) count(text []byte, times uint8) {
	const (
		often   = 8
		maxSeen = 1 << 16
	)
	n := min(p.seen[string(text)]+times, often)
	if n < often || p.forked {
		if len(p.seen) >= maxSeen {
			clear(p.seen)
		}
		p.seen[string(text)] = n
		return
	}
	delete(p.seen, string(text))
	p.share(slices.Clone(text))
}

// isCommon tells whether many rows may have the same text in a field.
func isCommon(name string) bool {
	return !slices.ContainsFunc([]string{"sort_order", "hash", "height", "timestamp", "amount"}, func(part string) bool { return strings.HasSuffix(name, part) })
}

// plain returns the bytes of a packed row as an encoder has made them.
func (r Row) plain() []byte {
	r = r.whole()
	n := int(r.b[0])
	width := 2
	for {
		out := make([]byte, 2+width*n, 2*len(r.b)+width*n)
		out[0], out[1] = byte(n), byte(width)
		for i := range n {
			if v := r.value(i); len(v) > 0 && r.t.Fields[i].Kind == FieldText {
				out = r.appendPlain(out, i)
			} else {
				out = append(out, v...)
			}
			putOffset(out[2+width*i:], width, len(out)-2-width*n)
		}
		if width == 4 || len(out)-2-width*n <= math.MaxUint16 {
			return out
		}
		width = 4
	}
}

// appendPlain appends the value of a text in the form that plain rows have.
func (r Row) appendPlain(out []byte, i int) []byte {
	switch v := r.value(i); v[0] {
	case textShared:
		return append(out, r.shared(v)...)
	case textDecimal, textCased, textBech32, textOrder:
		return r.appendText(append(out, textPlain), v)
	default:
		return append(out, v...)
	}
}
