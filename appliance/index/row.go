package index

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"iter"
	"strconv"
	"time"
)

// FormatVersion is the version of the encoding of rows: what a store has written under another one cannot be read. It grows
// with each change of the encoding or of a type, other than a new field with the next number; testdata holds the bytes.
const FormatVersion = 1

// Row is a row of an index, such as a transfer, or an object nested in one, in its encoded form: a table of offsets and the
// values, so that a field is read without decoding the others and without allocation. The zero Row is no row. A row of a
// Snapshot is a slice of the store's memory: it must not be used after the View that it came from.
//
// Methods that take a field take its number: one of the columns, such as PacketSentColumn, or Field.Number.
//
//	byte         number of fields; fields that the type has beyond are null
//	byte         bytes per offset, 2 or 4
//	offsets      where each field's value ends, from the first value on, little-endian; an empty value is null
//	values       text: a tag and what it says; int: zigzag varint; bool: 0 or 1; time: nanoseconds since 1970, 8 bytes
//	             big-endian; JSON as it is; texts, lists: count, then length and value of each, as varints; object: a row
//
// A text is kept in the shortest of the forms of textTag.
//
// In a packed row (see Packer) the second byte may also be 1, or have packedTail set: then the values from Type.rare on are the
// number of the sample, a byte, and what was compressed with it.
type Row struct {
	t     *Type
	b     []byte
	d     *Dictionary // of a packed row, else nil
	order []byte      // the sort_order of a packed row, where it is textOrder
}

// textTag is the first byte of a text value.
type textTag = byte

const (
	textPlain  textTag = iota // the text, which needs no escapes in JSON
	textEscape                // the text, which needs escapes in JSON
	textHex                   // the bytes of 0x and lower-case hex digits
	textSparse                // the same, with each run of zero bytes as a zero byte and its length
	textSame                  // the number of an earlier field with this text
	textHexOf                 // the number of an earlier field: this is 0x and the hex digits of its text

	// These are in packed rows alone.

	textShared  // the number of a text in the dictionary, a varint
	textDecimal // a number in decimal, a varint
	textCased   // the number of an earlier field, and a bit for each byte after 0x: of a letter that is a capital here (EIP-55)
	textBech32  // the number of an earlier field, of 0x and hex digits, and what stands around its bytes, of which behind them checkSize
	textOrder   // Row.order: the key that a store has the row under
)

// RowOf returns the row that is encoded so. The bytes are not copied, and must be what Row.Bytes returned for a row of the type.
func RowOf(t *Type, encoded []byte) Row { return Row{t: t, b: encoded} }

// IsZero tells whether this is no row.
func (r Row) IsZero() bool { return len(r.b) == 0 }

// Type returns the row's type, nil for the zero Row.
func (r Row) Type() *Type { return r.t }

// Bytes returns the encoded form, which is the same for rows that say the same. It must not be changed.
func (r Row) Bytes() []byte {
	if r.d != nil && len(r.b) > 0 {
		return r.plain()
	}
	return r.b
}

// Clone returns a copy that outlives the View.
func (r Row) Clone() Row {
	return Row{t: r.t, b: bytes.Clone(r.b), d: r.d, order: bytes.Clone(r.order)}
}

// value returns the encoded value of a field, empty for null.
func (r Row) value(f int) []byte {
	b := r.b
	if len(b) < 2 || f >= int(b[0]) {
		return nil
	}
	n, start, end := int(b[0]), 0, 0
	switch b[1] {
	case 1:
		end = int(b[2+f])
		if f > 0 {
			start = int(b[1+f])
		}
		return b[2+n+start : 2+n+end]
	case 2:
		end = int(binary.LittleEndian.Uint16(b[2+2*f:]))
		if f > 0 {
			start = int(binary.LittleEndian.Uint16(b[2*f:]))
		}
		return b[2+2*n+start : 2+2*n+end]
	}
	if f > 0 {
		start = r.offset(f - 1)
	}
	if end = r.offset(f); start == end {
		return nil
	}
	if f >= r.t.rare {
		r = r.whole()
	}
	return r.b[r.head()+start : r.head()+end]
}

// offset returns where the value of a field ends.
func (r Row) offset(f int) int {
	switch r.b[1] &^ packedTail {
	case 1:
		return int(r.b[2+f])
	case 2:
		return int(binary.LittleEndian.Uint16(r.b[2+2*f:]))
	}
	return int(binary.LittleEndian.Uint32(r.b[2+4*f:]))
}

// head is where the values begin.
func (r Row) head() int { return 2 + int(r.b[0])*int(r.b[1]&^packedTail) }

// isEmpty tells whether a field has no value.
func (r Row) isEmpty(f int) bool {
	return len(r.b) < 2 || f >= int(r.b[0]) || r.offset(f) == 0 || f > 0 && r.offset(f-1) == r.offset(f)
}

