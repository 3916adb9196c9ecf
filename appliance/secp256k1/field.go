package secp256k1

import (
	"encoding/binary"
	"math/bits"

	"github.com/consensys/gnark-crypto/ecc/secp256k1/fp"
)

// element is a number modulo p, the prime of secp256k1's field (SEC 2, section 2.4.1). It has four words, least
// significant first. It is below 2^256, but not always below p. Named words stay in registers; array elements do not.
//
// 2^256 is congruent to the small number folded, so one multiplication folds the upper half into the lower half. The
// generic arithmetic of gnark-crypto takes more than twice as long.
type element struct{ a, b, c, d uint64 }

const folded = 1<<32 + 977 // 2^256 - p

var (
	prime = element{-folded & (1<<64 - 1), 1<<64 - 1, 1<<64 - 1, 1<<64 - 1}
	one   = element{a: 1}
)

func elementOf(b *[32]byte) element {
	return element{binary.BigEndian.Uint64(b[24:]), binary.BigEndian.Uint64(b[16:]), binary.BigEndian.Uint64(b[8:]),
		binary.BigEndian.Uint64(b[:])}
}

// reduced returns x modulo p, below p.
func (x element) reduced() element {
	if x.b&x.c&x.d == 1<<64-1 && x.a >= prime.a {
		return element{a: x.a - prime.a}
	}
	return x
}

func (x element) isZero() bool { return x.reduced() == element{} }

func (x element) isOdd() bool { return x.reduced().a&1 == 1 }

// plus returns x + y.
func (x element) plus(y element) element {
	var carry uint64
	x.a, carry = bits.Add64(x.a, y.a, 0)
	x.b, carry = bits.Add64(x.b, y.b, carry)
	x.c, carry = bits.Add64(x.c, y.c, carry)
	x.d, carry = bits.Add64(x.d, y.d, carry)
	x.a, carry = bits.Add64(x.a, carry*folded, 0)
	x.b, carry = bits.Add64(x.b, 0, carry)
	x.c, carry = bits.Add64(x.c, 0, carry)
	x.d, carry = bits.Add64(x.d, 0, carry)
	x.a += carry * folded // after another carry, x is less than folded: no further carry
	return x
}

// minus returns x - y.
func (x element) minus(y element) element {
	var borrow uint64
	x.a, borrow = bits.Sub64(x.a, y.a, 0)
	x.b, borrow = bits.Sub64(x.b, y.b, borrow)
	x.c, borrow = bits.Sub64(x.c, y.c, borrow)
	x.d, borrow = bits.Sub64(x.d, y.d, borrow)
	x.a, borrow = bits.Sub64(x.a, borrow*folded, 0)
	x.b, borrow = bits.Sub64(x.b, 0, borrow)
	x.c, borrow = bits.Sub64(x.c, 0, borrow)
	x.d, borrow = bits.Sub64(x.d, 0, borrow)
	x.a -= borrow * folded // after another borrow, x is at least 2^256 - folded: no further borrow
	return x
}

// times returns x·y: the sum of x times each word of y, each shifted by one more word.
func (x element) times(y element) element {
	var r0, r1, r2, r3, r4, r5, r6, r7, carry uint64

	h0, l0 := bits.Mul64(x.a, y.a)
	h1, l1 := bits.Mul64(x.b, y.a)
	h2, l2 := bits.Mul64(x.c, y.a)
	h3, l3 := bits.Mul64(x.d, y.a)
	r0 = l0
	r1, carry = bits.Add64(h0, l1, 0)
	r2, carry = bits.Add64(h1, l2, carry)
	r3, carry = bits.Add64(h2, l3, carry)
	r4 = h3 + carry

	h0, l0 = bits.Mul64(x.a, y.b)
	h1, l1 = bits.Mul64(x.b, y.b)
	h2, l2 = bits.Mul64(x.c, y.b)
	h3, l3 = bits.Mul64(x.d, y.b)
	l1, carry = bits.Add64(h0, l1, 0)
	l2, carry = bits.Add64(h1, l2, carry)
	l3, carry = bits.Add64(h2, l3, carry)
	h3 += carry
	r1, carry = bits.Add64(r1, l0, 0)
	r2, carry = bits.Add64(r2, l1, carry)
	r3, carry = bits.Add64(r3, l2, carry)
	r4, carry = bits.Add64(r4, l3, carry)
	r5 = h3 + carry

	h0, l0 = bits.Mul64(x.a, y.c)
	h1, l1 = bits.Mul64(x.b, y.c)
	h2, l2 = bits.Mul64(x.c, y.c)
	h3, l3 = bits.Mul64(x.d, y.c)
	l1, carry = bits.Add64(h0, l1, 0)
	l2, carry = bits.Add64(h1, l2, carry)
	l3, carry = bits.Add64(h2, l3, carry)
	h3 += carry
	r2, carry = bits.Add64(r2, l0, 0)
	r3, carry = bits.Add64(r3, l1, carry)
	r4, carry = bits.Add64(r4, l2, carry)
	r5, carry = bits.Add64(r5, l3, carry)
	r6 = h3 + carry

	h0, l0 = bits.Mul64(x.a, y.d)
	h1, l1 = bits.Mul64(x.b, y.d)
	h2, l2 = bits.Mul64(x.c, y.d)
	h3, l3 = bits.Mul64(x.d, y.d)
	l1, carry = bits.Add64(h0, l1, 0)
	l2, carry = bits.Add64(h1, l2, carry)
	l3, carry = bits.Add64(h2, l3, carry)
	h3 += carry
	r3, carry = bits.Add64(r3, l0, 0)
	r4, carry = bits.Add64(r4, l1, carry)
	r5, carry = bits.Add64(r5, l2, carry)
	r6, carry = bits.Add64(r6, l3, carry)
	r7 = h3 + carry

	return fold(r0, r1, r2, r3, r4, r5, r6, r7)
}

