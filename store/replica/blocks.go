package replica

import (
	"bytes"
	"encoding/binary"
	"math/bits"

	"go.etcd.io/bbolt"
)

// A bucket of postings has its keys in blocks: the value under the first key of a block (see laps) has all of them, in their order.
// bbolt takes 16 bytes for a key of its own, and keys of one length that stand below each other are alike. So a block is a table: of each column of bytes it has once what all keys have
// there, and where there are at most 16 different bytes, such as hex digits, it has half a byte for each key. All keys of a
// block take the same room, so that one is found without reading the others.
//
//	keys, columns   varints; the last two columns are the length of the key, which may be shorter than the others
//	each column     its kind: columnSame and the byte, columnHex, columnRaw, or how many different bytes and these
//	each key        the bytes of the columns that are columnRaw, then half a byte for each of the other columns
const (
	columnSame = 1 // one byte in all keys; up to 16: so many, and they follow
	columnHex  = 0
	columnRaw  = 0xff

	// blockRoom is how many bytes a block and its first key may take, so that blocksOfPage fill a page. bbolt takes pageOverhead of
	// each page, and as much for each key.
	blockRoom    = (pageSize-pageOverhead)/blocksOfPage - pageOverhead - lapSize - sealSize
	blocksOfPage = 8
	pageOverhead = 16

	lengthColumns = 2
)

const hexAlphabet = "0123456789abcdef"

// block is one that is read.
type block struct {
	keys    int
	size    int    // of a key, in bytes
	entries []byte // size for each key
	key     []byte // what all keys have, and what at has filled in last
	raw     []uint16
	halves  []halfColumn

	alphabets []byte // that of hex digits, and others

	room struct { // for these, so that a cursor is one allocation
		key       [64]byte
		raw       [32]uint16
		halves    [32]halfColumn
		alphabets [64]byte
	}
}

// halfColumn is a column of half bytes.
type halfColumn struct {
	column, alphabet uint16 // where what they stand for begins in alphabets
}

// read reads a block that is sealed under its name, and goes on to use it.
func (b *block) read(name, sealed []byte) {
	v := unseal(anyPostings, name, sealed)
	keys, n := binary.Uvarint(v)
	columns, m := binary.Uvarint(v[n:])
	v = v[n+m:]
	b.keys, b.key, b.raw, b.halves = int(keys), b.room.key[:0], b.room.raw[:0], b.room.halves[:0]
	b.alphabets = append(b.room.alphabets[:0], hexAlphabet...)
	for column := range uint16(columns) {
		kind := v[0]
		v = v[1:]
		b.key = append(b.key, 0)
		switch kind {
		case columnSame:
			b.key[column] = v[0]
			v = v[1:]
		case columnHex:
			b.halves = append(b.halves, halfColumn{column, 0})
		case columnRaw:
			b.raw = append(b.raw, column)
		default:
			b.halves = append(b.halves, halfColumn{column, uint16(len(b.alphabets))})
			b.alphabets = append(b.alphabets, v[:kind]...)
			v = v[kind:]
		}
	}
	b.size = len(b.raw) + (len(b.halves)+1)/2
	b.entries = v[: b.keys*b.size : b.keys*b.size]
}

var hexBytes = []byte(hexAlphabet)

// at returns a key, valid until the next call.
func (b *block) at(i int) []byte {
	entry := b.entries[i*b.size : (i+1)*b.size]
	for n, column := range b.raw {
		b.key[column] = entry[n]
	}
	entry = entry[len(b.raw):]
	for n := range b.halves {
		h := b.halves[n]
		b.key[h.column] = b.alphabets[int(h.alphabet)+int(entry[n/2]>>(4*(n&1))&15)]
	}
	columns := len(b.key) - lengthColumns
	return b.key[:binary.BigEndian.Uint16(b.key[columns:])]
}

