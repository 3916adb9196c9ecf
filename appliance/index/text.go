package index

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
)

// textTag is the form of a text. A plain row has it in the first byte of the value, a packed row in its head.
type textTag = byte

const (
	textPlain  textTag = iota // the text, which needs no escapes in JSON
	textEscape                // the text, which needs escapes in JSON
	textHex                   // the bytes of 0x and lower-case hex digits
	textSparse                // as textHex, with each run of zero bytes as a zero byte and its length
	textSame                  // the number of an earlier field with this text
	textHexOf                 // the number of an earlier field; this text is 0x and the hex digits of its text

	// The forms below occur only in packed rows.

	textShared  // the number of a text in the dictionary, 2 bytes little-endian
	textDecimal // a decimal number, up to 16 bytes little-endian
	textCased   // the hex text of Field.raw with capitals (EIP-55): a bit for each digit after 0x, set for a capital
	// the bytes of Field.raw in bech32: the number of the human-readable part in the dictionary and bech32mFlag, 2
	// bytes little-endian
	textBech32
	textOrder // Row.order, the key under which a store has the row
	textRound // the number of trailing zeros, then the number before them as in textDecimal
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

// AppendText appends a text field. It appends no bytes for null.
func (r Row) AppendText(dst []byte, f int) []byte {
	form, v := r.text(f)
	return r.appendText(dst, f, form, v)
}

// text returns the form and the encoded text of a field, or formNone for null.
func (r *Row) text(f int) (textTag, []byte) {
	if h := r.h; h != nil && f < len(h.positions) {
		switch p := &h.positions[f]; p.kept {
		case 0:
			return p.form, r.b[p.start:p.end]
		case inRoute:
			v := plainValue(r.route(), f)
			return v[0], v[1:]
		}
	}
	return r.textElsewhere(f)
}

func (r *Row) textElsewhere(f int) (textTag, []byte) {
	if r.h != nil {
		switch p := r.h.position(f); p.form {
		case formRoute:
			v := plainValue(r.route(), f)
			return v[0], v[1:]
		case formRare:
		default:
			return p.form, r.placed(f, p)
		}
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
		return appendHex(append(dst, '0', 'x'), v)
	case textSparse:
		return appendSparseHex(dst, v)
	case textSame:
		return r.AppendText(dst, int(v[0]))
	case textHexOf:
		var buf [128]byte // the other text may be in any form
		return appendHex(append(dst, '0', 'x'), r.AppendText(buf[:0], int(v[0])))
	case textShared:
		text := r.shared(v)
		return r.appendText(dst, f, text[0], text[1:])
	case textDecimal:
		return appendDigits(dst, v)
	case textRound:
		dst = appendDigits(dst, v[1:])
		return append(dst, zeroDigits[:v[0]]...)
	case textCased:
		return r.appendCased(dst, r.t.Fields[f].raw, v)
	case textBech32:
		return r.appendHuman(dst, r.t.Fields[f].raw, v)
	case textOrder:
		return append(dst, r.order...)
	}
	panic(fmt.Sprintf("text tag %d", form))
}

// shared returns a text of the dictionary, with its tag.
func (r *Row) shared(v []byte) []byte { return r.d.texts[binary.LittleEndian.Uint16(v)] }

// first returns the field that stores a text: an earlier one for textSame.
func (r *Row) first(f int) int {
	if r.t.Fields[f].Kind != FieldText {
		return f // its value might begin like a reference
	}
	form, v := r.text(f)
	if form != textSame {
		return f
	}
	return r.first(int(v[0]))
}

// appendJSONText appends a text field as JSON.
func (r *Row) appendJSONText(dst []byte, f int) []byte {
	form, v := r.text(f)
	for form == textSame {
		f = int(v[0])
		form, v = r.text(f)
	}
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

// appendHex appends the hex digits of bytes.
func appendHex(dst, v []byte) []byte {
	at := len(dst)
	dst = slices.Grow(dst, 2*len(v))[:at+2*len(v)]
	digits := dst[at:]
	for ; len(v) >= 4 && len(digits) >= 8; v, digits = v[4:], digits[8:] {
		binary.LittleEndian.PutUint64(digits,
			uint64(hexPairs[v[0]])|uint64(hexPairs[v[1]])<<16|uint64(hexPairs[v[2]])<<32|uint64(hexPairs[v[3]])<<48)
	}
	for _, b := range v {
		binary.LittleEndian.PutUint16(digits, hexPairs[b])
		digits = digits[2:]
	}
	return dst
}

// hexPairs holds the two digits of every byte, the first in the lower byte.
var hexPairs = func() (pairs [256]uint16) {
	for b := range pairs {
		pairs[b] = uint16(hexDigits[b>>4]) | uint16(hexDigits[b&15])<<8
	}
	return pairs
}()

// appendSparseHex appends 0x and hex digits. In sparse, each run of zeros is a zero byte and its length.
func appendSparseHex(dst, sparse []byte) []byte {
	dst = append(dst, '0', 'x')
	for len(sparse) > 0 {
		if sparse[0] == 0 {
			dst = append(dst, zeroDigits[:2*int(sparse[1])]...)
			sparse = sparse[2:]
			continue
		}
		n := bytes.IndexByte(sparse, 0)
		if n < 0 {
			n = len(sparse)
		}
		dst = appendHex(dst, sparse[:n])
		sparse = sparse[n:]
	}
	return dst
}

var zeroDigits = strings.Repeat("00", math.MaxUint8)

const hexDigits = "0123456789abcdef"

func appendQuoted(dst, text []byte) []byte {
	quoted, err := json.Marshal(string(text))
	if err != nil { // a string always marshals
		panic(err)
	}
	return append(dst, quoted...)
}
