package index

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/attestd/attestd/appliance"
)

// ParseLine parses a line of NDJSON as AppendLine writes it. Members may come in any order. Nullable members may be
// omitted.
//
// Errors: CodeInvalidJSON, CodeUnknownField, CodeMissingField, CodeDuplicateField, and as NewRow.
func ParseLine(line []byte) (Row, error) {
	p := parser{in: line}
	t, err := p.kind()
	if err != nil {
		return Row{}, err
	}
	return parseRow(t, line, true)
}

// ParseRow parses a JSON object as a row of that type, one of RowTypes: ParseLine without the member "kind".
//
// Errors: as ParseLine.
func ParseRow(t *Type, object []byte) (Row, error) { return parseRow(t, object, false) }

// parseRow parses an object. A line of NDJSON also has the member "kind".
func parseRow(t *Type, in []byte, line bool) (Row, error) {
	p := parser{in: in, e: encoders.Get().(*encoder)}
	defer p.e.release()
	if err := p.object(t, line); err != nil {
		return Row{}, err
	}
	p.space()
	if p.at < len(p.in) {
		return Row{}, appliance.Errorf(appliance.CodeInvalidJSON, "unexpected data after the row at byte %d", p.at+1)
	}
	row := Row{t: t, b: bytes.Clone(p.e.buf)}
	return row, row.validateKey()
}

// parser reads a line of NDJSON straight into an encoder.
type parser struct {
	in []byte
	at int
	e  *encoder
}

// kind returns the type that the line's member "kind" names.
func (p *parser) kind() (*Type, error) {
	if err := p.expect('{'); err != nil {
		return nil, err
	}
	for first := true; ; first = false {
		name, done, err := p.memberName(first)
		if err != nil {
			return nil, err
		}
		if done {
			return nil, appliance.Errorf(appliance.CodeMissingField, "is missing").In("kind")
		}
		value, err := p.raw()
		if err != nil {
			return nil, err
		}
		if string(name) != "kind" {
			continue
		}
		var kind string
		if err := json.Unmarshal(value, &kind); err != nil {
			return nil, appliance.Errorf(appliance.CodeInvalidField, "must be text").In("kind")
		}
		for _, t := range RowTypes {
			if t.Name == kind {
				return t, nil
			}
		}
		return nil, appliance.Errorf(appliance.CodeInvalidField,
			"must be chain, token, client, connection, channel, packet or transfer").In("kind")
	}
}

// object reads a JSON object into a row at the end of the encoder's buf.
func (p *parser) object(t *Type, line bool) error {
	if err := p.expect('{'); err != nil {
		return err
	}
	base, mark := p.e.begin(t)
	kindSeen := false
	for first := true; ; first = false {
		name, done, err := p.memberName(first)
		if err != nil {
			return err
		}
		if done {
			return p.e.finish(t, base, mark)
		}
		if line && string(name) == "kind" {
			if kindSeen {
				return appliance.Errorf(appliance.CodeDuplicateField, "occurs twice").In("kind")
			}
			kindSeen = true
			if _, err := p.raw(); err != nil {
				return err
			}
			continue
		}
		i, known := t.byName[string(name)]
		if !known {
			return appliance.Errorf(appliance.CodeUnknownField, "is not a member of a %s", t.Name).In(string(name))
		}
		f := &t.Fields[i]
		if p.e.spans[base+i].set {
			return appliance.Errorf(appliance.CodeDuplicateField, "occurs twice").In(f.Name)
		}
		if p.null() {
			continue // finish reports a null in a required member as missing
		}
		start := len(p.e.buf)
		if err := p.value(f); err != nil {
			return err
		}
		if err := f.check(len(p.e.buf) - start); err != nil {
			return err
		}
		p.e.set(base+i, start)
		p.e.dropEmpty(f, base+i)
	}
}

