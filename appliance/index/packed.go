package index

import (
	"encoding/binary"
	"math"
	"slices"
	"strings"
)

// Dictionary holds the contents that the packed rows of a store share. A packed row is a shorter encoding that is read
// in place (see Row); Row.Bytes returns its plain form. A Dictionary never changes: a Packer creates larger ones.
type Dictionary struct {
	texts   [][]byte     // by number: values of texts in the form of plain rows; and layouts and routes
	layouts []*rowLayout // by their own number
	// by their own number: plain rows with fields that many rows share as a group, see Field.ofRoute
	routes  [][]byte
	samples []*sample
	known   *knownLayouts // set in dictionaries for readers
}

// Row returns the row that Packer.Pack has packed with this dictionary or an earlier one. order is its sort_order.
// Neither order nor packed is copied.
func (d *Dictionary) Row(t *Type, order, packed []byte) Row {
	if len(packed) == 0 {
		return Row{t: t}
	}
	n, b := uvarint(packed)
	if n > 0 {
		return Row{t: t, b: b, h: d.layouts[n-1], d: d, order: order}
	}
	size, b := uvarint(b)
	h := d.known.of(d, b[:size])
	if h == nil {
		h = layoutOf(b[:size])
	}
	return Row{t: t, b: b[size:], h: h, d: d, order: order}
}

// Limits of a dictionary: numbers of texts, layouts and routes, and their sizes in bytes. In all, it takes some
// megabytes of memory. All numbers fit into two bytes.
const (
	maxTexts     = 1 << 15
	maxHeads     = 1 << 14
	maxRoutes    = 1 << 13
	maxTextSize  = 256
	maxRouteSize = 512
)

// Packer packs rows, and adds contents that repeat, such as tokens, ports and busy addresses, to the dictionary. It is
// for one goroutine.
type Packer struct {
	d       Dictionary
	numbers map[string]int   // of the dictionary's texts, layouts and routes
	seen    map[string]uint8 // occurrences of texts that are not in the dictionary
	forked  bool             // see Fork

	// The row being packed: its layout, and its values by where they are stored.

	head, fixed, given, rare []byte

	ofRoute []byte // its fields with Field.ofRoute
	plain   []byte // scratch: its traces, decoded again
}

// NewPacker continues from the Texts and Samples of an earlier Packer.
func NewPacker(texts, samples [][]byte) *Packer {
	p := &Packer{numbers: make(map[string]int, len(texts)), seen: make(map[string]uint8)}
	for _, text := range texts {
		p.share(text)
	}
	for _, text := range samples {
		p.d.samples = append(p.d.samples, newSample(text))
	}
	return p
}

// Dictionary returns the dictionary that rows packed so far need.
func (p *Packer) Dictionary() *Dictionary {
	d := p.d
	d.texts, d.layouts, d.samples = slices.Clip(d.texts), slices.Clip(d.layouts), slices.Clip(d.samples)
	d.routes = slices.Clip(d.routes)
	d.known = new(knownLayouts)
	return &d
}

// Texts returns the dictionary's texts from a number on.
func (p *Packer) Texts(from int) [][]byte { return p.d.texts[from:] }

// Samples returns the number of samples.
func (p *Packer) Samples() int { return len(p.d.samples) }

// Row returns a row that this Packer has packed. It is valid until the next Pack.
func (p *Packer) Row(t *Type, order, packed []byte) Row { return p.d.Row(t, order, packed) }

// Learn builds the next sample from some rows and returns it. Rows packed from now on use it.
func (p *Packer) Learn(rows []Row) []byte {
	var text []byte
	for _, row := range rows {
		p.lay(RowOf(row.t, row.Bytes()))
		if len(text)+len(p.rare) <= maxSample {
			text = append(text, p.rare...)
		}
	}
	p.d.samples = append(p.d.samples, newSample(text))
	return text
}

// share gives a text, a layout or a route its number.
func (p *Packer) share(text []byte) {
	number := len(p.d.texts)
	switch text[0] {
	case headMark, headRouted:
		number = len(p.d.layouts)
		p.d.layouts = append(p.d.layouts, newLayout(text))
	case routeMark:
		number = len(p.d.routes)
		p.d.routes = append(p.d.routes, text[1:])
	}
	p.numbers[string(text)] = number
	p.d.texts = append(p.d.texts, text)
}