// square returns x·x. Each product of two different words counts twice.
func (x element) square() element {
	var r1, r2, r3, r4, r5, r6, carry uint64
	hab, lab := bits.Mul64(x.a, x.b)
	hac, lac := bits.Mul64(x.a, x.c)
	had, lad := bits.Mul64(x.a, x.d)
	hbc, lbc := bits.Mul64(x.b, x.c)
	hbd, lbd := bits.Mul64(x.b, x.d)
	hcd, lcd := bits.Mul64(x.c, x.d)
	r1 = lab
	r2, carry = bits.Add64(hab, lac, 0)
	r3, carry = bits.Add64(hac, lad, carry)
	r4, carry = bits.Add64(had, lbd, carry)
	r5, carry = bits.Add64(hbd, lcd, carry)
	r6 = hcd + carry
	r3, carry = bits.Add64(r3, lbc, 0)
	r4, carry = bits.Add64(r4, hbc, carry)
	r5, carry = bits.Add64(r5, 0, carry)
	r6 += carry

	r7 := r6 >> 63
	r6 = r6<<1 | r5>>63
	r5 = r5<<1 | r4>>63
	r4 = r4<<1 | r3>>63
	r3 = r3<<1 | r2>>63
	r2 = r2<<1 | r1>>63
	r1 <<= 1

	haa, r0 := bits.Mul64(x.a, x.a)
	hbb, lbb := bits.Mul64(x.b, x.b)
	hcc, lcc := bits.Mul64(x.c, x.c)
	hdd, ldd := bits.Mul64(x.d, x.d)
	r1, carry = bits.Add64(r1, haa, 0)
	r2, carry = bits.Add64(r2, lbb, carry)
	r3, carry = bits.Add64(r3, hbb, carry)
	r4, carry = bits.Add64(r4, lcc, carry)
	r5, carry = bits.Add64(r5, hcc, carry)
	r6, carry = bits.Add64(r6, ldd, carry)
	r7 += hdd + carry
	return fold(r0, r1, r2, r3, r4, r5, r6, r7)
}

// fold reduces a number of eight words modulo p by replacing 2^256 with folded.
func fold(r0, r1, r2, r3, r4, r5, r6, r7 uint64) element {
	var carry uint64
	h0, l0 := bits.Mul64(r4, folded)
	h1, l1 := bits.Mul64(r5, folded)
	h2, l2 := bits.Mul64(r6, folded)
	h3, l3 := bits.Mul64(r7, folded)
	l1, carry = bits.Add64(h0, l1, 0)
	l2, carry = bits.Add64(h1, l2, carry)
	l3, carry = bits.Add64(h2, l3, carry)
	h3 += carry
	r0, carry = bits.Add64(r0, l0, 0)
	r1, carry = bits.Add64(r1, l1, carry)
	r2, carry = bits.Add64(r2, l2, carry)
	r3, carry = bits.Add64(r3, l3, carry)
	h0, l0 = bits.Mul64(h3+carry, folded) // h3 is below folded
	r0, carry = bits.Add64(r0, l0, 0)
	r1, carry = bits.Add64(r1, h0, carry)
	r2, carry = bits.Add64(r2, 0, carry)
	r3, carry = bits.Add64(r3, 0, carry)
	r0, carry = bits.Add64(r0, carry*folded, 0) // after that carry, r1 is small
	return element{r0, r1 + carry, r2, r3}
}

// inverse returns 1/x, and 0 for 0. gnark-crypto's binary GCD takes half as long as Fermat's 270 multiplications would
// here.
func (x element) inverse() element {
	var b [32]byte
	binary.BigEndian.PutUint64(b[:], x.d)
	binary.BigEndian.PutUint64(b[8:], x.c)
	binary.BigEndian.PutUint64(b[16:], x.b)
	binary.BigEndian.PutUint64(b[24:], x.a)
	var y fp.Element
	y.SetBytes(b[:])
	b = y.Inverse(&y).Bytes()
	return elementOf(&b)
}