// IsNull tells whether a field is null. Lists and required objects never are.
func (r Row) IsNull(f int) bool {
	field := &r.t.Fields[f]
	if field.Kind == FieldList || field.Kind == FieldObject && field.Required {
		return false
	}
	return r.isEmpty(f)
}

// Text returns a text field, and false for null.
func (r Row) Text(f int) (string, bool) {
	v := r.value(f)
	if len(v) == 0 {
		return "", false
	}
	switch v[0] {
	case textPlain, textEscape:
		return string(v[1:]), true
	case textOrder:
		return string(r.order), true
	}
	return string(r.appendText(make([]byte, 0, 2+2*len(v)), v)), true
}

// AppendText appends a text field; nothing for null.
func (r Row) AppendText(dst []byte, f int) []byte {
	v := r.value(f)
	if len(v) == 0 {
		return dst
	}
	return r.appendText(dst, v)
}

func (r Row) appendText(dst, v []byte) []byte {
	switch v[0] {
	case textPlain, textEscape:
		return append(dst, v[1:]...)
	case textHex:
		return hex.AppendEncode(append(dst, '0', 'x'), v[1:])
	case textSparse:
		return appendSparseHex(append(dst, '0', 'x'), v[1:])
	case textSame:
		return r.AppendText(dst, int(v[1]))
	case textHexOf:
		var buf [128]byte // the other may be in any form
		return hex.AppendEncode(append(dst, '0', 'x'), r.AppendText(buf[:0], int(v[1])))
	case textShared:
		return r.appendText(dst, r.shared(v))
	case textDecimal:
		n, _ := binary.Uvarint(v[1:])
		return strconv.AppendUint(dst, n, 10)
	case textCased:
		return r.appendCased(dst, v)
	case textBech32:
		return r.appendBech32(dst, v)
	case textOrder:
		return append(dst, r.order...)
	}
	panic(fmt.Sprintf("text tag %d", v[0]))
}

// shared returns the value of a text of the dictionary.
func (r Row) shared(v []byte) []byte {
	number, _ := uvarint(v[1:])
	return r.d.texts[number]
}

// Int returns an int field, and false for null.
func (r Row) Int(f int) (int32, bool) {
	v := r.value(f)
	if len(v) == 0 {
		return 0, false
	}
	n, _ := binary.Varint(v)
	return int32(n), true
}

// Bool returns a bool field, and false for null.
func (r Row) Bool(f int) (value, ok bool) {
	v := r.value(f)
	return len(v) == 1 && v[0] == 1, len(v) == 1
}

// Time returns a time field in UTC, and false for null.
func (r Row) Time(f int) (time.Time, bool) {
	v := r.value(f)
	if len(v) != 8 {
		return time.Time{}, false
	}
	return time.Unix(0, int64(binary.BigEndian.Uint64(v))).UTC(), true
}

// Nanoseconds returns a time field as nanoseconds since 1970, and false for null.
func (r Row) Nanoseconds(f int) (int64, bool) {
	v := r.value(f)
	if len(v) != 8 {
		return 0, false
	}
	return int64(binary.BigEndian.Uint64(v)), true
}

// Texts returns a list of text; nil for null.
func (r Row) Texts(f int) []string {
	v := r.value(f)
	if len(v) == 0 {
		return nil
	}
	n, v := uvarint(v)
	texts := make([]string, 0, n)
	for range n {
		var length uint64
		length, v = uvarint(v)
		texts = append(texts, string(v[:length]))
		v = v[length:]
	}
	return texts
}

// Object returns an object field; the zero Row for null.
func (r Row) Object(f int) Row {
	v := r.value(f)
	if len(v) == 0 {
		if r.t.Fields[f].Required {
			return Row{t: r.t.Fields[f].Elem, b: emptyRow}
		}
		return Row{}
	}
	return Row{t: r.t.Fields[f].Elem, b: v}
}

var emptyRow = []byte{0, 2}

// Len returns how many objects a list has.
func (r Row) Len(f int) int {
	v := r.value(f)
	if len(v) == 0 {
		return 0
	}
	n, _ := uvarint(v)
	return int(n)
}

// List yields the objects of a list in order.
func (r Row) List(f int) iter.Seq[Row] {
	return func(yield func(Row) bool) {
		v := r.value(f)
		if len(v) == 0 {
			return
		}
		n, v := uvarint(v)
		for range n {
			var length uint64
			length, v = uvarint(v)
			if !yield(Row{t: r.t.Fields[f].Elem, b: v[:length]}) {
				return
			}
			v = v[length:]
		}
	}
}

func uvarint(v []byte) (uint64, []byte) {
	if v[0] < 0x80 {
		return uint64(v[0]), v[1:]
	}
	n, size := binary.Uvarint(v)
	return n, v[size:]
}

