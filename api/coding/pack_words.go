package coding

// Bytes of many words are mostly the ABI encoding of Solidity: numbers of 32 bytes, and sized bytes with zeros behind them. What word
// comes next is told by the small ones before, which are sizes and places.

const (
	wordColumns = 256
	mostItems   = 32 // places within bytes that others can find
	smallWord   = 2  // bytes of a number that tells what comes next
	mostSized   = 1024
)

// words is where in such bytes we are.
type words struct {
	before, last int // the last small numbers, and one more
	since        int // words since then
	item         int // how many that are not small there were
}

func (w *words) column(p *packing) *column {
	at := (uint32(w.before)*0x9e3779b1 ^ uint32(w.last)*0x85ebca6b ^ uint32(min(w.since, 3))) * 0xc2b2ae35 >> 24 % wordColumns
	if p.words[at] == nil {
		p.words[at] = &column{number: -1 - int32(at)}
	}
	return p.words[at]
}

// home is the place within the bytes of a column.
func (w *words) home(p *packing, c *column) *column {
	at := min(w.item, mostItems-1)
	for at >= len(c.items) {
		c.items = append(c.items, p.newColumn(c.object))
	}
	return c.items[at]
}

func (p *packing) freshWords(c *column, raw []byte, size int) []byte {
	var out []byte
	var w words
	for size-len(out) >= wordBytes && p.err == nil {
		at := w.column(p)
		var s scalar
		if !p.reading {
			s = p.scalarOf(form{kind: formWord}, withoutZeros(raw[len(out):len(out)+wordBytes]))
		}
		v := p.within(wordBytes, at, w.home(p, c), s)
		word := p.known[v.bytes].bytes
		if out = appendWord(out, word); len(word) > smallWord || p.forms[v.form].kind != formWord {
			w.item, w.since = w.item+1, w.since+1
			continue
		}
		n := int(number([]byte(word)))
		w.before, w.last, w.since = w.last, n+1, 0
		if padded := (n + wordBytes - 1) / wordBytes * wordBytes; n > 0 && n <= mostSized && padded <= size-len(out) {
			var rest []byte
			if !p.reading {
				rest = raw[len(out) : len(out)+padded]
			}
			out = p.sized(c, at, &w, out, rest, n)
		}
	}
	if p.err != nil || len(out) > size {
		p.fail()
		return nil
	}
	if p.reading {
		return append(out, p.rawBytes(nil, size-len(out))...)
	}
	return append(out, p.rawBytes(raw[len(out):], size-len(out))...)
}

// within is a scalar that is part of other bytes. What is new has no more bytes than there is room for: else bytes would be in bytes of the
// same size without end, each with a copy of what is within.
func (p *packing) within(room int, c, home *column, s scalar) value {
	defer func(most int) { p.most = most }(p.most)
	p.most = room
	return p.scalar(c, home, s)
}

// sized appends bytes behind their size, if there are some. rest is what is there, when packing.
func (p *packing) sized(c, at *column, w *words, out, rest []byte, n int) []byte {
	if !p.yes(&at.bytes, !p.reading && isSized(rest, n)) {
		return out
	}
	if at.part == nil {
		at.part = &column{number: at.number - wordColumns}
	}
	var s scalar
	if !p.reading {
		s = p.scalarOf(formOfBytes(rest[:n]))
	}
	v := p.within(n, at.part, w.home(p, c), s)
	bytes, err := p.forms[v.form].bytes([]byte(p.known[v.bytes].bytes))
	if err != nil || len(bytes) != n {
		p.fail()
		return out
	}
	w.item, w.since = w.item+1, w.since+1
	out = append(out, bytes...)
	return append(out, make([]byte, (wordBytes-n%wordBytes)%wordBytes)...)
}

// isSized tells bytes of that size with zeros behind them.
func isSized(rest []byte, n int) bool {
	for _, b := range rest[n:] {
		if b != 0 {
			return false
		}
	}
	if len(rest) == n {
		f, _ := formOfBytes(rest)
		return f.kind == formBech32Hex
	}
	return rest[0] != 0
}

func withoutZeros(word []byte) []byte {
	for len(word) > 0 && word[0] == 0 {
		word = word[1:]
	}
	return word
}

func appendWord(out []byte, word string) []byte {
	var zeros [wordBytes]byte
	return append(append(out, zeros[min(len(word), wordBytes):]...), word...)
}
