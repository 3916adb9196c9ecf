package appliance

import (
	"errors"
	"fmt"
	"sync"

	"github.com/consensys/gnark-crypto/ecc/secp256k1"
	"github.com/consensys/gnark-crypto/ecc/secp256k1/fp"
	"github.com/consensys/gnark-crypto/ecc/secp256k1/fr"
	"github.com/ethereum/go-ethereum/crypto"
)

// Verifier makes Signatures as NewSignature does, for a key that signs many. Recovery finds an unknown key; with the key
// known, R = e/s·G + r/s·Q (SEC 1, section 4.1.4) tells both whether the signature is valid and its v, and multiples of G and
// Q are looked up. The tables take 3 MiB. It is safe for concurrent use.
//
// It computes on public values only, so its time may depend on them.
type Verifier struct {
	generator, key *multiples
}

// NewVerifier takes a public key: 65 bytes, SEC 1 uncompressed.
//
// Errors: a point that is not on the curve.
func NewVerifier(publicKey []byte) (*Verifier, error) {
	if _, err := crypto.UnmarshalPubkey(publicKey); err != nil {
		return nil, fmt.Errorf("public key: %w", err)
	}
	var point secp256k1.G1Affine
	point.X.SetBytes(publicKey[1:33])
	point.Y.SetBytes(publicKey[33:])
	_, generator := secp256k1.Generators()
	v := new(Verifier)
	var both sync.WaitGroup
	both.Go(func() { v.generator = multiplesOf(generator) })
	both.Go(func() { v.key = multiplesOf(point) })
	both.Wait()
	return v, nil
}

// Signature is NewSignature with the Verifier's key.
func (v *Verifier) Signature(digest Digest, rs [64]byte) (Signature, error) {
	sig, err := lowS(rs)
	if err != nil {
		return sig, err
	}
	point := v.point(digest, sig)
	var r, zz fp.Element
	r.SetBytes(sig.R[:])
	zz.Square(&point.Z)
	// An x coordinate of r+n, which ecrecover would tell as v 29 or 30, is refused: no contract takes it.
	if point.Z.IsZero() || !r.Mul(&r, &zz).Equal(&point.X) {
		return Signature{}, errNotOurs
	}
	var affine secp256k1.G1Affine
	affine.FromJacobian(&point)
	sig.V = 27 + byte(affine.Y.Bytes()[fp.Bytes-1]&1)
	return sig, nil
}

// point returns R.
func (v *Verifier) point(digest Digest, sig Signature) secp256k1.G1Jac {
	var e, r, s fr.Element
	e.SetBytes(digest[:])
	r.SetBytes(sig.R[:])
	s.SetBytes(sig.S[:])
	s.Inverse(&s)
	var sum secp256k1.G1Jac
	sum.X.SetOne() // with a Z of zero, the point at infinity
	sum.Y.SetOne()
	v.generator.addTo(&sum, e.Mul(&e, &s))
	v.key.addTo(&sum, r.Mul(&r, &s))
	return sum
}

// A scalar is read in signed digits of window bits: with half as many multiples for each as without a sign, it takes fewer
// additions than with bytes.
const (
	window = 11
	places = (fr.Bits + window) / window // the last has room for a carry
	half   = 1 << (window - 1)
)

// multiples are those of a point by j·2^(window·i), for each place i and each digit j from 1 to half.
type multiples [places][half]secp256k1.G1Affine

func multiplesOf(point secp256k1.G1Affine) *multiples {
	var next secp256k1.G1Jac
	next.FromAffine(&point)
	all := make([]secp256k1.G1Jac, 0, places*half)
	for range places {
		base := next
		for range half {
			all = append(all, next)
			next.AddAssign(&base)
		}
		next.DoubleAssign().SubAssign(&base).SubAssign(&base) // of half+1 times the base: 2·half times
	}
	table := new(multiples)
	for i, one := range secp256k1.BatchJacobianToAffineG1(all) {
		table[i/half][i%half] = one
	}
	return table
}

// addTo adds scalar times the point to sum.
func (m *multiples) addTo(sum *secp256k1.G1Jac, scalar *fr.Element) {
	bits, carry := scalar.Bits(), 0 // little-endian
	for i := range m {
		digit := windowOf(&bits, i) + carry
		if carry = 0; digit > half {
			digit, carry = digit-2*half, 1
		}
		switch {
		case digit > 0:
			sum.AddMixed(&m[i][digit-1])
		case digit < 0:
			negative := m[i][-digit-1]
			negative.Y.Neg(&negative.Y)
			sum.AddMixed(&negative)
		}
	}
}

// windowOf returns the bits at a place.
func windowOf(bits *[fr.Limbs]uint64, place int) int {
	at := place * window
	limb, shift := at/64, at%64
	word := bits[limb] >> shift
	if shift > 64-window && limb+1 < fr.Limbs {
		word |= bits[limb+1] << (64 - shift)
	}
	return int(word & (2*half - 1))
}

var errNotOurs = errors.New("the signature does not recover to the key's own address")
