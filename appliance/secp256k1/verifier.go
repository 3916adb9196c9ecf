// Package secp256k1 makes signatures of attestations from an HSM's output (SEC 1, EIP-2), and verifies the signatures
// of a known key with tables of its multiples.
package secp256k1

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/attestd/attestd/appliance"
	curve "github.com/consensys/gnark-crypto/ecc/secp256k1"
	"github.com/consensys/gnark-crypto/ecc/secp256k1/fr"
	"github.com/ethereum/go-ethereum/crypto"
)

// Verifier makes Signatures as NewSignature does, for a key that signs often. NewSignature recovers an unknown key.
// With a known key, R = e/s·G + r/s·Q (SEC 1, section 4.1.4) both verifies the signature and gives v. Multiples of G
// and Q come from tables of 3 MiB. It is safe for concurrent use.
//
// It computes on public values only, so it need not run in constant time.
type Verifier struct {
	publicKey      []byte
	generator, key *multiples
}

// NewVerifier makes the tables for a public key (65 bytes, SEC 1 uncompressed).
//
// Errors: the key is not a point of the curve.
func NewVerifier(publicKey []byte) (*Verifier, error) { return (*Verifier)(nil).Of(publicKey) }

// Of makes a Verifier for another public key, as NewVerifier does. The two share the table of the generator. A nil
// Verifier has no table to share.
func (v *Verifier) Of(publicKey []byte) (*Verifier, error) {
	if _, err := crypto.UnmarshalPubkey(publicKey); err != nil {
		return nil, fmt.Errorf("public key: %w", err)
	}
	var point curve.G1Affine
	point.X.SetBytes(publicKey[1:33])
	point.Y.SetBytes(publicKey[33:])
	of := &Verifier{publicKey: bytes.Clone(publicKey)}
	var both sync.WaitGroup
	both.Go(func() { of.key = multiplesOf(point) })
	if v != nil {
		of.generator = v.generator
	} else {
		_, g := curve.Generators()
		of.generator = multiplesOf(g)
	}
	both.Wait()
	return of, nil
}

// Signature does the same as NewSignature with the Verifier's key.
func (v *Verifier) Signature(digest appliance.Digest, rs [64]byte) (appliance.Signature, error) {
	sig, err := lowS(rs)
	if err != nil {
		return sig, err
	}
	point, ok := v.point(digest, sig)
	if !ok {
		return NewSignature(digest, rs, v.publicKey)
	}
	zz := point.z.square()
	// An x coordinate of r+n, for which ecrecover would need v 29 or 30, is refused: no contract accepts it.
	if !elementOf(&sig.R).times(zz).minus(point.x).isZero() {
		return appliance.Signature{}, errNotOurs
	}
	y := point.y.times(zz.times(point.z).inverse())
	sig.V = 27
	if y.isOdd() {
		sig.V = 28
	}
	return sig, nil
}

// Signed reports whether the key made this signature of the digest: v and the half of s count, too. It accepts exactly
// the signatures for which Signature.Recover returns the key's address.
func (v *Verifier) Signed(digest appliance.Digest, sig appliance.Signature) bool {
	again, err := v.Signature(digest, [64]byte(slices.Concat(sig.R[:], sig.S[:])))
	return err == nil && again == sig
}

// point returns R. ok is false if an addition meets two points with the same x coordinate or the result is the point at
// infinity. A signature that was not crafted for it hits this with probability 2^-240.
func (v *Verifier) point(digest appliance.Digest, sig appliance.Signature) (r jacobian, ok bool) {
	var e, x, s fr.Element
	e.SetBytes(digest[:])
	x.SetBytes(sig.R[:])
	s.SetBytes(sig.S[:])
	s.Inverse(&s)
	sum := jacobian{}
	return sum, v.generator.addTo(&sum, e.Mul(&e, &s)) && v.key.addTo(&sum, x.Mul(&x, &s)) && !sum.z.isZero()
}

// A scalar is split into signed digits of window bits. Signed digits need half as many multiples per digit, and fewer
// additions than bytes would.
const (
	window = 11
	places = (fr.Bits + window) / window // the last digit has room for a carry
	half   = 1 << (window - 1)
)