func (p *parser) value(f *Field) error {
	switch f.Kind {
	case FieldText:
		return p.text(f)
	case FieldInt:
		raw, err := p.raw()
		if err != nil {
			return err
		}
		n, err := strconv.ParseInt(string(raw), 10, 32)
		if err != nil || string(raw) == "-0" {
			return appliance.Errorf(appliance.CodeInvalidField, "must be a 32-bit integer").In(f.Name)
		}
		p.e.buf = binary.AppendVarint(p.e.buf, n)
		return nil
	case FieldBool:
		raw, err := p.raw()
		if err != nil {
			return err
		}
		if string(raw) != "true" && string(raw) != "false" {
			return appliance.Errorf(appliance.CodeInvalidField, "must be true or false").In(f.Name)
		}
		p.e.bool(raw[0] == 't')
		return nil
	case FieldTime:
		return p.time(f)
	case FieldJSON:
		raw, err := p.raw()
		if err != nil {
			return err
		}
		return p.e.json(f, raw)
	case FieldTexts:
		return p.list(f, func() error { return p.text(f) })
	case FieldObject:
		return p.object(f.Elem, false)
	default:
		return p.list(f, func() error { return p.object(f.Elem, false) })
	}
}

// list reads a JSON array: its count, then length and value of each element.
func (p *parser) list(f *Field, element func() error) error {
	if err := p.expect('['); err != nil {
		return appliance.Errorf(appliance.CodeInvalidField, "must be a list").In(f.Name)
	}
	start := len(p.e.buf)
	count := uint64(0)
	for p.space(); p.at < len(p.in) && p.in[p.at] != ']'; p.space() {
		if count > 0 {
			if err := p.expect(','); err != nil {
				return err
			}
		}
		from := len(p.e.buf)
		if err := element(); err != nil {
			return err
		}
		p.e.prefixLength(from)
		count++
	}
	if err := p.expect(']'); err != nil {
		return err
	}
	p.e.prefix(start, count)
	return nil
}

func (p *parser) time(f *Field) error {
	start := len(p.e.buf)
	if err := p.text(f); err != nil {
		return err
	}
	t, err := time.Parse(time.RFC3339, string(p.e.buf[start:]))
	if err != nil {
		return appliance.Errorf(appliance.CodeInvalidField, "must be an RFC 3339 time").In(f.Name)
	}
	p.e.buf = p.e.buf[:start]
	return p.e.time(f, t)
}

// text reads a JSON string and appends its contents.
func (p *parser) text(f *Field) error {
	p.space()
	if p.at >= len(p.in) || p.in[p.at] != '"' {
		return appliance.Errorf(appliance.CodeInvalidField, "must be text").In(f.Name)
	}
	p.at++
	start := p.at
	for p.at < len(p.in) {
		switch c := p.in[p.at]; {
		case unescaped[c]:
		case c == '"':
			p.e.buf = append(p.e.buf, p.in[start:p.at]...)
			p.at++
			return nil
		case c == '\\' || c >= utf8.RuneSelf:
			return p.escapedText(f, start)
		case c < ' ':
			return appliance.Errorf(appliance.CodeInvalidJSON, "a control character in a string at byte %d", p.at+1)
		}
		p.at++
	}
	return errTruncated
}

// escapedText reads a string that is not plain ASCII. Its contents begin at start.
func (p *parser) escapedText(f *Field, start int) error {
	p.at = start - 1
	raw, err := p.raw()
	if err != nil {
		return err
	}
	raw = raw[1 : len(raw)-1]
	if !utf8.Valid(raw) {
		return appliance.Errorf(appliance.CodeInvalidField, "must be UTF-8").In(f.Name)
	}
	for i := 0; i < len(raw); {
		if raw[i] != '\\' {
			p.e.buf = append(p.e.buf, raw[i])
			i++
			continue
		}
		n := p.unescape(raw[i:])
		if n == 0 {
			return appliance.Errorf(appliance.CodeInvalidJSON, "an incomplete surrogate pair in a string").In(f.Name)
		}
		i += n
	}
	return nil
}

