package index

import (
	"encoding/binary"
	"slices"
	"sync"
)

// A packed row (see Packer) begins with its head, which has the forms and the sizes of its fields: by its number among those of the
// dictionary, for rows have few different ones, or as it is. Then come the values:
//
//	varint       the head's number and 1; or 0, the size of the head and the head
//	number       of a route, 2 bytes little-endian, if the head says so
//	values       those whose sizes the head has
//	values       the others, each behind its size, a varint; traces as appendTraces has them
//	byte         the number of a sample
//	varint       how many bytes were compressed
//	compressed   the values from Type.rare on but traces, each behind its size
//
// The last three are there where there are such values. The values are those of plain rows, but texts, which are in the forms of
// textTag and have no tag in front, for the head has it.
type head struct {
	text   []byte  // headMark or headRouted, and of each field the form and, in a byte each, its size
	places []place // by the fields' numbers; nil for a head that is not of the dictionary
	fixed  int     // the bytes of the values whose sizes the head has, and of the route's number
	given  int     // how many others there are, but rare ones
	rare   bool    // there are compressed values
	whole  *head   // of rows whose values from Type.rare on are not compressed, where there are places
}

// place is where a field is.
type place struct {
	form       textTag // of a text; else formValue, or formNone
	kept       uint8   // where: 0: between start and end; inHead, compressed; else it is the value of that number behind its size
	start, end uint16
}

const (
	// Texts of the dictionary that are no values of texts begin so.
	headMark   = 0xff
	headRouted = 0xfe // of rows with the number of a route
	routeMark  = 0xfd

	formValue  = 0    // the value of a field that is no text
	formNone   = 0xff // null
	formRare   = 0xfe // the value is compressed; a text has its tag in front
	formTraces = 0xfd // see Packer.appendTraces
	formRoute  = 0xfc // the value is that of the row's route

	sizeGiven = 0xff // the size stands before the value
	maxFixed  = sizeGiven - 1

	inHead     = 0xff // what the form says of the field is the size's byte
	compressed = 0xfe
	inRoute    = 0xfd
)

const routeSize = 2 // bytes of a route's number

// newHead reads the text of a head of the dictionary.
func newHead(text []byte) *head {
	h := beginHead(text)
	h.places = make([]place, h.fields())
	for f := range h.places {
		h.places[f] = h.add(f)
	}
	if h.rare {
		h.whole = h.expanded()
	}
	return h
}

// headOf is newHead for the head of one row, of which few fields are read: it makes no places.
func headOf(text []byte) *head {
	h := beginHead(text)
	for f := range h.fields() {
		h.add(f)
	}
	return h
}

func beginHead(text []byte) *head {
	h := &head{text: text}
	if text[0] == headRouted {
		h.fixed = routeSize
	}
	return h
}

// clone returns a head that is not in the memory of a row.
func (h *head) clone() *head {
	if h.places != nil { // it is the dictionary's
		return h
	}
	own := *h
	own.text = slices.Clone(h.text)
	return &own
}

// knownHeads finds the heads of a dictionary by their text, for rows that were packed before their heads were in it.
type knownHeads struct {
	once   sync.Once
	byText map[string]*head
}

// of returns the head of that text, nil for none.
func (k *knownHeads) of(d *Dictionary, text []byte) *head {
	if k == nil {
		return nil
	}
	k.once.Do(func() {
		k.byText = make(map[string]*head, len(d.heads))
		for _, h := range d.heads {
			k.byText[string(h.text)] = h
		}
	})
	return k.byText[string(text)]
}

// fields returns how many fields the head has.
func (h *head) fields() int { return (len(h.text) - 1) / 2 }

// add returns where the next field is.
func (h *head) add(f int) place {
	p := place{form: h.text[1+2*f]}
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

// place returns where a field is.
func (h *head) place(f int) (p place) {
	switch {
	case f < len(h.places):
		return h.places[f]
	case f >= h.fields():
		return place{form: formNone}
	}
	before := beginHead(h.text)
	for i := range f + 1 {
		p = before.add(i)
	}
	return p
}

// expanded returns the head of rows whose rare values follow the others.
func (h *head) expanded() *head {
	w := *h
	w.rare = false
	w.places = slices.Clone(h.places)
	for i := range w.places {
		if p := &w.places[i]; p.kept == compressed {
			w.given++
			*p = place{form: formRare, kept: uint8(w.given)}
		}
	}
	return &w
}

// placed returns the value of a field of a packed row.
func (r *Row) placed(f int, p place) []byte {
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

// route returns a plain row with what the row's route has.
func (r *Row) route() []byte { return r.d.routes[binary.LittleEndian.Uint16(r.b)] }

// given returns the value of a number, from 1 on, of those that stand behind their sizes.
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

// whole returns a row in which no values are compressed, for who reads all.
func (r Row) whole() Row {
	if r.h != nil && r.h.places == nil {
		r.h = newHead(r.h.text)
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

// tail is where behind the values of a packed row the compressed ones begin.
func (r *Row) tail() int {
	v := r.b[r.h.fixed:]
	for range r.h.given {
		size, rest := uvarint(v)
		v = rest[size:]
	}
	return len(r.b) - len(v)
}
