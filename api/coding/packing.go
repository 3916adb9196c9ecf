package coding

import (
	"bufio"
	"errors"
	"io"
)

var errPacked = errors.New("the packed text is malformed")

const (
	mostPacked = 4 << 20 // bytes of a text that is packed, and of its phrases
	mostText   = 1 << 20 // bytes of a string in it
	mostBytes  = 8 << 20 // of all values that differ: those within bytes are values, too
	mostKnown  = 1 << 17 // values that differ
	mostDepth  = 32      // of objects and lists in each other
	mostMemo   = 128     // bytes of a text that is remembered with what was made of it
)

// packing packs a text of JSON, or unpacks one: both are the same, step by step, with the same tables.
type packing struct {
	decisions
	err   error
	text  []byte        // that is packed, or unpacked
	at    int           // in the text that is packed
	raws  []byte        // bytes of which nothing is known
	texts []byte        // phrases that are packed
	from  *bufio.Reader // phrases that are unpacked
	keys  []string      // of members, in the order of their coming, which are packed before the phrases

	columns   int
	objects   int // that have begun
	known     []known
	bytes     int              // of all that is known, in bytes
	most      int              // bytes of a value that was not there before: within others it is smaller than these
	ids       map[string]int32 // in known
	forms     []form
	numbers   [formKinds]value
	refs      []uint64
	seen      map[string]value // of texts, when packing
	written   map[value]string // texts, when unpacking
	words     [wordColumns]*column
	last      value // the two values before
	before    value
	afterOne  []value
	afterBoth []value
}

// known are bytes, and where they were first.
type known struct {
	bytes  string
	column *column
	row    int
}

func newPacking(d decisions) *packing {
	p := &packing{decisions: d, most: mostText, last: nothing, before: nothing}
	if d.reading {
		p.written = make(map[value]string)
	} else {
		p.ids, p.seen = make(map[string]int32), make(map[string]value)
	}
	p.afterOne, p.afterBoth = make([]value, contexts), make([]value, contexts)
	for i := range p.afterOne {
		p.afterOne[i], p.afterBoth[i] = nothing, nothing
	}
	for i := range p.numbers {
		p.numbers[i] = nothing
	}
	for k := range formKinds {
		if k != formBech32 && k != formBech32Hex {
			p.forms = append(p.forms, form{kind: k})
		}
	}
	return p
}

// whole packs or unpacks the text.
func (p *packing) whole() error {
	root := p.newColumn(nil)
	root.object = root
	p.know(nil, root)
	p.value(root, 0)
	if p.checkOverrun(); !p.reading && p.at < len(p.text) {
		p.fail()
	}
	return p.err
}

func (p *packing) fail() {
	if p.err == nil {
		p.err = errPacked
	}
}

func (p *packing) checkOverrun() {
	if p.reading && p.overrun() {
		p.fail()
	}
}

func (p *packing) newColumn(object *column) *column {
	if p.columns++; p.columns > mostColumns {
		p.fail()
	}
	return &column{number: int32(p.columns), object: object, link: -1}
}

// know adds bytes.
func (p *packing) know(raw []byte, home *column) int32 {
	if p.bytes += len(raw); p.bytes > mostBytes || len(p.known) >= mostKnown {
		p.fail()
		return 0
	}
	s := string(raw)
	id := int32(len(p.known))
	p.known = append(p.known, known{s, home, home.object.row})
	if !p.reading {
		p.ids[s] = id
	}
	return id
}

// scalarOf finds what is to be packed among what is known.
func (p *packing) scalarOf(f form, raw []byte) scalar {
	number := int32(otherForm)
	for i, known := range p.forms {
		if known == f {
			number = int32(i)
		}
	}
	id, ok := p.ids[string(raw)]
	if !ok {
		id = -1
	}
	return scalar{value{id, number}, f, raw}
}

// phrase is a text of its own, without a line feed.
func (p *packing) phrase(text []byte) []byte {
	if !p.reading {
		p.texts = append(append(p.texts, text...), '\n')
		return text
	}
	line, err := readPhrase(p.from)
	if err != nil && p.err == nil {
		p.err = err
	}
	return line
}

func readPhrase(from *bufio.Reader) (line []byte, err error) {
	for {
		some, err := from.ReadSlice('\n')
		line = append(line, some...)
		switch {
		case err == nil:
			return line[:len(line)-1], nil
		case errors.Is(err, bufio.ErrBufferFull) && len(line) <= mostText:
		case errors.Is(err, io.EOF):
			return nil, io.ErrUnexpectedEOF
		default:
			return nil, err
		}
	}
}