// Pack appends a row in its packed form: see layout. It omits a plain sort_order, which is the key under which a store
// has the row.
func (p *Packer) Pack(dst []byte, row Row) []byte {
	if row.IsZero() {
		return dst
	}
	p.lay(RowOf(row.t, row.Bytes()))
	number, ok := p.numbers[string(p.head)]
	if !ok {
		p.see(p.head)
		number, ok = p.numbers[string(p.head)]
	}
	if ok {
		dst = binary.AppendUvarint(dst, uint64(number)+1)
	} else {
		dst = append(binary.AppendUvarint(append(dst, 0), uint64(len(p.head))), p.head...)
	}
	out := append(append(p.fixed, p.given...), p.rare...)
	p.fixed = out // keep the memory
	tail := len(out) - len(p.rare)
	if dst = append(dst, out[:tail]...); len(p.rare) == 0 {
		return dst
	}
	sample := len(p.d.samples)
	dst = binary.AppendUvarint(append(dst, byte(sample)), uint64(len(p.rare)))
	return p.d.sample(sample).compress(dst, out, tail)
}

// lay sets p.layout and the values for a plain row.
func (p *Packer) lay(row Row) {
	p.head, p.fixed, p.given, p.rare = append(p.head[:0], headMark), p.fixed[:0], p.given[:0], p.rare[:0]
	if len(row.b) == 0 {
		return
	}
	routed := false
	if number, ok := p.routeOf(row); ok {
		routed = true
		p.head[0] = headRouted
		p.fixed = binary.LittleEndian.AppendUint16(p.fixed, uint16(number))
	}
	for f := range int(row.b[0]) {
		if routed && row.hasInRoute(f) {
			p.head = append(p.head, formRoute, 0)
		} else {
			p.layField(row, f)
		}
	}
}

// routeOf returns the number of the route with the same Field.ofRoute fields as a plain row.
func (p *Packer) routeOf(row Row) (number int, ok bool) {
	n := int(row.b[0])
	for n > 0 && !row.hasInRoute(n-1) {
		n--
	}
	const width = 2
	p.ofRoute = append(p.ofRoute[:0], routeMark, byte(n), width)
	p.ofRoute = append(p.ofRoute, make([]byte, width*n)...)
	for f := range n {
		if row.hasInRoute(f) {
			p.ofRoute = append(p.ofRoute, row.value(f)...)
		}
		if len(p.ofRoute) > maxRouteSize {
			return 0, false
		}
		binary.LittleEndian.PutUint16(p.ofRoute[3+width*f:], uint16(len(p.ofRoute)-3-width*n))
	}
	if number, ok = p.numbers[string(p.ofRoute)]; !ok && n > 0 {
		p.see(p.ofRoute)
	}
	return number, ok
}

// hasInRoute reports whether a route may hold this field of a plain row. It excludes references to other fields, which
// are short.
func (r *Row) hasInRoute(f int) bool {
	if !r.t.Fields[f].ofRoute {
		return false
	}
	v := r.value(f)
	return len(v) > 0 && (r.t.Fields[f].Kind != FieldText || v[0] != textSame && v[0] != textHexOf)
}

func (p *Packer) layField(row Row, f int) {
	v := row.value(f)
	switch {
	case len(v) == 0:
		p.head = append(p.head, formNone, 0)
		return
	case row.t == PacketType && f == packetTracesColumn:
		if traces, ok := p.appendTraces(p.fixed, row); ok {
			p.give(formTraces, traces[len(p.fixed):])
			return
		}
		fallthrough
	case f >= row.t.rare:
		p.head = append(p.head, formRare, 0)
		p.rare = append(binary.AppendUvarint(p.rare, uint64(len(v))), v...)
		return
	}
	field := &row.t.Fields[f]
	form, mark := textTag(formValue), len(p.fixed)
	switch field.Kind {
	case FieldText:
		form, p.fixed = p.appendForm(p.fixed, row, f)
	case FieldTime:
		form, p.fixed = row.appendTime(p.fixed, f)
	default:
		p.fixed = append(p.fixed, v...)
	}
	v = p.fixed[mark:]
	switch {
	case form == textSame || form == textHexOf:
		p.head = append(p.head, form, v[0])
		p.fixed = p.fixed[:mark]
	case len(v) <= maxFixed && field.isSteady(form, len(v)):
		p.head = append(p.head, form, byte(len(v)))
	default:
		p.give(form, v)
		p.fixed = p.fixed[:mark]
	}
}

// give stores a value after its size.
func (p *Packer) give(form textTag, v []byte) {
	p.head = append(p.head, form, sizeGiven)
	p.given = append(binary.AppendUvarint(p.given, uint64(len(v))), v...)
}

