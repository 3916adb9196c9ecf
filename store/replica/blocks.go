package replica

import (
	"bytes"
	"encoding/binary"
	"math/bits"

	"go.etcd.io/bbolt"
)

// A bucket of postings stores its keys in blocks. The value under a block's name (see generations) holds all keys of
// the block, in order. bbolt spends 16 bytes per key, and neighbouring keys of one length are similar, so a block is a
// table with a column per byte position. A column with the same byte in all keys is stored once. A column with at most
// 16 different bytes, such as hex digits, takes half a byte per key. All keys of a block take the same room, so a key
// is found without decoding the others.
//
//	keys, columns   varints; the last two columns are the length of the key, which may be shorter than the others
//	each column     its kind: columnSame and the byte, columnHex, columnRaw, or the number of different bytes and these
//	each key        the bytes of the columns that are columnRaw, then half a byte for each of the other columns
const (
	columnSame = 1 // one byte in all keys; 2 to 16: that many different bytes, listed after it
	columnHex  = 0
	columnRaw  = 0xff

	// blockRoom is how many bytes a block and its first key may take, so that blocksOfPage of them fill a page. bbolt
	// uses pageOverhead of each page, and as much for each key.
	blockRoom    = (pageSize-pageOverhead)/blocksOfPage - pageOverhead - generationSize - sealSize
	blocksOfPage = 8
	pageOverhead = 16

	lengthColumns = 2
)

const hexAlphabet = "0123456789abcdef"

// block is a decoded block.
type block struct {
	keys    int
	size    int    // size of an entry, in bytes
	entries []byte // keys entries of size bytes
	key     []byte // the bytes that all keys share, and the key that at decoded last
	raw     []uint16
	halves  []halfColumn

	alphabets []byte // the hex digits, followed by the alphabets of other columns

	// room is the initial memory of the slices, so that a cursor is one allocation.
	room struct {
		key       [64]byte
		raw       [32]uint16
		halves    [32]halfColumn
		alphabets [64]byte
	}
}

// halfColumn is a column of half bytes.
type halfColumn struct {
	column, alphabet uint16 // alphabet is the offset of its first byte in alphabets
}

// read decodes a block that is sealed under its name. The block keeps a reference to sealed.
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

// at returns the key with index i, valid until the next call.
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

// search returns the index of the first key at or behind the given key.
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

// blockPacker encodes a block from keys that are added in order.
type blockPacker struct {
	text    []byte // the keys
	ends    []int  // end of each key in text
	columns []columnValues
	length  [lengthColumns]columnValues
	raw     int // number of columns of each kind
	halves  int
	header  int
	layout  layout
}

// columnValues is the set of bytes in a column.
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

// full reports whether another key would exceed the block's room.
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

// hexSeen is the set of the bytes of hexAlphabet.
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

// count adds a column to the number of its kind, or subtracts it.
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

// layout maps the columns of a key to positions in an entry.
type layout struct {
	raw    []int // column numbers
	halves []int
	codes  [][256]byte // by half column: the code of each byte
	padded []byte      // a key padded with zeros, followed by its length
}

// pack returns the block, sealed under its name, because a damaged name would hide its keys.
func (p *blockPacker) pack(name []byte) []byte {
	columns := append(p.columns, p.length[:]...)
	size := p.raw + (p.halves+1)/2
	out := make([]byte, 0, p.header+len(p.ends)*size+sealSize)
	out = binary.AppendUvarint(out, uint64(len(p.ends)))
	out = binary.AppendUvarint(out, uint64(len(columns)))
	l := &p.layout
	l.raw, l.halves, l.codes, l.padded = l.raw[:0], l.halves[:0], l.codes[:0],
		append(l.padded[:0], make([]byte, len(columns))...)
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

// fill writes the bytes of the key that are not the same in all keys.
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

// blockCursor iterates over the keys of a bucket of blocks. A key is valid until the next move.
type blockCursor struct {
	generations generations
	first       []byte // first key of the current block; nil before the first move
	block       block
	at          int
}

func newBlockCursor(b *bbolt.Bucket) *blockCursor {
	return &blockCursor{generations: newGenerations(b)}
}

// enter reads a block. It returns false if block is nil.
func (c *blockCursor) enter(block, sealed []byte) bool {
	if block == nil {
		c.first = nil
		return false
	}
	c.first = block[generationSize:]
	c.block.read(block, sealed)
	return true
}

// find reads the block that a key belongs to. The key may be larger than all keys of the block. find returns false if
// the key is smaller than all keys of the bucket.
func (c *blockCursor) find(key []byte) bool {
	if c.first != nil && bytes.Compare(c.first, key) <= 0 && bytes.Compare(key, c.block.at(c.block.keys-1)) <= 0 {
		return true
	}
	return c.enter(c.generations.seekDown(key))
}

// seek moves to the first key at or behind the given key.
func (c *blockCursor) seek(key []byte) []byte {
	if !c.find(key) {
		return c.start()
	}
	if c.at = c.block.search(key); c.at == c.block.keys {
		return c.nextBlock()
	}
	return c.block.at(c.at)
}

// seekDown moves to the last key at or before the given key.
func (c *blockCursor) seekDown(key []byte) []byte {
	if !c.find(key) {
		c.start() // reads the first block, whose name may be damaged
		return nil
	}
	if c.at = c.block.search(key); c.at == c.block.keys {
		c.generations.checkNext()
	} else if found := c.block.at(c.at); bytes.Equal(found, key) {
		return found
	}
	return c.previous()
}

// start moves to the first key of the bucket.
func (c *blockCursor) start() []byte {
	if !c.enter(c.generations.start()) {
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
	if !c.enter(c.generations.next()) {
		return nil
	}
	c.at = 0
	return c.block.at(0)
}

func (c *blockCursor) previous() []byte {
	if c.at--; c.at >= 0 {
		return c.block.at(c.at)
	}
	if !c.enter(c.generations.previous()) {
		return nil
	}
	c.at = c.block.keys - 1
	return c.block.at(c.at)
}
