package secp256k1_test

import (
	"crypto/ecdsa"
	"flag"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/ethereum/go-ethereum/crypto"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/secp256k1"
)

var signatures = flag.Int("signatures", 2000,
	"how many signatures to hold against go-ethereum's recovery (make test-signatures: a million)")

var order = crypto.S256().Params().N

// A Verifier accepts exactly the signatures that recovery accepts, with the same v.
func TestAVerifierIsAsStrictAsRecovery(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	const perKey = 500
	for made := 0; made < *signatures; made += perKey {
		key := testKeyOf(t, random, made/perKey)
		public := crypto.FromECDSAPub(&key.PublicKey)
		verifier, err := secp256k1.NewVerifier(public)
		if err != nil {
			t.Fatal(err)
		}
		accepted := 0
		for range perKey {
			digest, rs := hostile(t, random, key)
			want, wantErr := secp256k1.NewSignature(digest, rs, public)
			got, err := verifier.Signature(digest, rs)
			if got != want || (err == nil) != (wantErr == nil) {
				t.Fatalf("key %x, digest %s, r and s %x: %+v, %v; recovery: %+v, %v", crypto.FromECDSA(key), digest, rs,
					got, err, want, wantErr)
			}
			if err == nil {
				accepted++
			}
		}
		if accepted < perKey/4 || accepted > perKey*3/4 {
			t.Errorf("%d of %d were accepted: the cases are one-sided", accepted, perKey)
		}
	}
}

// testKeyOf returns a random key. The multiples of the first four keys coincide with the generator's.
func testKeyOf(t *testing.T, random *rand.Rand, i int) *ecdsa.PrivateKey {
	t.Helper()
	scalar := randomScalar(random)
	if small := []int64{1, 2, -1, 256}; i < len(small) {
		scalar = modulo(big.NewInt(small[i]))
	}
	key, err := crypto.ToECDSA(scalar.FillBytes(make([]byte, 32)))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// hostile returns a digest with r and s. About half of them are valid; the others have one fault.
func hostile(t *testing.T, random *rand.Rand, key *ecdsa.PrivateKey) (digest appliance.Digest, rs [64]byte) {
	t.Helper()
	randomScalar(random).FillBytes(digest[:])
	switch random.IntN(12) {
	case 0: // a digest at or above the order
		for i := range 16 {
			digest[i] = 0xff
		}
	case 1:
		digest = appliance.Digest{}
	case 2:
		digest = appliance.Digest(order.Bytes())
	}
	rs = signRaw(t, key, digest, random.IntN(2) == 0)
	switch random.IntN(10) {
	case 0:
		digest[random.IntN(32)] ^= 1 << random.IntN(8)
	case 1:
		rs[random.IntN(64)] ^= 1 << random.IntN(8)
	case 2:
		randomScalar(random).FillBytes(rs[32*random.IntN(2):][:32])
	case 3: // at the ends of the range
		part := rs[32*random.IntN(2):][:32]
		edges := []*big.Int{big.NewInt(0), big.NewInt(1), order, new(big.Int).Sub(order, big.NewInt(1)),
			crypto.S256().Params().P}
		edges[random.IntN(len(edges))].FillBytes(part)
	case 4: // R would be the point at infinity: e = -r·d
		r := new(big.Int).SetBytes(rs[:32])
		modulo(r.Neg(r.Mul(r, new(big.Int).SetBytes(crypto.FromECDSA(key))))).FillBytes(digest[:])
	}
	return digest, rs
}

// ECDSA allows an R with an x coordinate of r+n. ecrecover would need a v of 29 or 30, which no contract accepts.
func TestAVerifierRefusesAnXCoordinateAboveTheOrder(t *testing.T) {
	curve := crypto.S256()
	r, y := big.NewInt(1), (*big.Int)(nil)
	for ; y == nil; r.Add(r, big.NewInt(1)) {
		x := new(big.Int).Add(order, r)
		square := new(big.Int).Exp(x, big.NewInt(3), curve.Params().P)
		y = new(big.Int).ModSqrt(square.Add(square, big.NewInt(7)), curve.Params().P)
	}
	r.Sub(r, big.NewInt(1)) // the loop's last increment came after the match
	// The key for which R, s and e are a signature: Q = (s·R - e·G) / r.
	s, e := big.NewInt(12345), big.NewInt(67890)
	inverse := new(big.Int).ModInverse(r, order)
	ax, ay := curve.ScalarMult(new(big.Int).Add(order, r), y, modulo(new(big.Int).Mul(s, inverse)).Bytes())
	bx, by := curve.ScalarBaseMult(modulo(new(big.Int).Neg(new(big.Int).Mul(e, inverse))).Bytes())
	qx, qy := curve.Add(ax, ay, bx, by)
	public := append([]byte{4}, append(qx.FillBytes(make([]byte, 32)), qy.FillBytes(make([]byte, 32))...)...)
	key, err := crypto.UnmarshalPubkey(public)
	if err != nil {
		t.Fatal(err)
	}
	var digest appliance.Digest
	var rs [64]byte
	e.FillBytes(digest[:])
	r.FillBytes(rs[:32])
	s.FillBytes(rs[32:])
	if !ecdsa.Verify(key, digest[:], r, s) {
		t.Fatal("the case is wrong: it must be a signature by ECDSA")
	}
	verifier, err := secp256k1.NewVerifier(public)
	if err != nil {
		t.Fatal(err)
	}
	if sig, err := verifier.Signature(digest, rs); err == nil {
		t.Errorf("accepted as %+v", sig)
	}
}

func TestNewVerifierRefusesWhatIsNoPoint(t *testing.T) {
	_, public, _ := newTestKey(t)
	off := append([]byte(nil), public...)
	off[64] ^= 1
	for name, bad := range map[string][]byte{"off the curve": off, "short": public[:64],
		"compressed": append([]byte{2}, public[1:33]...), "none": nil} {
		if _, err := secp256k1.NewVerifier(bad); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func randomScalar(random *rand.Rand) *big.Int {
	var b [32]byte
	for i := range b {
		b[i] = byte(random.Uint32())
	}
	return modulo(new(big.Int).SetBytes(b[:]))
}

func modulo(x *big.Int) *big.Int { return x.Mod(x, order) }

func BenchmarkSignatureChecks(b *testing.B) {
	key, err := crypto.GenerateKey()
	if err != nil {
		b.Fatal(err)
	}
	public := crypto.FromECDSAPub(&key.PublicKey)
	verifier, err := secp256k1.NewVerifier(public)
	if err != nil {
		b.Fatal(err)
	}
	var digests [4096]appliance.Digest // so many that the tables exceed the nearest cache, as under load
	var raw [4096][64]byte
	for i := range raw {
		digests[i][1], digests[i][2] = byte(i), byte(i>>8)
		sig, err := crypto.Sign(digests[i][:], key)
		if err != nil {
			b.Fatal(err)
		}
		copy(raw[i][:], sig)
	}
	for name, check := range map[string]func(int) error{
		"recovery": func(i int) error { _, err := secp256k1.NewSignature(digests[i], raw[i], public); return err },
		"verifier": func(i int) error { _, err := verifier.Signature(digests[i], raw[i]); return err },
	} {
		b.Run(name, func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				if err := check(i % len(raw)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("tables", func(b *testing.B) {
		for b.Loop() {
			_, _ = secp256k1.NewVerifier(public)
		}
	})
}
