package index

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/attestd/attestd/appliance"
)

// NewRow encodes a Transfer, Packet, Token, Chain, Channel, Client or Connection.
//
// Errors: CodeInvalidField, with Field set, for text that is not UTF-8, a time outside the years 1678 to 2261, invalid
// JSON, a field that is too large, an empty key or sort_order, or a zero byte in a chain id.
func NewRow(value any) (Row, error) {
	v := reflect.ValueOf(value)
	for _, t := range RowTypes {
		if t.goType == v.Type() {
			e := encoders.Get().(*encoder)
			defer e.release()
			if err := e.object(t, v); err != nil {
				return Row{}, err
			}
			row := Row{t: t, b: bytes.Clone(e.buf)}
			return row, row.validateKey()
		}
	}
	return Row{}, appliance.Errorf(appliance.CodeInvalidField, "%T is not a row", value)
}

// WithText returns a copy of the row with one text field replaced.
//
// Errors: as NewRow.
func (r Row) WithText(f int, text string) (Row, error) {
	v := reflect.New(r.t.goType).Elem()
	r.decode(v)
	if member := v.Field(r.t.Fields[f].member); member.Kind() == reflect.Pointer {
		member.Set(reflect.ValueOf(&text))
	} else {
		member.SetString(text)
	}
	return NewRow(v.Interface())
}

func (r Row) validateKey() error {
	for i := range r.t.Fields {
		f := &r.t.Fields[i]
		if f.Kind != FieldText || !strings.HasSuffix(f.Name, "universal_chain_id") {
			continue
		}
		if v := r.value(i); len(v) > 0 && v[0] == textEscape && bytes.IndexByte(v[1:], 0) >= 0 {
			return appliance.Errorf(appliance.CodeInvalidField, "must not have a zero byte").In(f.Name)
		}
	}
	for _, f := range r.t.Key {
		if r.t.Fields[f].Kind == FieldText && len(r.value(f)) < 2 {
			return appliance.Errorf(appliance.CodeInvalidField, "must not be empty").In(r.t.Fields[f].Name)
		}
	}
	if f, ok := r.t.Field("sort_order"); ok {
		var buf [MaxSortOrder + 1]byte
		if n := len(r.AppendText(buf[:0], f.Number)); n < 1 || n > MaxSortOrder {
			return appliance.Errorf(appliance.CodeInvalidField, "must have 1 to %d bytes", MaxSortOrder).In(f.Name)
		}
	}
	return nil
}

// MaxSortOrder is the largest sort_order, in bytes. Stores use it in keys of limited size.
const MaxSortOrder = 1024

// The largest sizes of other fields, in bytes. Stores use chain ids, two at a time, and the denoms of tokens in keys.
// The other limits keep a single row from exhausting a store's memory.
const (
	maxChainID = 256
	maxDenom   = 16 << 10
	maxField   = 256 << 10 // a name, a hash, a logo
	maxPayload = 8 << 20   // packet payloads, JSON, lists and objects
)

// check rejects a plain value that is larger than the field allows.
func (f *Field) check(size int) error {
	if size > f.max {
		return appliance.Errorf(appliance.CodeInvalidField, "has %d bytes, more than %d", size, f.max).In(f.Name)
	}
	return nil
}

// encoder builds rows. It first appends the plain values of an object to buf. Once the object is complete, finish
// replaces them with the row.
type encoder struct {
	buf   []byte
	spans []span // of the incomplete objects, outermost first
	out   []byte // scratch of finish
}

// encoders reuses the memory of encoders.
var encoders = sync.Pool{New: func() any { return new(encoder) }}

func (e *encoder) release() {
	const keep = 1 << 20 // encoders with more memory are left to the garbage collector
	if cap(e.buf)+cap(e.out) > keep {
		return
	}
	e.buf, e.out, e.spans = e.buf[:0], e.out[:0], e.spans[:0]
	encoders.Put(e)
}

// span is the position of a field's plain value in buf.
type span struct {
	start, end int
	set        bool
}

// begin starts an object. It returns the index of its first span and its start in buf.
func (e *encoder) begin(t *Type) (base, mark int) {
	base = len(e.spans)
	for range t.Fields {
		e.spans = append(e.spans, span{})
	}
	return base, len(e.buf)
}

// finish replaces the values of an object with its row.
func (e *encoder) finish(t *Type, base, mark int) error {
	spans := e.spans[base:]
	used := 0
	for i := range t.Fields {
		f := &t.Fields[i]
		if spans[i].set {
			used = i + 1
		} else if f.Required && f.Kind != FieldObject && f.Kind != FieldList {
			return appliance.Errorf(appliance.CodeMissingField, "is missing in a %s", t.Name).In(f.Name)
		}
	}
	out := append(e.out[:0], byte(used), 2)
	out = append(out, make([]byte, 2*used)...)
	for i := range used {
		out = e.appendValue(out, t, spans, i)
		end := len(out) - 2 - 2*used
		if end > math.MaxUint16 {
			return e.finishWide(t, spans[:used], base, mark)
		}
		binary.LittleEndian.PutUint16(out[2+2*i:], uint16(end))
	}
	e.replace(out, base, mark)
	return nil
}

