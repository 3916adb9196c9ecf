package index

import (
	"encoding/binary"
	"math/bits"
)

// This is the compression of rarely read values: LZ77 in the form of LZ4's blocks. Its window begins with a sample of
// other rows and continues with the beginning of the row itself. LZ4 itself supports one contiguous prefix text, which
// would have to be copied together.
//
//	token      4 bits: the number of literal bytes; 4 bits: the copied bytes beyond minCopy; 15 means that the next
//	           bytes up to one that is not 255 are added
//	bytes      literals
//	distance   back to the copied bytes, 2 bytes little-endian; omitted at the end; 0: no copy, but bech32 digits
//	           follow in 5 bits each, the first in the lowest, as addresses have them within a packet's data
const (
	minCopy    = 5
	minDigits  = 16 // an address of 20 bytes has 38
	hashBits   = 32
	rowBits    = 12
	sampleBits = 15
	maxSample  = 48 << 10
)

// sample is the text before the rows, with a table of positions in it.
type sample struct {
	text  []byte
	table *[1 << sampleBits]uint16 // by hash: the last position in text, plus 1
}

func newSample(text []byte) *sample {
	s := &sample{text: text, table: new([1 << sampleBits]uint16)}
	for i := 0; i+8 <= len(text); i++ {
		s.table[hashOf(text[i:])>>(hashBits-sampleBits)] = uint16(i + 1)
	}
	return s
}

// hashOf hashes the first five of eight bytes. Its upper bits are the best mixed.
func hashOf(b []byte) uint32 {
	return uint32(binary.LittleEndian.Uint64(b) << 24 * 0x9e3779b185ebca87 >> (64 - hashBits))
}

// compress appends row compressed from a position on.
func (s *sample) compress(dst, row []byte, from int) []byte {
	var table [1 << rowBits]uint16 // positions in row, like sample.table
	for i := 0; i < min(from, 0xffff) && i+8 <= len(row); i++ {
		table[hashOf(row[i:])>>(hashBits-rowBits)] = uint16(i + 1)
	}
	literals := from
	for i := from; i+8 <= len(row); {
		h := hashOf(row[i:])
		length, distance := 0, 0
		if at := int(table[h>>(hashBits-rowBits)]) - 1; at >= 0 && i-at <= 0xffff {
			length, distance = same(row[at:], row[i:]), i-at
		}
		if at := int(s.table[h>>(hashBits-sampleBits)]) - 1; at >= 0 && i+len(s.text)-at <= 0xffff {
			if n := same(s.text[at:], row[i:]); n > length {
				length, distance = n, i+len(s.text)-at
			}
		}
		if i < 0xffff {
			table[h>>(hashBits-rowBits)] = uint16(i + 1)
		}
		if n := digitsIn(row[i:]); n >= minDigits && n > length {
			dst = appendDigitRun(appendSequence(dst, row[literals:i], minCopy+n-minDigits, 0), row[i:i+n])
			length = n
		} else if length >= minCopy {
			dst = appendSequence(dst, row[literals:i], length, distance)
		} else {
			i++
			continue
		}
		for end := i + length; i < end; i++ {
			if i+8 <= len(row) && i < 0xffff {
				table[hashOf(row[i:])>>(hashBits-rowBits)] = uint16(i + 1)
			}
		}
		literals = i
	}
	return appendSequence(dst, row[literals:], 0, 0)
}

// same returns the length of the common prefix of a and b.
func same(a, b []byte) int {
	n := 0
	for len(a) >= n+8 && len(b) >= n+8 {
		if differ := binary.LittleEndian.Uint64(a[n:]) ^ binary.LittleEndian.Uint64(b[n:]); differ != 0 {
			return n + bits.TrailingZeros64(differ)/8
		}
		n += 8
	}
	for len(a) > n && len(b) > n && a[n] == b[n] {
		n++
	}
	return n
}

// appendSequence appends literals and a copy. A length of zero marks the end, without a copy.
func appendSequence(dst, literals []byte, length, distance int) []byte {
	more := max(0, length-minCopy)
	dst = append(dst, byte(min(len(literals), 15)<<4|min(more, 15)))
	dst = append(appendLength(dst, len(literals)), literals...)
	if length == 0 {
		return dst
	}
	return appendLength(binary.LittleEndian.AppendUint16(dst, uint16(distance)), more)
}

