package index

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
)

// textTag is the form of a text: the first byte of its value in a plain row, in the head of a packed one.
type textTag = byte

const (
	textPlain  textTag = iota // the text, which needs no escapes in JSON
	textEscape                // the text, which needs escapes in JSON
	textHex                   // the bytes of 0x and lower-case hex digits
	textSparse                // the same, with each run of zero bytes as a zero byte and its length
	textSame                  // the number of an earlier field with this text
	textHexOf                 // the number of an earlier field: this is 0x and the hex digits of its text

	// These are in packed rows alone.

	textShared  // the number of a text in the dictionary, 2 bytes little-endian
	textDecimal // a number in decimal, up to 8 bytes little-endian
	textCased   // a bit for each byte of Field.raw after 0x: of a letter that is a capital here (EIP-55)
	textBech32  // what stands around the bytes of Field.raw, which is 0x and hex digits, of which behind them checkSize
	textOrder   // Row.order: the key that a store has the row under
)

// Text returns a text field, and false for null.
func (r Row) Text(f int) (string, bool) {
	switch form, v := r.text(f); form {
	case formNone:
		return "", false
	case textPlain, textEscape:
		return string(v), true
	case textOrder:
		return string(r.order), true
	default:
		return string(r.appendText(make([]byte, 0, 2+2*len(v)), f, form, v)), true
	}
}

// AppendText appends a text field; nothing for null.
func (r Row) AppendText(dst []byte, f int) []byte {
	form, v := r.text(f)
	return r.appendText(dst, f, form, v)
}

// text returns the form of a text and what it says, formNone for null.
func (r *Row) text(f int) (textTag, []byte) {
	if r.h != nil && f < len(r.h.places) && r.h.places[f].form != formRare {
		return r.h.places[f].form, r.placed(f)
	}
	v := r.value(f)
	if len(v) == 0 {
		return formNone, nil
	}
	return v[0], v[1:]
}

func (r *Row) appendText(dst []byte, f int, form textTag, v []byte) []byte {
	switch form {
	case formNone:
		return dst
	case textPlain, textEscape:
		return append(dst, v...)
	case textHex:
		return hex.AppendEncode(append(dst, '0', 'x'), v)
	case textSparse:
		return appendSparseHex(append(dst, '0', 'x'), v)
	case textSame:
		return r.AppendText(dst, int(v[0]))
	case textHexOf:
		var buf [128]byte // the other may be in any form
		return hex.AppendEncode(append(dst, '0', 'x'), r.AppendText(buf[:0], int(v[0])))
	case textShared:
		text := r.shared(v)
		return r.appendText(dst, f, text[0], text[1:])
	case textDecimal:
		return strconv.AppendUint(dst, decimal(v), 10)
	case textCased:
		return r.appendCased(dst, r.t.Fields[f].raw, v)
	case textBech32:
		return r.appendBech32(dst, r.t.Fields[f].raw, v)
	case textOrder:
		return append(dst, r.order...)
	}
	panic(fmt.Sprintf("text tag %d", form))
}

// shared returns the value of a text of the dictionary, with its tag.
func (r *Row) shared(v []byte) []byte { return r.d.texts[binary.LittleEndian.Uint16(v)] }

// first returns the field that a text is kept in: an earlier one for textSame.
func (r *Row) first(f int) int {
	form, v := r.text(f)
	if form != textSame {
		return f
	}
	return r.first(int(v[0]))
}

// decimal returns the number of the form textDecimal.
func decimal(v []byte) (n uint64) {
	for i, b := range v {
		n |= uint64(b) << (8 * i)
	}
	return n
}

// appendDecimal appends a number in the form textDecimal.
func appendDecimal(dst []byte, n uint64) []byte {
	for ; n > 0; n >>= 8 {
		dst = append(dst, byte(n))
	}
	return dst
}

// appendJSONText appends a text field as JSON.
func (r *Row) appendJSONText(dst []byte, f int) []byte {
	f = r.first(f)
	form, v := r.text(f)
	if form == textShared {
		text := r.shared(v)
		form, v = text[0], text[1:]
	}
	switch form {
	case formNone:
		return append(dst, "null"...)
	case textEscape:
		return appendQuoted(dst, v)
	}
	dst = append(dst, '"')
	dst = r.appendText(dst, f, form, v)
	return append(dst, '"')
}

// appendSparseHex appends the hex digits of bytes in which each run of zeros is a zero byte and its length.
func appendSparseHex(dst, sparse []byte) []byte {
	for i := 0; i < len(sparse); i++ {
		if sparse[i] != 0 {
			dst = append(dst, hexDigits[sparse[i]>>4], hexDigits[sparse[i]&15])
			continue
		}
		i++
		for range 2 * int(sparse[i]) {
			dst = append(dst, '0')
		}
	}
	return dst
}

const hexDigits = "0123456789abcdef"

func appendQuoted(dst, text []byte) []byte {
	quoted, err := json.Marshal(string(text))
	if err != nil { // a string always marshals
		panic(err)
	}
	return append(dst, quoted...)
}