// finishWide is finish for an object with values too large for two-byte offsets.
func (e *encoder) finishWide(t *Type, spans []span, base, mark int) error {
	used := len(spans)
	out := append(e.out[:0], byte(used), 4)
	out = append(out, make([]byte, 4*used)...)
	for i := range used {
		out = e.appendValue(out, t, spans, i)
		end := len(out) - 2 - 4*used
		if end > math.MaxInt32 {
			return appliance.Errorf(appliance.CodeInvalidField, "a %s is too large", t.Name)
		}
		binary.LittleEndian.PutUint32(out[2+4*i:], uint32(end))
	}
	e.replace(out, base, mark)
	return nil
}

func (e *encoder) replace(out []byte, base, mark int) {
	e.buf = append(e.buf[:mark], out...)
	e.out = out
	e.spans = e.spans[:base]
}

// appendValue appends the value of field i in the form of a row.
func (e *encoder) appendValue(out []byte, t *Type, spans []span, i int) []byte {
	if !spans[i].set {
		return out
	}
	plain := e.buf[spans[i].start:spans[i].end]
	if t.Fields[i].Kind != FieldText {
		return append(out, plain...)
	}
	const worthReferring = 8
	if len(plain) >= worthReferring {
		if j := e.earlier(t, spans[:i], plain); j >= 0 {
			return append(out, textSame, byte(j))
		}
	}
	if len(plain) >= 4 && plain[0] == '0' && plain[1] == 'x' {
		if packed, ok := e.appendHex(out, t, spans[:i], plain[2:]); ok {
			return packed
		}
	}
	if needsEscape(plain) {
		return append(append(out, textEscape), plain...)
	}
	return append(append(out, textPlain), plain...)
}

// earlier returns the first field with this text, or -1.
func (e *encoder) earlier(t *Type, spans []span, plain []byte) int {
	for j, s := range spans {
		if s.set && s.end-s.start == len(plain) && t.Fields[j].Kind == FieldText &&
			bytes.Equal(e.buf[s.start:s.end], plain) {
			return j
		}
	}
	return -1
}

// appendHex appends a text of 0x and digits in the shortest hex form. If the digits are not pairs of lower-case hex
// digits, ok is false and out is unchanged.
func (e *encoder) appendHex(out []byte, t *Type, spans []span, digits []byte) (packed []byte, ok bool) {
	mark := len(out)
	out, ok = appendUnhex(append(out, textHex), digits)
	if !ok {
		return out[:mark], false
	}
	raw := out[mark+1:]
	if len(raw) > 8 {
		// A reference must lead to a field that stores its text itself. The first field with a text does so, unless the
		// text is hex.
		if j := e.earlier(t, spans, raw); j >= 0 && !isHex(raw) {
			return append(out[:mark], textHexOf, byte(j)), true
		}
	}
	if n := len(raw); n >= 64 {
		out = appendSparse(out, raw)
		if sparse := out[mark+1+n:]; len(sparse) < n*3/4 {
			out[mark] = textSparse
			return out[:mark+1+copy(out[mark+1:], sparse)], true
		}
		out = out[:mark+1+n]
	}
	return out, true
}

// appendUnhex appends the bytes of pairs of lower-case hex digits; ok is false for any other text.
func appendUnhex(dst, digits []byte) (_ []byte, ok bool) {
	if len(digits)%2 != 0 {
		return dst, false
	}
	bad := byte(0)
	for i := 0; i+1 < len(digits); i += 2 {
		high, low := hexValues[digits[i]], hexValues[digits[i+1]]
		bad |= high | low
		dst = append(dst, high<<4|low)
	}
	return dst, bad&0xf0 == 0
}

// hexValues are the values of lower-case hex digits, 0xff for other bytes.
var hexValues = valuesOf(hexDigits)

// valuesOf returns the values of an alphabet's digits, 0xff for other bytes.
func valuesOf(alphabet string) (values [256]byte) {
	for i := range values {
		values[i] = 0xff
	}
	for i := range alphabet {
		values[alphabet[i]] = byte(i)
	}
	return values
}

// appendSparse appends bytes with each run of up to 255 zeros as a zero byte and its length.
func appendSparse(dst, raw []byte) []byte {
	for i := 0; i < len(raw); {
		if raw[i] != 0 {
			dst = append(dst, raw[i])
			i++
			continue
		}
		run := 1
		for run < 255 && i+run < len(raw) && raw[i+run] == 0 {
			run++
		}
		dst = append(dst, 0, byte(run))
		i += run
	}
	return dst
}