// search returns the place of the first key at or behind the given one.
func (b *block) search(key []byte) int {
	low, high := 0, b.keys
	for low < high {
		if middle := (low + high) / 2; bytes.Compare(b.at(middle), key) < 0 {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return low
}

// blockPacker makes a block of keys that come in their order.
type blockPacker struct {
	text    []byte // the keys
	ends    []int  // of each in text
	columns []columnValues
	length  [lengthColumns]columnValues
	raw     int // columns of each kind
	halves  int
	header  int
	layout  layout
}

// columnValues are the bytes that a column has.
type columnValues struct {
	seen [4]uint64
	kind byte
}

func (p *blockPacker) reset() {
	p.text, p.ends, p.columns, p.length = p.text[:0], p.ends[:0], p.columns[:0], [lengthColumns]columnValues{}
	p.raw, p.halves, p.header = 0, 0, 2*binary.MaxVarintLen16
}

func (p *blockPacker) key(i int) []byte {
	start := 0
	if i > 0 {
		start = p.ends[i-1]
	}
	return p.text[start:p.ends[i]]
}

// full tells whether another key would make the block larger than it should be.
func (p *blockPacker) full() bool {
	return len(p.ends) > 0 && p.ends[0]+p.header+(len(p.ends)+1)*(p.raw+(p.halves+1)/2) > blockRoom
}

func (p *blockPacker) add(key []byte) {
	for len(p.columns) < len(key) {
		p.columns = append(p.columns, columnValues{})
		if len(p.ends) > 0 {
			p.see(&p.columns[len(p.columns)-1], 0)
		}
	}
	for i, value := range key {
		if c := &p.columns[i]; !c.has(value) {
			p.see(c, value)
		}
	}
	for i := len(key); i < len(p.columns); i++ {
		p.see(&p.columns[i], 0)
	}
	p.see(&p.length[0], byte(len(key)>>8))
	p.see(&p.length[1], byte(len(key)))
	p.text = append(p.text, key...)
	p.ends = append(p.ends, len(p.text))
}

// hexSeen are the bytes of hexAlphabet, as columnValues has them.
var hexSeen = func() (seen [4]uint64) {
	for _, c := range hexBytes {
		seen[c>>6] |= 1 << (c & 63)
	}
	return seen
}()

func (c *columnValues) has(value byte) bool { return c.seen[value>>6]&(1<<(value&63)) != 0 }

func (p *blockPacker) see(c *columnValues, value byte) {
	if c.has(value) {
		return
	}
	p.count(c, -1)
	c.seen[value>>6] |= 1 << (value & 63)
	values := 0
	hex := true
	for i, seen := range c.seen {
		values += bits.OnesCount64(seen)
		hex = hex && seen&^hexSeen[i] == 0
	}
	switch {
	case values > 1 && hex:
		c.kind = columnHex
	case values > 16:
		c.kind = columnRaw
	default:
		c.kind = byte(values)
	}
	p.count(c, 1)
}

// count adds a column to those of its kind, or takes it away.
func (p *blockPacker) count(c *columnValues, by int) {
	if c.seen == [4]uint64{} {
		return
	}
	p.header += by
	switch c.kind {
	case columnRaw:
		p.raw += by
	case columnSame:
		p.header += by
	case columnHex:
		p.halves += by
	default:
		p.halves += by
		p.header += by * int(c.kind)
	}
}

// layout says where in an entry a key's columns are.
type layout struct {
	raw    []int // columns
	halves []int
	codes  [][256]byte // of each of the halves
	padded []byte      // a key with zeros behind it, and its length
}

// pack returns the block, sealed under its name: a damaged name would hide its keys.
func (p *blockPacker) pack(name []byte) []byte {
	columns := append(p.columns, p.length[:]...)
	size := p.raw + (p.halves+1)/2
	out := make([]byte, 0, p.header+len(p.ends)*size+sealSize)
	out = binary.AppendUvarint(out, uint64(len(p.ends)))
	out = binary.AppendUvarint(out, uint64(len(columns)))
	l := &p.layout
	l.raw, l.halves, l.codes, l.padded = l.raw[:0], l.halves[:0], l.codes[:0], append(l.padded[:0], make([]byte, len(columns))...)
	for i := range columns {
		out = l.add(out, i, &columns[i])
	}
	start := len(out)
	out = out[:start+len(p.ends)*size]
	for i := range p.ends {
		key := p.key(i)
		clear(l.padded[copy(l.padded, key):])
		binary.BigEndian.PutUint16(l.padded[len(p.columns):], uint16(len(key)))
		l.fill(out[start+i*size : start+(i+1)*size])
	}
	return seal(anyPostings, name, out)
}

// add appends the kind of the next column.
func (l *layout) add(out []byte, column int, c *columnValues) []byte {
	out = append(out, c.kind)
	switch c.kind {
	case columnRaw:
		l.raw = append(l.raw, column)
		return out
	case columnHex:
		l.halves, l.codes = append(l.halves, column), append(l.codes, hexCodes)
		return out
	}
	var codes [256]byte
	code := byte(0)
	for value := range 256 {
		if c.has(byte(value)) {
			out = append(out, byte(value))
			codes[value] = code
			code++
		}
	}
	if c.kind != columnSame {
		l.halves, l.codes = append(l.halves, column), append(l.codes, codes)
	}
	return out
}

var hexCodes = func() (codes [256]byte) {
	for i, c := range hexBytes {
		codes[c] = byte(i)
	}
	return codes
}()

// fill writes what the key has in the columns that are not the same in all.
func (l *layout) fill(entry []byte) {
	key := l.padded
	for i, column := range l.raw {
		entry[i] = key[column]
	}
	entry = entry[len(l.raw):]
	for i, column := range l.halves {
		entry[i/2] |= l.codes[i][key[column]] << (4 * (i & 1))
	}
}

// blockCursor goes over the keys of a bucket of blocks. A key is valid until the next move.
type blockCursor struct {
	laps  laps
	first []byte // key of the block that is read; nil before the first
	block block
	at    int
}

func newBlockCursor(b *bbolt.Bucket) *blockCursor { return &blockCursor{laps: newLaps(b)} }

// enter reads a block. It returns false where there is none.
func (c *blockCursor) enter(block, sealed []byte) bool {
	if block == nil {
		c.first = nil
		return false
	}
	c.first = block[lapSize:]
	c.block.read(block, sealed)
	return true
}

// find reads the block that a key belongs to, which may be behind all of its keys; false where all keys are behind it.
func (c *blockCursor) find(key []byte) bool {
	if c.first != nil && bytes.Compare(c.first, key) <= 0 && bytes.Compare(key, c.block.at(c.block.keys-1)) <= 0 {
		return true
	}
	return c.enter(c.laps.seekDown(key))
}

// seek moves to the first key at or behind the given one.
func (c *blockCursor) seek(key []byte) []byte {
	if !c.find(key) {
		return c.start()
	}
	if c.at = c.block.search(key); c.at == c.block.keys {
		return c.nextBlock()
	}
	return c.block.at(c.at)
}

// seekDown moves to the last key at or before the given one.
func (c *blockCursor) seekDown(key []byte) []byte {
	if !c.find(key) {
		c.start() // its name may be damaged
		return nil
	}
	if c.at = c.block.search(key); c.at == c.block.keys {
		c.laps.checkNext()
	} else if found := c.block.at(c.at); bytes.Equal(found, key) {
		return found
	}
	return c.previous()
}

// start moves to the first key of all.
func (c *blockCursor) start() []byte {
	if !c.enter(c.laps.start()) {
		return nil
	}
	c.at = 0
	return c.block.at(0)
}

func (c *blockCursor) next() []byte {
	if c.at++; c.at < c.block.keys {
		return c.block.at(c.at)
	}
	return c.nextBlock()
}

func (c *blockCursor) nextBlock() []byte {
	if !c.enter(c.laps.next()) {
		return nil
	}
	c.at = 0
	return c.block.at(0)
}

func (c *blockCursor) previous() []byte {
	if c.at--; c.at >= 0 {
		return c.block.at(c.at)
	}
	if !c.enter(c.laps.previous()) {
		return nil
	}
	c.at = c.block.keys - 1
	return c.block.at(c.at)
}
