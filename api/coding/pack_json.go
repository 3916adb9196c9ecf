package coding

import (
	"bytes"
	"slices"
)

// mark is a byte of the text that must be there.
func (p *packing) mark(b byte) {
	switch {
	case p.err != nil:
	case p.reading:
		p.write(string(rune(b)))
	case p.ahead() != b:
		p.fail()
	default:
		p.at++
	}
}

func (p *packing) write(text string) {
	if len(p.text)+len(text) > mostPacked {
		p.fail()
		return
	}
	p.text = append(p.text, text...)
}

// ahead is the next byte of the text that is packed, zero at its end.
func (p *packing) ahead() byte {
	if !p.reading && p.at < len(p.text) {
		return p.text[p.at]
	}
	return 0
}

// value is any value of JSON.
func (p *packing) value(c *column, depth int) {
	const (
		isScalar = iota
		isObject
		isList
	)
	if depth > mostDepth {
		p.fail()
	}
	if p.checkOverrun(); p.err != nil {
		return
	}
	kind := isScalar
	switch p.ahead() {
	case '{':
		kind = isObject
	case '[':
		kind = isList
	}
	switch p.choice(c.kind[:], kind) {
	case isObject:
		p.object(c, depth)
	case isList:
		p.list(c, depth)
	default:
		p.plain(c)
	}
}

func (p *packing) list(c *column, depth int) {
	if c.element == nil {
		c.element = p.newColumn(c.object)
	}
	p.mark('[')
	n := 0
	for ; p.err == nil; n++ {
		context := 1
		if n < c.length {
			context = 0
		} else if n > c.length {
			context = 2
		}
		if !p.yes(&c.more[context], p.ahead() != ']') {
			break
		}
		if n > 0 {
			p.mark(',')
		}
		p.value(c.element, depth+1)
	}
	c.length = n
	p.mark(']')
}

func (p *packing) object(c *column, depth int) {
	c.row, p.objects = c.row+1, p.objects+1
	c.link, c.open = c.row, true
	p.mark('{')
	m := &c.start
	for n := 0; p.err == nil; n++ {
		if m = p.next(c, m, n); m == nil {
			break
		}
		p.value(m.column, depth+1)
	}
	c.open = false
	p.mark('}')
}

// next is the member behind another, nil at the end.
func (p *packing) next(c *column, before *member, n int) *member {
	const (
		isEnd = iota
		isNew
		isKnown
	)
	var key []byte
	is, old := isEnd, (*member)(nil)
	if !p.reading && p.ahead() != '}' {
		if n > 0 {
			p.mark(',')
		}
		key = p.quoted()
		p.mark(':')
		if is, old = isNew, before.next; old == nil || old.key != string(key) {
			old = c.byKey[string(key)]
		}
		if old != nil {
			is = isKnown
		}
	}
	m := before.next
	if !before.known || !p.yes(&before.odds, is != isNew && old == before.next) {
		m = p.other(c, is, old, key)
		before.next, before.known = m, true
	}
	if p.reading && m != nil {
		if n > 0 {
			p.mark(',')
		}
		p.write(`"` + m.key + `":`)
	}
	return m
}

// other is a member that was not expected.
func (p *packing) other(c *column, is int, old *member, key []byte) *member {
	switch p.choice(c.novel[:], is) {
	case 0:
		return nil
	case 1:
		m := &member{key: p.newKey(key)}
		m.column = p.columnOf(c)
		if c.byKey == nil {
			c.byKey = make(map[string]*member)
		}
		c.byKey[m.key] = m
		c.members = append(c.members, m)
		return m
	}
	at := 0
	for i, m := range c.members {
		if m == old {
			at = i
		}
	}
	if at = p.below(len(c.members), at); at >= len(c.members) {
		p.fail()
		return nil
	}
	return c.members[at]
}