// isHex reports whether text is 0x and at least one pair of lower-case hex digits.
func isHex(text []byte) bool {
	if len(text) < 4 || len(text)%2 != 0 || text[0] != '0' || text[1] != 'x' {
		return false
	}
	for _, c := range text[2:] {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// needsEscape reports whether encoding/json would escape a part of the text. It also does so for any byte outside
// ASCII.
func needsEscape(text []byte) bool {
	for _, c := range text {
		if !unescaped[c] {
			return true
		}
	}
	return false
}

// unescaped are the ASCII bytes that encoding/json writes unchanged.
var unescaped = func() (plain [256]bool) {
	for c := ' '; c < utf8.RuneSelf; c++ {
		plain[c] = !strings.ContainsRune(`"\<>&`, c)
	}
	return plain
}()

// set records the bytes appended to buf since start as the field's plain value.
func (e *encoder) set(field, start int) {
	e.spans[field] = span{start: start, end: len(e.buf), set: true}
}

// object encodes a Go struct.
func (e *encoder) object(t *Type, v reflect.Value) error {
	base, mark := e.begin(t)
	for i := range t.Fields {
		f := &t.Fields[i]
		member := v.Field(f.member)
		switch member.Kind() {
		case reflect.Pointer:
			if member.IsNil() {
				continue
			}
			member = member.Elem()
		case reflect.Slice:
			if member.Len() == 0 && (f.Kind != FieldTexts || member.IsNil()) {
				continue
			}
		}
		start := len(e.buf)
		if err := e.member(f, member); err != nil {
			return err
		}
		if err := f.check(len(e.buf) - start); err != nil {
			return err
		}
		e.set(base+i, start)
		e.dropEmpty(f, base+i)
	}
	return e.finish(t, base, mark)
}

// dropEmpty removes an empty list, or a required object without fields: it reads the same as a missing one.
func (e *encoder) dropEmpty(f *Field, at int) {
	s := &e.spans[at]
	if f.Kind == FieldList && e.buf[s.start] == 0 || f.Kind == FieldObject && f.Required && e.buf[s.start] == 0 {
		e.buf = e.buf[:s.start]
		*s = span{}
	}
}

func (e *encoder) member(f *Field, v reflect.Value) error {
	switch f.Kind {
	case FieldText:
		return e.text(f, v.String())
	case FieldInt:
		e.buf = binary.AppendVarint(e.buf, v.Int())
	case FieldBool:
		e.bool(v.Bool())
	case FieldTime:
		return e.time(f, v.Interface().(time.Time))
	case FieldJSON:
		return e.json(f, v.Bytes())
	case FieldTexts:
		e.buf = binary.AppendUvarint(e.buf, uint64(v.Len()))
		for i := range v.Len() {
			start := len(e.buf)
			if err := e.text(f, v.Index(i).String()); err != nil {
				return err
			}
			e.prefixLength(start)
		}
	case FieldObject:
		return e.object(f.Elem, v)
	case FieldList:
		e.buf = binary.AppendUvarint(e.buf, uint64(v.Len()))
		for i := range v.Len() {
			start := len(e.buf)
			if err := e.object(f.Elem, v.Index(i)); err != nil {
				return err
			}
			e.prefixLength(start)
		}
	}
	return nil
}

// prefixLength inserts the length of the bytes since start in front of them.
func (e *encoder) prefixLength(start int) { e.prefix(start, uint64(len(e.buf)-start)) }

// prefix inserts a number in front of the bytes since start.
func (e *encoder) prefix(start int, number uint64) {
	var b [binary.MaxVarintLen64]byte
	n := binary.PutUvarint(b[:], number)
	e.buf = append(e.buf, b[:n]...)
	copy(e.buf[start+n:], e.buf[start:len(e.buf)-n])
	copy(e.buf[start:], b[:n])
}

func (e *encoder) text(f *Field, s string) error {
	if !utf8.ValidString(s) {
		return appliance.Errorf(appliance.CodeInvalidField, "must be UTF-8").In(f.Name)
	}
	e.buf = append(e.buf, s...)
	return nil
}

func (e *encoder) bool(b bool) {
	if b {
		e.buf = append(e.buf, 1)
	} else {
		e.buf = append(e.buf, 0)
	}
}

var minTime, maxTime = time.Unix(0, math.MinInt64), time.Unix(0, math.MaxInt64)

func (e *encoder) time(f *Field, t time.Time) error {
	if t.Before(minTime) || t.After(maxTime) {
		return appliance.Errorf(appliance.CodeInvalidField, "must be in the years 1678 to 2261").In(f.Name)
	}
	e.buf = binary.BigEndian.AppendUint64(e.buf, uint64(t.UnixNano()))
	return nil
}

func (e *encoder) json(f *Field, raw []byte) error {
	var compact bytes.Buffer
	if err := json.Compact(&compact, raw); err != nil || !utf8.Valid(raw) {
		return appliance.Errorf(appliance.CodeInvalidField, "must be JSON").In(f.Name)
	}
	escaped := bytes.NewBuffer(e.buf)
	json.HTMLEscape(escaped, compact.Bytes()) // escaped as encoding/json would escape it in an answer
	e.buf = escaped.Bytes()
	return nil
}
