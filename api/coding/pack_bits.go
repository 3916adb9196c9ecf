package coding

import "math/bits"

// odds are how likely a decision goes one way, by how it has gone before.
type odds struct {
	one  int16 // probability of 1, in 1/65536, less a half
	seen uint8
}

// steady is how many decisions count: after as many, each moves the odds by the same part.
const steady = 40

func (o *odds) learn(bit int) {
	const half = 1 << 15
	target := -half + 1
	if bit == 1 {
		target = half - 1
	}
	o.one += int16((target - int(o.one)) * 2 / (2*int(o.seen) + 3))
	o.one = max(min(o.one, half-64), -half+64)
	if o.seen < steady {
		o.seen++
	}
}

// decisions is a binary arithmetic coder: it writes decisions, or reads those that were written with the same odds. So that both ways
// are one, its methods take what is to be written, which is ignored when reading, and return what was written or read.
type decisions struct {
	reading   bool
	coded     []byte // written, or to be read
	at        int    // in coded, of what is to be read
	low, high uint32 // what the decisions so far leave of all numbers
	number    uint32 // that is read
}

func writeDecisions() decisions { return decisions{high: 1<<32 - 1} }

func readDecisions(coded []byte) decisions {
	d := decisions{reading: true, coded: coded, high: 1<<32 - 1}
	for range 4 {
		d.shift()
	}
	return d
}

func (d *decisions) shift() {
	d.number <<= 8
	if d.at < len(d.coded) {
		d.number |= uint32(d.coded[d.at])
	}
	d.at++
}

// overrun tells that more was read than was written: nothing that was read means anything.
func (d *decisions) overrun() bool { return d.at > len(d.coded)+4 }

// end writes what is left.
func (d *decisions) end() []byte {
	return append(d.coded, byte(d.low>>24)+1)
}

func (d *decisions) bit(o *odds, bit int) int {
	bit = d.split(uint32(int(o.one)+1<<15), bit)
	o.learn(bit)
	return bit
}

func (d *decisions) yes(o *odds, is bool) bool {
	bit := 0
	if is {
		bit = 1
	}
	return d.bit(o, bit) == 1
}

// split decides with a probability of 1 in 1/65536.
func (d *decisions) split(one uint32, bit int) int {
	middle := d.low + uint32(uint64(d.high-d.low)*uint64(one)>>16)
	if d.reading {
		bit = 0
		if d.number <= middle {
			bit = 1
		}
	}
	if bit == 1 {
		d.high = middle
	} else {
		d.low = middle + 1
	}
	for (d.low^d.high)>>24 == 0 {
		if d.reading {
			d.shift()
		} else {
			d.coded = append(d.coded, byte(d.high>>24))
		}
		d.low, d.high = d.low<<8, d.high<<8|0xff
	}
	return bit
}

// flat is a number below 1<<width of which nothing is known.
func (d *decisions) flat(width int, n uint64) uint64 {
	var read uint64
	for i := width - 1; i >= 0; i-- {
		read = read<<1 | uint64(d.split(1<<15, int(n>>i&1)))
	}
	return read
}

// below is a number below most of which nothing is known. It may be more where that was written by somebody else.
func (d *decisions) below(most, n int) int {
	return int(d.flat(bits.Len(uint(max(most-1, 0))), uint64(n)))
}

// choice is one of up to len(o) symbols, which is a power of two.
func (d *decisions) choice(o []odds, symbol int) int {
	node := 1
	for width := bits.Len(uint(len(o))) - 2; width >= 0; width-- {
		node = node<<1 | d.bit(&o[node], symbol>>width&1)
	}
	return node - len(o)
}

// quantity has the odds of a number: of its size in bits and, where it is small, of those behind the first.
type quantity struct {
	size   [128]odds
	digits [16][8]odds
}

func (d *decisions) quantity(q *quantity, n uint64) uint64 {
	size := d.choice(q.size[:], bits.Len64(n))
	if size == 0 {
		return 0
	}
	size = min(size, 64)
	read, known := uint64(1), 0
	for i := size - 2; i >= 0; i-- {
		bit := int(n >> i & 1)
		if known < 3 && size < len(q.digits) {
			context := 1<<known | int(read)&(1<<known-1)
			bit = d.bit(&q.digits[size][context], bit)
			known++
		} else {
			bit = d.split(1<<15, bit)
		}
		read = read<<1 | uint64(bit)
	}
	return read
}