// multiples holds j·2^(window·i) times a point, for each digit position i and each digit j from 1 to half.
type multiples [places][half]affine

func multiplesOf(point curve.G1Affine) *multiples {
	table := new(multiples)
	var next curve.G1Jac
	next.FromAffine(&point)
	for i := range table {
		var base, twice curve.G1Affine
		base.FromJacobian(&next)
		next.DoubleAssign()
		twice.FromJacobian(&next)
		fill(&table[i], affineOf(&base), affineOf(&twice))
		for range window - 1 {
			next.DoubleAssign()
		}
	}
	return table
}

// fill computes the multiples of a point. The first two are given. No addition hits a special case, because the point's
// order is a large prime.
func fill(row *[half]affine, once, twice affine) {
	var points, products [half]jacobian // products uses only z: the product of all z before that index
	points[0], points[1] = jacobian{once.x, once.y, one}, jacobian{twice.x, twice.y, one}
	for j := 2; j < half; j++ {
		points[j], _ = points[j-1].plus(once)
	}
	product := one
	for j := range points {
		products[j].z = product
		product = product.times(points[j].z)
	}
	inverse := product.inverse() // one inversion for all points
	for j := half - 1; j >= 0; j-- {
		z := inverse.times(products[j].z)
		inverse = inverse.times(points[j].z)
		zz := z.square()
		row[j] = affine{points[j].x.times(zz).reduced(), points[j].y.times(zz.times(z)).reduced()}
	}
}

// addTo adds scalar times the point to sum. It returns false if jacobian.plus cannot add two points.
//
// All multiples are read before the first addition. They are far apart in memory, so reading them together overlaps the
// cache misses.
func (m *multiples) addTo(sum *jacobian, scalar *fr.Element) bool {
	var summands [places]affine
	n := 0
	bits, carry := scalar.Bits(), 0 // little-endian
	for i := range m {
		digit := windowOf(&bits, i) + carry
		if carry = 0; digit > half {
			digit, carry = digit-2*half, 1
		}
		if digit == 0 {
			continue
		}
		summands[n] = m[i][max(digit, -digit)-1]
		if digit < 0 {
			summands[n].y = element{}.minus(summands[n].y)
		}
		n++
	}
	for i := range n {
		var ok bool
		if *sum, ok = sum.plus(summands[i]); !ok {
			return false
		}
	}
	return true
}

// windowOf returns the bits of one digit.
func windowOf(bits *[fr.Limbs]uint64, place int) int {
	at := place * window
	limb, shift := at/64, at%64
	word := bits[limb] >> shift
	if shift > 64-window && limb+1 < fr.Limbs {
		word |= bits[limb+1] << (64 - shift)
	}
	return int(word & (2*half - 1))
}

var errNotOurs = errors.New("the signature does not recover to the key's address")

// NewSignature makes a Signature from the output of an HSM: r and s as 32 big-endian bytes each, s in either half, and
// the public key (65 bytes, SEC 1 uncompressed). It checks the range of r and s, moves s to the lower half, and finds v
// by recovering the key. If neither v recovers the public key, it returns an error. Verifier.Signature does the same
// faster.
func NewSignature(digest appliance.Digest, rs [64]byte, publicKey []byte) (appliance.Signature, error) {
	sig, err := lowS(rs)
	if err != nil {
		return sig, err
	}
	for _, v := range []byte{27, 28} {
		sig.V = v
		recovered, err := crypto.Ecrecover(digest[:], append(slices.Concat(sig.R[:], sig.S[:]), v-27))
		if err == nil && string(recovered) == string(publicKey) {
			return sig, nil
		}
	}
	return appliance.Signature{}, errNotOurs
}

// lowS returns the Signature without v and with s in the lower half. It checks the range of r and s.
func lowS(rs [64]byte) (sig appliance.Signature, err error) {
	var r, s fr.Element
	if r.SetBytesCanonical(rs[:32]) != nil || s.SetBytesCanonical(rs[32:]) != nil || r.IsZero() || s.IsZero() {
		return sig, errors.New("r or s is outside 1 … n-1")
	}
	if s.LexicographicallyLargest() { // above (n-1)/2
		s.Neg(&s)
	}
	sig.R, sig.S = r.Bytes(), s.Bytes()
	return sig, nil
}
