package index

import (
	"bytes"
	"encoding/binary"
	"iter"
	"strconv"
)

// FormatVersion is the version of the encoding of rows. Stores written under a different version cannot be read. It
// increases with each change of the encoding or of a type, except for a new field with the next number. testdata holds
// the pinned bytes.
const FormatVersion = 1

// Row is an encoded row of an index, such as a transfer, or an object nested in one. The encoding is a table of offsets
// and the values, so that a field is read without decoding the others and without allocation. The zero Row is no row. A
// row from a Snapshot is a slice of the store's memory and must not be used after its View.
//
// Methods that take a field take its number: one of the columns, such as PacketSentColumn, or Field.Number.
//
//	byte         number of fields; later fields of the type are null
//	byte         bytes per offset, 2 or 4
//	offsets      the end of each field's value, counted from the first value, little-endian; an empty value is null
//	values       text: a tag and the text in that form; int: zigzag varint; bool: 0 or 1; time: nanoseconds since 1970,
//	             8 bytes big-endian; JSON as it is; texts, lists: count, then length and value of each, as varints;
//	             object: a row
//
// A text is stored in the shortest form of textTag.
//
// A row of a Dictionary is packed: its layout has the positions of the values.
type Row struct {
	t     *Type
	b     []byte
	h     *rowLayout  // of a packed row, otherwise nil; b then holds the bytes after the layout
	d     *Dictionary // of a packed row
	order []byte      // the sort_order of a packed row that has the form textOrder
}

// RowOf returns the row with this encoding, which must come from Row.Bytes of a row of the same type. The bytes are not
// copied.
func RowOf(t *Type, encoded []byte) Row { return Row{t: t, b: encoded} }

// IsZero reports whether this is the zero Row, or a row without bytes.
func (r Row) IsZero() bool { return len(r.b) == 0 && r.h == nil }

// Type returns the row's type, nil for the zero Row.
func (r Row) Type() *Type { return r.t }

// Bytes returns the plain encoding. Rows with equal contents have equal bytes. The caller must not change them.
func (r Row) Bytes() []byte {
	if r.h != nil {
		return r.plain()
	}
	return r.b
}

// Clone returns a copy that outlives the View.
func (r Row) Clone() Row {
	r.b, r.order = bytes.Clone(r.b), bytes.Clone(r.order)
	if r.h != nil {
		r.h = r.h.clone()
	}
	return r
}

// value returns the encoded value of a field, empty for null. See also text.
func (r *Row) value(f int) []byte {
	if r.h != nil {
		return r.placed(f, r.h.position(f))
	}
	return plainValue(r.b, f)
}

// plainValue returns the value of a field of a plain row.
func plainValue(b []byte, f int) []byte {
	if len(b) < 2 || f >= int(b[0]) {
		return nil
	}
	start, values := 0, b[2+int(b[0])*int(b[1]):]
	if f > 0 {
		start = plainEnd(b, f-1)
	}
	return values[start:plainEnd(b, f)]
}

// plainEnd returns the end of a field's value in a plain row.
func plainEnd(b []byte, f int) int {
	if b[1] == 2 {
		return int(binary.LittleEndian.Uint16(b[2+2*f:]))
	}
	return int(binary.LittleEndian.Uint32(b[2+4*f:]))
}

// isEmpty reports whether a field has no value.
func (r *Row) isEmpty(f int) bool {
	if r.h != nil {
		return r.h.position(f).form == formNone
	}
	return len(r.value(f)) == 0
}

// IsNull reports whether a field is null. Lists and required objects never are.
func (r Row) IsNull(f int) bool {
	field := &r.t.Fields[f]
	if field.Kind == FieldList || field.Kind == FieldObject && field.Required {
		return false
	}
	return r.isEmpty(f)
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

// Len returns the number of objects in a list.
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

// AppendJSON appends a field as encoding/json would: null, a number, an escaped string, a list, …. Null fields of
// objects are left out. If a packet's row lacks decoded or decoded_flattened, AppendJSON computes them from its data.
func (r *Row) AppendJSON(dst []byte, f int) []byte {
	field := &r.t.Fields[f]
	switch field.Kind {
	case FieldText:
		return r.appendJSONText(dst, f)
	case FieldTime:
		return r.appendJSONTime(dst, f)
	}
	v := r.value(f)
	if len(v) == 0 {
		return r.appendEmpty(dst, field)
	}
	switch field.Kind {
	case FieldInt:
		n, _ := binary.Varint(v)
		return strconv.AppendInt(dst, n, 10)
	case FieldBool:
		return strconv.AppendBool(dst, v[0] == 1)
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

func (r *Row) appendEmpty(dst []byte, field *Field) []byte {
	switch {
	case field.Kind == FieldList:
		return append(dst, "[]"...)
	case field.Kind == FieldObject && field.Required:
		return append(dst, "{}"...)
	case field.Kind == FieldJSON && (field.Number == PacketDecodedColumn ||
		field.Number == PacketDecodedFlattenedColumn) && (r.t == PacketType || r.t == InstructionType):
		return appendDecoded(dst, *r, field.Number)
	}
	return append(dst, "null"...)
}

// AppendObject appends the row as a JSON object: its fields in order, without null fields.
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

// AppendKey appends fields in the form of Key: texts, and ints in decimal, joined with "/", hex digits in lower case.
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

// ChannelKey returns the Key of a chain's channel.
func ChannelKey(chain string, channel int32) string {
	return chain + "/" + strconv.Itoa(int(channel))
}

// FoldHex normalises hashes and addresses for comparison: if a text begins with 0x or 0X, its ASCII letters become
// lower case. Other texts, such as chain ids, are left as they are.
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

// SortOrder returns a row's sort_order. For types without one, such as chains and tokens, it is the key.
func (r Row) SortOrder() string {
	if r.t.order < 0 {
		return r.Key()
	}
	s, _ := r.Text(r.t.order)
	return s
}