// appendLength appends the part of a length that exceeds its token.
func appendLength(dst []byte, n int) []byte {
	if n < 15 {
		return dst
	}
	for n -= 15; n >= 255; n -= 255 {
		dst = append(dst, 255)
	}
	return append(dst, byte(n))
}

// expandRoom is how many bytes expand may write past the end.
const expandRoom = 16

// expand decompresses packed into row from at on, and returns the end of the row.
func (s *sample) expand(row []byte, at int, packed []byte) int {
	for {
		token := packed[0]
		n, rest := readLength(int(token>>4), packed[1:])
		copyShort(row[at:], rest, n)
		at += n
		if packed = rest[n:]; len(packed) == 0 {
			return at
		}
		distance := int(binary.LittleEndian.Uint16(packed))
		n, packed = readLength(int(token&15), packed[2:])
		if distance == 0 {
			n += minDigits
			packed = expandDigits(row[at:at+n], packed)
			at += n
			continue
		}
		n += minCopy
		switch from := at - distance; {
		case from < 0: // the copy lies wholly within the sample
			copyShort(row[at:], s.text[len(s.text)+from:], n)
		case distance >= max(n, expandRoom):
			copyShort(row[at:], row[from:at], n)
		default: // the copied range overlaps the destination
			for i := range n {
				row[at+i] = row[from+i]
			}
		}
		at += n
	}
}

// copyShort copies n bytes. It may copy up to expandRoom bytes, which is faster.
func copyShort(to, from []byte, n int) {
	if n <= expandRoom && len(from) >= expandRoom && len(to) >= expandRoom {
		binary.LittleEndian.PutUint64(to, binary.LittleEndian.Uint64(from))
		binary.LittleEndian.PutUint64(to[8:], binary.LittleEndian.Uint64(from[8:]))
		return
	}
	copy(to[:n], from[:n])
}

func readLength(n int, packed []byte) (int, []byte) {
	if n < 15 {
		return n, packed
	}
	for {
		more := packed[0]
		packed = packed[1:]
		if n += int(more); more < 255 {
			return n, packed
		}
	}
}

// digitsIn returns the number of bech32 digits at the beginning of a text.
func digitsIn(text []byte) int {
	n := 0
	for n < len(text) && bech32Values[text[n]] < 32 {
		n++
	}
	return n
}

// bech32Values are the values of bech32 digits, 0xff for other bytes.
var bech32Values = valuesOf(bech32Alphabet)

// appendDigitRun appends bech32 digits in 5 bits each.
func appendDigitRun(dst, digits []byte) []byte {
	bits, n := uint32(0), 0
	for _, c := range digits {
		bits, n = bits|uint32(bech32Values[c])<<n, n+5
		if n >= 8 {
			dst, bits, n = append(dst, byte(bits)), bits>>8, n-8
		}
	}
	if n > 0 {
		dst = append(dst, byte(bits))
	}
	return dst
}

// expandDigits fills to with digits, and returns the bytes after them.
func expandDigits(to, packed []byte) []byte {
	rest := packed[(5*len(to)+7)/8:]
	for ; len(to) >= 8 && len(packed) >= 8; to, packed = to[8:], packed[5:] {
		bits := binary.LittleEndian.Uint64(packed)
		for i := range 4 {
			binary.LittleEndian.PutUint16(to[2*i:], bech32Pairs[bits>>(10*i)&1023])
		}
	}
	for i := range to {
		pair := uint32(packed[5*i/8])
		if 5*i/8+1 < len(packed) {
			pair |= uint32(packed[5*i/8+1]) << 8
		}
		to[i] = bech32Alphabet[pair>>(5*i%8)&31]
	}
	return rest
}

// bech32Pairs are two digits each, the first in the lower bits and bytes.
var bech32Pairs = func() (pairs [1024]uint16) {
	for i := range pairs {
		pairs[i] = uint16(bech32Alphabet[i&31]) | uint16(bech32Alphabet[i>>5])<<8
	}
	return pairs
}()
