package secp256k1

import (
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/ethereum/go-ethereum/crypto"
)

// Elements compute like numbers modulo p, also at the edges of words, of p and of 2^256, where carries occur.
func TestElementsAreNumbersModuloP(t *testing.T) {
	p, random := crypto.S256().Params().P, rand.New(rand.NewPCG(3, 4))
	modulo := func(x *big.Int) *big.Int { return x.Mod(x, p) }
	for range 200_000 {
		x, y := edgyElement(random), edgyElement(random)
		bx, by := bigOf(x), bigOf(y)
		for name, c := range map[string]struct {
			got  element
			want *big.Int
		}{
			"x + y": {x.plus(y), modulo(new(big.Int).Add(bx, by))},
			"x - y": {x.minus(y), modulo(new(big.Int).Sub(bx, by))},
			"x·y":   {x.times(y), modulo(new(big.Int).Mul(bx, by))},
			"x·x":   {x.square(), modulo(new(big.Int).Mul(bx, bx))},
			"x":     {x, modulo(new(big.Int).Set(bx))},
		} {
			if got := bigOf(c.got.reduced()); got.Cmp(c.want) != 0 {
				t.Fatalf("x = %x, y = %x: %s is %x, not %x", bx, by, name, got, c.want)
			}
			if c.got.isZero() != (c.want.Sign() == 0) || c.got.isOdd() != (c.want.Bit(0) == 1) {
				t.Fatalf("x = %x, y = %x: %s is %x: zero %t, odd %t", bx, by, name, c.want, c.got.isZero(),
					c.got.isOdd())
			}
		}
	}
}

func TestAnElementTimesItsInverseIsOne(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for range 1000 {
		x := edgyElement(random)
		want := one
		if x.isZero() {
			want = element{}
		}
		if got := x.times(x.inverse()).reduced(); got != want {
			t.Fatalf("x = %x: x·1/x is %x", bigOf(x), bigOf(got))
		}
	}
}

func TestElementOfReadsBigEndianBytes(t *testing.T) {
	x := new(big.Int).SetBytes(crypto.Keccak256())
	var b [32]byte
	if got := bigOf(elementOf((*[32]byte)(x.FillBytes(b[:])))); got.Cmp(x) != 0 {
		t.Errorf("%x was read as %x", x, got)
	}
}

// edgyElement returns an element with words that are random or at an edge of their range.
func edgyElement(random *rand.Rand) (x element) {
	edges := []uint64{0, 1, 2, folded - 1, folded, folded + 1, -folded & (1<<64 - 1), prime.a - 1, prime.a + 1, 1 << 63,
		1<<64 - 2, 1<<64 - 1}
	for _, word := range []*uint64{&x.a, &x.b, &x.c, &x.d} {
		if *word = random.Uint64(); random.IntN(3) > 0 {
			*word = edges[random.IntN(len(edges))]
		}
	}
	return x
}

func bigOf(x element) *big.Int {
	n := new(big.Int)
	for _, word := range []uint64{x.d, x.c, x.b, x.a} {
		n.Add(n.Lsh(n, 64), new(big.Int).SetUint64(word))
	}
	return n
}