// AppendJSON appends a field as JSON, as encoding/json would: null, a number, an escaped string, a list, …; of objects the
// fields that are not null. Where a packet's row lacks decoded or decoded_flattened, they are made from its data.
func (r Row) AppendJSON(dst []byte, f int) []byte {
	field := &r.t.Fields[f]
	v := r.value(f)
	if len(v) == 0 {
		return r.appendEmpty(dst, field)
	}
	switch field.Kind {
	case FieldText:
		return r.appendJSONText(dst, v)
	case FieldInt:
		n, _ := binary.Varint(v)
		return strconv.AppendInt(dst, n, 10)
	case FieldBool:
		return strconv.AppendBool(dst, v[0] == 1)
	case FieldTime:
		dst = append(dst, '"')
		dst = time.Unix(0, int64(binary.BigEndian.Uint64(v))).UTC().AppendFormat(dst, time.RFC3339Nano)
		return append(dst, '"')
	case FieldJSON:
		return append(dst, v...)
	case FieldTexts:
		dst = append(dst, '[')
		for i, text := range r.Texts(f) {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = appendQuoted(dst, []byte(text))
		}
		return append(dst, ']')
	case FieldObject:
		return Row{t: field.Elem, b: v}.AppendObject(dst)
	default:
		return appendList(dst, field.Elem, v)
	}
}

// appendList appends the objects of a list.
func appendList(dst []byte, of *Type, v []byte) []byte {
	dst = append(dst, '[')
	n, v := uvarint(v)
	for i := range n {
		if i > 0 {
			dst = append(dst, ',')
		}
		var length uint64
		length, v = uvarint(v)
		dst = Row{t: of, b: v[:length]}.AppendObject(dst)
		v = v[length:]
	}
	return append(dst, ']')
}

func (r Row) appendEmpty(dst []byte, field *Field) []byte {
	switch {
	case field.Kind == FieldList:
		return append(dst, "[]"...)
	case field.Kind == FieldObject && field.Required:
		return append(dst, "{}"...)
	case field.Kind == FieldJSON && (field.Number == PacketDecodedColumn || field.Number == PacketDecodedFlattenedColumn) && (r.t == PacketType || r.t == InstructionType):
		return appendDecoded(dst, r, field.Number)
	}
	return append(dst, "null"...)
}

func (r Row) appendJSONText(dst, v []byte) []byte {
	switch v[0] {
	case textEscape:
		return appendQuoted(dst, v[1:])
	case textSame:
		return r.appendJSONText(dst, r.value(int(v[1])))
	case textShared:
		return r.appendJSONText(dst, r.shared(v))
	}
	dst = append(dst, '"')
	dst = r.appendText(dst, v)
	return append(dst, '"')
}

// AppendObject appends the row as a JSON object: its fields in order, those that are null left out.
func (r Row) AppendObject(dst []byte) []byte {
	dst = append(dst, '{')
	return r.appendMembers(dst, true)
}

// AppendLine appends the row as a line of NDJSON, without the newline: AppendObject with "kind" in front.
func (r Row) AppendLine(dst []byte) []byte {
	dst = append(dst, `{"kind":"`...)
	dst = append(dst, r.t.Name...)
	dst = append(dst, '"')
	return r.appendMembers(dst, false)
}

func (r Row) appendMembers(dst []byte, first bool) []byte {
	r = r.whole()
	for i := range r.t.Fields {
		if r.isEmpty(i) {
			continue
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = append(dst, '"')
		dst = append(dst, r.t.Fields[i].Name...)
		dst = append(dst, '"', ':')
		dst = r.AppendJSON(dst, i)
	}
	return append(dst, '}')
}

// Key returns a row's key as text: its fields joined with "/", hex digits in lower case.
func (r Row) Key() string { return string(r.AppendKey(nil, r.t.Key)) }

// AppendKey appends the texts of fields, ints in decimal, joined with "/", hex digits in lower case: as Key writes them.
// The fields of a Relation give the key of the row that it leads to.
func (r Row) AppendKey(dst []byte, fields []int) []byte {
	for i, f := range fields {
		if i > 0 {
			dst = append(dst, '/')
		}
		if r.t.Fields[f].Kind == FieldInt {
			n, _ := r.Int(f)
			dst = strconv.AppendInt(dst, int64(n), 10)
			continue
		}
		start := len(dst)
		dst = r.AppendText(dst, f)
		FoldHex(dst[start:])
	}
	return dst
}

// ChannelKey is the Key of the channel of a chain.
func ChannelKey(chain string, channel int32) string {
	return chain + "/" + strconv.Itoa(int(channel))
}

// FoldHex puts a text into the form in which hashes and addresses are compared: where it begins with 0x or 0X, its
// ASCII letters become lower case. Other texts, such as chain ids, are compared as they are.
func FoldHex(text []byte) {
	if len(text) < 2 || text[0] != '0' || text[1]|0x20 != 'x' {
		return
	}
	for i, c := range text {
		if 'A' <= c && c <= 'Z' {
			text[i] = c | 0x20
		}
	}
}

// SortOrder returns a row's sort_order. Chains and tokens have none of their own: it is their key.
func (r Row) SortOrder() string {
	if r.t.order < 0 {
		return r.Key()
	}
	s, _ := r.Text(r.t.order)
	return s
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