// isSteady reports whether a field's values in this form have few different sizes, so that the size can be in the layout.
func (f *Field) isSteady(form textTag, size int) bool {
	if f.Kind != FieldText {
		return size <= 8
	}
	switch form {
	case textPlain, textEscape, textSparse:
		return false
	case textHex:
		return size == 20 || size == 32
	case textDecimal, textRound:
		return !strings.HasSuffix(f.Name, "amount")
	}
	return true
}

// sample returns the sample with this number; 0 is an empty one.
func (d *Dictionary) sample(number int) *sample {
	if number == 0 {
		return noSample
	}
	return d.samples[number-1]
}

var noSample = newSample(nil)

// appendForm appends a text in the form of packed rows, without its tag, and returns the form.
func (p *Packer) appendForm(out []byte, row Row, f int) (textTag, []byte) {
	v := row.value(f)
	form, text, field := v[0], v[1:], &row.t.Fields[f]
	switch {
	case form == textSame || form == textHexOf:
		return form, append(out, text...)
	case f == row.t.order && form == textPlain:
		return textOrder, out
	}
	if number, ok := p.numbers[string(v)]; ok {
		return textShared, binary.LittleEndian.AppendUint16(out, uint16(number))
	}
	if form == textPlain {
		if form, packed, ok := decimalOf(out, text); ok {
			return form, packed
		}
	}
	if field.raw >= 0 && form == textPlain {
		if form, packed, ok := p.appendAddress(out, row, field.raw, text); ok {
			return form, packed
		}
	}
	if field.common && len(v) > 3 {
		p.see(v)
	}
	return form, append(out, text...)
}

// see counts an occurrence of a text, layout or route. It is added to the dictionary after several.
func (p *Packer) see(text []byte) {
	if p.hasRoom(text) {
		p.count(text, 1)
	}
}

// hasRoom reports whether the dictionary has room for a text. Each kind has a separate limit, so that many addresses
// cannot displace the layouts of new rows.
func (p *Packer) hasRoom(text []byte) bool {
	switch text[0] {
	case headMark, headRouted:
		return len(p.d.layouts) < maxHeads && len(text) <= maxTextSize
	case routeMark:
		return len(p.d.routes) < maxRoutes && len(text) <= maxRouteSize
	}
	return len(p.d.texts)-len(p.d.layouts)-len(p.d.routes) < maxTexts && len(text) <= maxTextSize
}

// often returns how many occurrences put a text into the dictionary. For a layout one is enough while there is room for
// many.
func (p *Packer) often(text []byte) uint8 {
	switch {
	case text[0] != headMark && text[0] != headRouted:
		return 8
	case len(p.d.layouts) < maxHeads/4:
		return 1
	}
	return 4
}

// count adds to the occurrences of a text.
func (p *Packer) count(text []byte, times uint8) {
	const maxSeen = 1 << 16
	often := p.often(text)
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

// isCommon reports whether many rows may have the same text in a field.
func isCommon(name string) bool {
	return !slices.ContainsFunc([]string{"sort_order", "hash", "height", "timestamp", "amount"},
		func(part string) bool {
			return strings.HasSuffix(name, part)
		})
}

// plain returns the plain encoding of a packed row, the same bytes that an encoder makes.
func (r Row) plain() []byte {
	r = r.whole()
	n := r.h.fields()
	width := 2
	for {
		out := make([]byte, 2+width*n, 2*len(r.b)+width*n)
		out[0], out[1] = byte(n), byte(width)
		for i := range n {
			switch r.t.Fields[i].Kind {
			case FieldText:
				out = r.appendPlain(out, i)
			case FieldTime:
				if n, ok := r.nanoseconds(i); ok {
					out = binary.BigEndian.AppendUint64(out, uint64(n))
				}
			default:
				out = append(out, r.value(i)...)
			}
			if end := len(out) - 2 - width*n; width == 2 {
				binary.LittleEndian.PutUint16(out[2+2*i:], uint16(end))
			} else {
				binary.LittleEndian.PutUint32(out[2+4*i:], uint32(end))
			}
		}
		if width == 4 || len(out)-2-width*n <= math.MaxUint16 {
			return out
		}
		width = 4
	}
}

// appendPlain appends the value of a text in the form of plain rows.
func (r *Row) appendPlain(out []byte, f int) []byte {
	switch form, v := r.text(f); form {
	case formNone:
		return out
	case textShared:
		return append(out, r.shared(v)...)
	case textDecimal, textRound, textCased, textBech32, textOrder:
		return r.appendText(append(out, textPlain), f, form, v)
	default:
		return append(append(out, form), v...)
	}
}