// unescape appends the character of the escape at the beginning of raw, which is valid JSON, and returns the escape's
// length. It returns 0 for half of a surrogate pair, which cannot be encoded in UTF-8.
func (p *parser) unescape(raw []byte) int {
	if i := bytes.IndexByte([]byte(`"\/bfnrt`), raw[1]); i >= 0 {
		p.e.buf = append(p.e.buf, "\"\\/\b\f\n\r\t"[i])
		return 2
	}
	r, n := hexRune(raw[2:6]), 6
	if utf16.IsSurrogate(r) {
		if len(raw) < 12 || raw[6] != '\\' || raw[7] != 'u' {
			return 0
		}
		if r = utf16.DecodeRune(r, hexRune(raw[8:12])); r == utf8.RuneError {
			return 0
		}
		n = 12
	}
	p.e.buf = utf8.AppendRune(p.e.buf, r)
	return n
}

func hexRune(digits []byte) rune {
	var b [2]byte
	_, _ = hex.Decode(b[:], digits) // a valid escape has valid digits
	return rune(b[0])<<8 | rune(b[1])
}

var errTruncated = appliance.Errorf(appliance.CodeInvalidJSON, "the row is incomplete")

func (p *parser) space() {
	for p.at < len(p.in) {
		switch p.in[p.at] {
		case ' ', '\t', '\r', '\n':
			p.at++
		default:
			return
		}
	}
}

func (p *parser) expect(c byte) error {
	p.space()
	if p.at >= len(p.in) {
		return errTruncated
	}
	if p.in[p.at] != c {
		return appliance.Errorf(appliance.CodeInvalidJSON, "%q at byte %d instead of %q", p.in[p.at], p.at+1, c)
	}
	p.at++
	return nil
}

// null reads the literal null, if it comes next.
func (p *parser) null() bool {
	p.space()
	if !bytes.HasPrefix(p.in[p.at:], []byte("null")) {
		return false
	}
	p.at += len("null")
	return true
}

// memberName reads up to a member's value. done means that the object has ended.
func (p *parser) memberName(first bool) (name []byte, done bool, err error) {
	p.space()
	if p.at < len(p.in) && p.in[p.at] == '}' {
		p.at++
		return nil, true, nil
	}
	if !first {
		if err := p.expect(','); err != nil {
			return nil, false, err
		}
		p.space()
	}
	if p.at >= len(p.in) || p.in[p.at] != '"' {
		return nil, false, appliance.Errorf(appliance.CodeInvalidJSON, "missing member name at byte %d", p.at+1)
	}
	raw, err := p.raw()
	if err != nil {
		return nil, false, err
	}
	return raw[1 : len(raw)-1], false, p.expect(':')
}

// raw returns the next JSON value after validating it. It does not validate a plain string.
func (p *parser) raw() ([]byte, error) {
	p.space()
	start, depth := p.at, 0
	plain := true
	for p.at < len(p.in) {
		switch p.in[p.at] {
		case '"':
			simple := p.skipString()
			plain = plain && simple
			if depth == 0 {
				return p.checked(start, plain)
			}
			continue
		case '{', '[':
			plain = false
			depth++
		case '}', ']':
			if depth == 0 {
				return p.checked(start, false)
			}
			if depth--; depth == 0 {
				p.at++
				return p.checked(start, false)
			}
		case ',', ' ', '\t', '\r', '\n':
			if depth == 0 {
				return p.checked(start, false)
			}
		}
		p.at++
	}
	return nil, errTruncated
}

func (p *parser) checked(start int, plain bool) ([]byte, error) {
	raw := p.in[start:p.at]
	if !plain && !json.Valid(raw) {
		return nil, appliance.Errorf(appliance.CodeInvalidJSON, "missing JSON value at byte %d", start+1)
	}
	return raw, nil
}

// skipString moves past the string that begins here, and reports whether it is complete and plain ASCII.
func (p *parser) skipString() (plain bool) {
	plain = true
	for p.at++; p.at < len(p.in); p.at++ {
		switch c := p.in[p.at]; {
		case unescaped[c]:
		case c == '"':
			p.at++
			return plain
		case c == '\\':
			plain = false
			p.at++
		case c < ' ' || c >= utf8.RuneSelf:
			plain = false
		}
	}
	return false
}
