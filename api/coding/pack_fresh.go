package coding

import (
	"encoding/binary"
	"math/big"
	"math/bits"
	"strings"
)

// freshBytes packs or unpacks bytes that have not been there before, by what they are.
func (p *packing) freshBytes(c, home *column, f form, raw []byte) []byte {
	o := c.odds()
	switch {
	case f.kind.isNumber():
		return p.freshNumber(c, f.kind, raw)
	case f.kind == formText || f.kind == formLiteral:
		return p.freshText(c, raw)
	}
	size := p.size(&o.size, len(raw), p.most)
	if f.kind == formHex && size >= 2*wordBytes {
		return p.freshWords(home, raw, size)
	}
	return p.rawBytes(raw, size)
}

// rawBytes are bytes of which nothing is known.
func (p *packing) rawBytes(raw []byte, size int) []byte {
	if !p.reading {
		p.raws = append(p.raws, raw...)
		return raw
	}
	if size > len(p.raws) {
		p.fail()
		return nil
	}
	raw, p.raws = p.raws[:size:size], p.raws[size:]
	return raw
}

// freshText is as the text before it up to some place, or else a phrase.
func (p *packing) freshText(c *column, text []byte) []byte {
	o := c.odds()
	if len(c.recent) == 0 {
		return p.phrase(text)
	}
	before := p.known[c.recent[0].bytes].bytes
	same := 0
	for same < min(len(text), len(before)) && text[same] == before[same] {
		same++
	}
	if !p.yes(&o.like, same > 0 && (2*same >= len(text) || same >= 4 && len(text) == len(before))) {
		return p.phrase(text)
	}
	size := p.size(&o.size, len(text), p.most)
	same = p.size(&o.zeros, same, min(size, len(before)))
	read := append(make([]byte, 0, min(size, 64)), before[:same]...)
	for i := same; i < size && p.err == nil; i++ {
		old, letter := byte(0), byte(0)
		if i < len(before) {
			old = before[i]
		}
		if !p.reading {
			letter = text[i]
		}
		if !p.yes(&o.same[classOf(old)], old == letter) {
			letter = byte(p.choice(o.letter[:], int(letter)))
		} else {
			letter = old
		}
		read = append(read, letter)
		p.checkOverrun()
	}
	return read
}

func classOf(letter byte) int {
	switch {
	case letter >= '0' && letter <= '9':
		return 1
	case letter >= 'a' && letter <= 'z':
		return 2
	case letter == 0:
		return 3
	}
	return 0
}

// freshNumber is a number by itself, or by what it is more or less than another.
func (p *packing) freshNumber(c *column, kind formKind, raw []byte) []byte {
	o := c.odds()
	refs := p.references(c, kind)
	unit := unitOf(kind)
	var n uint64
	from := 0
	if !p.reading && len(raw) <= 8 {
		n = number(raw) / unit
		least := bits.Len64(mantissa(n))
		for i, r := range refs {
			if size := bits.Len64(distance(n, r/unit)) + 2; i > 0 && size < least {
				from, least = i, size
			}
		}
	}
	from = p.choice(o.from[:], from)
	switch {
	case from == 0:
		return p.plainNumber(o, raw)
	case from >= len(refs):
		p.fail()
		return nil
	}
	ref := refs[from] / unit
	by := p.quantity(&o.delta, distance(n, ref))
	if p.yes(&o.sign, n < ref) {
		by = -by
	}
	return bytesOf((ref + by) * unit)
}

// references are numbers that another may be near to: none, the last of that kind, and the recent ones of the column.
func (p *packing) references(c *column, kind formKind) []uint64 {
	refs := append(p.refs[:0], 0)
	add := func(v value) {
		if raw := p.known[v.bytes].bytes; len(raw) <= 8 && len(refs) < mostRecent {
			refs = append(refs, number([]byte(raw)))
		} else if len(refs) < mostRecent {
			refs = append(refs, 0)
		}
	}
	if v := p.numbers[kind]; v.bytes >= 0 {
		add(v)
	} else {
		refs = append(refs, 0)
	}
	for _, v := range c.recent {
		if p.forms[v.form].kind == kind {
			add(v)
		}
	}
	p.refs = refs
	return refs
}

// unitOf is what times are counted in.
func unitOf(kind formKind) uint64 {
	unit := uint64(1)
	if kind >= formTime {
		for range 9 - int(kind-formTime) {
			unit *= 10
		}
	}
	return unit
}

// plainNumber is a number by its decimal digits: how many zeros at its end, and those before.
func (p *packing) plainNumber(o *fresh, raw []byte) []byte {
	var digits string
	zeros, short := 0, new(big.Int)
	if !p.reading {
		digits = new(big.Int).SetBytes(raw).String()
		kept := strings.TrimRight(digits, "0")
		zeros = len(digits) - len(kept)
		if kept == "" {
			zeros = 0
		}
		short.SetString("0"+kept, 10)
	}
	zeros = p.size(&o.zeros, zeros, mostDigits)
	if p.yes(&o.long, !short.IsUint64()) {
		rest := p.rawBytes(short.Bytes(), p.size(&o.size, len(short.Bytes()), wordBytes))
		short.SetBytes(rest)
	} else {
		short.SetUint64(p.quantity(&o.digits, short.Uint64()))
	}
	return short.Mul(short, new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(zeros)), nil)).Bytes()
}

// size is a quantity that is bounded.
func (p *packing) size(q *quantity, n, most int) int {
	if read := p.quantity(q, uint64(n)); read <= uint64(most) {
		return int(read)
	}
	p.fail()
	return 0
}

func number(raw []byte) uint64 {
	var all [8]byte
	copy(all[8-len(raw):], raw)
	return binary.BigEndian.Uint64(all[:])
}

func bytesOf(n uint64) []byte { return new(big.Int).SetUint64(n).Bytes() }

func distance(a, b uint64) uint64 {
	if a < b {
		return b - a
	}
	return a - b
}

// mantissa is a number without zeros at its end.
func mantissa(n uint64) uint64 {
	for n != 0 && n%10 == 0 {
		n /= 10
	}
	return n
}