// columnOf is the column of a new member: that of the one before where both are lists of the same objects, as the packets of a look-up.
func (p *packing) columnOf(c *column) *column {
	if n := len(c.members); n > 0 {
		before := c.members[n-1].column
		if p.yes(&c.alike, !p.reading && p.isAlike(before)) {
			return before
		}
	}
	return p.newColumn(c)
}

// isAlike tells a list whose first object has the members that those of another list have, up to the first that has members itself.
func (p *packing) isAlike(before *column) bool {
	if p.ahead() != '[' || before.element == nil {
		return false
	}
	defer func(at int) { p.at = at }(p.at)
	p.at++
	if p.ahead() != '{' {
		return p.ahead() == ']'
	}
	for m := before.element.start.next; m != nil; m = m.next {
		p.at++
		if key := p.quoted(); string(key) != m.key {
			return false
		}
		p.mark(':')
		switch p.ahead() {
		case '{', '[':
			return true
		case '"':
			p.quoted()
		default:
			p.literal()
		}
		if p.err != nil || p.ahead() != ',' {
			return m.next == nil
		}
	}
	return false
}

// newKey is the key of a member that no object before has had.
func (p *packing) newKey(key []byte) string {
	if !p.reading {
		p.keys = append(p.keys, string(key))
		return string(key)
	}
	if len(p.keys) == 0 {
		p.fail()
		return ""
	}
	first := p.keys[0]
	p.keys = p.keys[1:]
	return first
}

// quoted returns what is between the quotes ahead, when packing.
func (p *packing) quoted() []byte {
	p.mark('"')
	began := p.at
	for ; p.at < len(p.text); p.at++ {
		switch b := p.text[p.at]; {
		case b == '"':
			p.at++
			return p.text[began : p.at-1]
		case b < ' ':
			p.fail()
			return nil
		case b == '\\':
			p.at++
		}
	}
	p.fail()
	return nil
}

// literal returns a number, true, false or null, or else nothing.
func (p *packing) literal() []byte {
	began := p.at
	for p.at < len(p.text) && bytes.IndexByte([]byte("+-.0123456789Eaeflnrstu"), p.text[p.at]) >= 0 {
		p.at++
	}
	if p.at == began {
		p.fail()
	}
	return p.text[began:p.at]
}

// plain is a string or a literal.
func (p *packing) plain(c *column) {
	if p.reading {
		p.unpack(p.scalar(c, c, scalar{}))
		return
	}
	quoted := p.ahead() == '"'
	began := p.at
	var text []byte
	if quoted {
		text = p.quoted()
	} else {
		text = p.literal()
	}
	if p.err != nil || len(text) > mostText {
		p.fail()
		return
	}
	p.pack(c, p.text[began:p.at], quoted, text)
}

// pack packs a string or a literal, whole with its quotes.
func (p *packing) pack(c *column, whole []byte, quoted bool, text []byte) {
	if v, ok := p.seen[string(whole)]; ok {
		p.scalar(c, c, scalar{value: v, form: p.forms[v.form]})
		return
	}
	v := p.scalar(c, c, p.scalarOf(p.formOf(quoted, text)))
	if len(whole) <= mostMemo {
		p.seen[string(whole)] = v
	}
}

// formOf is as the function, as long as there is room for forms.
func (p *packing) formOf(quoted bool, text []byte) (form, []byte) {
	f, raw := formOf(quoted, text)
	switch {
	case f.part == "" || len(p.forms) < otherForm || slices.Contains(p.forms, f):
		return f, raw
	case f.kind == formBech32Hex:
		raw, _ = f.bytes(raw)
		return form{kind: formHex}, raw
	}
	return form{kind: formText}, text
}

func (p *packing) unpack(v value) {
	if p.err != nil {
		return
	}
	if text, ok := p.written[v]; ok {
		p.write(text)
		return
	}
	text, err := p.forms[v.form].appendJSON(nil, []byte(p.known[v.bytes].bytes))
	if err != nil {
		p.err = err
		return
	}
	if p.write(string(text)); len(text) <= mostMemo && len(p.written) < mostKnown {
		p.written[v] = string(text)
	}
}
