package index

import (
	"encoding/binary"
	"slices"
	"sync"
)

// rowLayout is the beginning of a packed row (see Packer): the forms and sizes of its fields. Rows have few different
// layouts, so a row refers to a layout of the dictionary by number, or contains its layout. The values follow:
//
//	varint       the layout's number plus 1; or 0, the size of the layout and the layout
//	number       of a route, 2 bytes little-endian, if the layout is headRouted
//	values       those with their sizes in the layout
//	values       the others, each after its size, a varint; traces in the form of appendTraces
//	byte         the number of a sample
//	varint       the size of the compressed values before compression
//	compressed   the values from Type.rare on except traces, each after its size
//
// The last three are present only if the row has such values. Values are encoded as in plain rows. Texts have no tag,
// because the layout has it.
type rowLayout struct {
	text      []byte          // headMark or headRouted, then for each field its form and its size, a byte each
	positions []fieldPosition // by field number; nil for a layout outside the dictionary
	fixed     int             // bytes of the route's number and of the values with their sizes in the layout
	given     int             // number of other values, without rare ones
	rare      bool            // the row has compressed values
	// for decompressed rows: the layout with the rare values among the given ones; nil without places
	whole *rowLayout
}

// fieldPosition is the position of a field's value.
type fieldPosition struct {
	form textTag // of a text; otherwise formValue or formNone
	// 0: between start and end; inHead, compressed or inRoute; otherwise the value's number among those after their
	// sizes
	kept       uint8
	start, end uint16
}

const (
	// Texts of the dictionary that are not values of text fields begin with one of these.
	headMark   = 0xff
	headRouted = 0xfe // a layout of rows with a route's number
	routeMark  = 0xfd

	formValue  = 0    // the value of a field that is not text
	formNone   = 0xff // null
	formRare   = 0xfe // the value is compressed; a text has its tag in front
	formTraces = 0xfd // see Packer.appendTraces
	formRoute  = 0xfc // the row's route has the value

	sizeGiven = 0xff // the size is in front of the value
	maxFixed  = sizeGiven - 1

	inHead     = 0xff // the layout's size byte is the value
	compressed = 0xfe
	inRoute    = 0xfd
)

const routeSize = 2 // bytes of a route's number

// newLayout parses a layout of the dictionary.
func newLayout(text []byte) *rowLayout {
	h := beginLayout(text)
	h.positions = make([]fieldPosition, h.fields())
	for f := range h.positions {
		h.positions[f] = h.add(f)
	}
	if h.rare {
		h.whole = h.expanded()
	}
	return h
}

// layoutOf parses the layout of a single row. It makes no places, because few fields of the row are read.
func layoutOf(text []byte) *rowLayout {
	h := beginLayout(text)
	for f := range h.fields() {
		h.add(f)
	}
	return h
}

func beginLayout(text []byte) *rowLayout {
	h := &rowLayout{text: text}
	if text[0] == headRouted {
		h.fixed = routeSize
	}
	return h
}

// clone returns a layout outside the memory of a row.
func (h *rowLayout) clone() *rowLayout {
	if h.positions != nil { // layouts with places belong to the dictionary
		return h
	}
	own := *h
	own.text = slices.Clone(h.text)
	return &own
}

// knownLayouts finds the layouts of a dictionary by their text, for rows that contain a layout that the dictionary now
// has.
type knownLayouts struct {
	once   sync.Once
	byText map[string]*rowLayout
}

// of returns the layout with this text, nil if the dictionary has no such layout.
func (k *knownLayouts) of(d *Dictionary, text []byte) *rowLayout {
	if k == nil {
		return nil
	}
	k.once.Do(func() {
		k.byText = make(map[string]*rowLayout, len(d.layouts))
		for _, h := range d.layouts {
			k.byText[string(h.text)] = h
		}
	})
	return k.byText[string(text)]
}

// fields returns the number of fields in the layout.
func (h *rowLayout) fields() int { return (len(h.text) - 1) / 2 }

// add returns the position of the next field.
func (h *rowLayout) add(f int) fieldPosition {
	p := fieldPosition{form: h.text[1+2*f]}
	switch size := int(h.text[2+2*f]); {
	case p.form == formRare:
		h.rare, p.kept = true, compressed
	case p.form == formRoute:
		p.kept = inRoute
	case p.form == textSame || p.form == textHexOf:
		p.kept, p.start, p.end = inHead, uint16(2+2*f), uint16(3+2*f)
	case size == sizeGiven:
		h.given++
		p.kept = uint8(h.given)
	default:
		p.start, p.end = uint16(h.fixed), uint16(h.fixed+size)
		h.fixed += size
	}
	return p
}

// position returns the position of a field.
func (h *rowLayout) position(f int) (p fieldPosition) {
	switch {
	case f < len(h.positions):
		return h.positions[f]
	case f >= h.fields():
		return fieldPosition{form: formNone}
	}
	before := beginLayout(h.text)
	for i := range f + 1 {
		p = before.add(i)
	}
	return p
}

// expanded returns the layout of rows after decompression, in which the rare values follow the others.
func (h *rowLayout) expanded() *rowLayout {
	w := *h
	w.rare = false
	w.positions = slices.Clone(h.positions)
	for i := range w.positions {
		if p := &w.positions[i]; p.kept == compressed {
			w.given++
			*p = fieldPosition{form: formRare, kept: uint8(w.given)}
		}
	}
	return &w
}

// placed returns the value of a field of a packed row.
func (r *Row) placed(f int, p fieldPosition) []byte {
	switch p.kept {
	case 0:
		return r.b[p.start:p.end]
	case inHead:
		return r.h.text[p.start:p.end]
	case inRoute:
		return plainValue(r.route(), f)
	case compressed:
		whole := r.whole()
		return whole.value(f)
	}
	v := given(r.b[r.h.fixed:], int(p.kept))
	if p.form == formTraces {
		return r.plainTraces(nil, v)
	}
	return v
}

// route returns the row's route, a plain row.
func (r *Row) route() []byte { return r.d.routes[binary.LittleEndian.Uint16(r.b)] }

// given returns the value with this number, from 1 on, among those after their sizes.
func given(v []byte, number int) []byte {
	for {
		size, rest := uvarint(v)
		if number == 1 {
			return rest[:size]
		}
		v = rest[size:]
		number--
	}
}

// whole returns the row decompressed, for readers of all fields.
func (r Row) whole() Row {
	if r.h != nil && r.h.positions == nil {
		r.h = newLayout(r.h.text)
	}
	if r.h == nil || !r.h.rare {
		return r
	}
	at := r.tail()
	size, packed := uvarint(r.b[at+1:])
	full := make([]byte, at+int(size)+expandRoom)
	end := r.d.sample(int(r.b[at])).expand(full, copy(full, r.b[:at]), packed)
	r.b, r.h = full[:end], r.h.whole
	return r
}

// tail returns the position after the given values, at which the compressed part begins.
func (r *Row) tail() int {
	v := r.b[r.h.fixed:]
	for range r.h.given {
		size, rest := uvarint(v)
		v = rest[size:]
	}
	return len(r.b) - len(v)
}
