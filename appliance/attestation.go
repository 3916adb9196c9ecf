// Package appliance has the domain types of attestd: addresses, requests and their digests, attestations and their
// records, API keys, quorums and errors. It imports no other package of attestd, and no HTTP, PKCS#11 or database
// package. Standards: EIP-55, EIP-2, EIP-712, ERC-1271, RFC 9562.
package appliance

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/google/uuid"
)

// Request asks for an attestation that binds an unspendable address to its beneficiary.
type Request struct {
	UnspendableAddress Address `json:"unspendableAddress"`
	Beneficiary        Address `json:"beneficiary"`
}

// Attestation is the answer to a Request. A client submits it on chain.
type Attestation struct {
	ID            uuid.UUID `json:"id"`            // UUIDv7
	Hash          Digest    `json:"hash"`          // the 32 bytes that were signed
	Signature     Signature `json:"signature"`     // by the attestor key
	SignerAddress Address   `json:"signerAddress"` // of the attestor key
}

// Verify checks that the signature is well-formed and recovers to SignerAddress. It cannot check the addresses behind
// the hash; see Scheme.Digest. The SignerAddress of a quorum is a contract, which does not sign: use VerifyQuorum.
func (a Attestation) Verify() error {
	if a.Signature.Joined != "" {
		return errors.New(
			"a quorum signed this attestation, for a contract: check it with the addresses of the members")
	}
	signer, err := a.Signature.Recover(a.Hash)
	if err != nil {
		return err
	}
	if signer != a.SignerAddress {
		return fmt.Errorf("the signature is by %s, not by signerAddress %s", signer, a.SignerAddress)
	}
	return nil
}

// Record is an attestation as the journal stores it: with the request, the API key and the time.
type Record struct {
	Attestation
	Request
	Scheme         string        `json:"scheme"`           // SchemeName of the digest
	Domain         *EIP712Domain `json:"domain,omitempty"` // only for SchemeEIP712
	KeyID          string        `json:"keyId"`            // public id of the API key that requested it
	IdempotencyKey string        `json:"idempotencyKey,omitempty"`
	// origin of the log of the appliance for which this one cosigned
	Coordinator string  `json:"coordinator,omitempty"`
	Quorum      *Quorum `json:"quorum,omitempty"` // nil unless several appliances signed
	// the event with which the request waited for people's approval; nil unless the policy demanded one
	Approval *uuid.UUID `json:"approval,omitempty"`
	// UTC; set by the journal, never earlier than the previous record
	Time time.Time `json:"time"`
	// prevents guessing the addresses from the leaf's public hash
	Salt Salt `json:"salt"`
}

// Verify checks the record on its own: the hash is the digest of its addresses under its scheme, and the signature
// recovers to SignerAddress.
func (r Record) Verify() error { return r.VerifyBy(nil) }

// VerifyBy does the same as Verify. signed, unless it is nil, reports whether the key of SignerAddress made a
// signature.
func (r Record) VerifyBy(signed func(Digest, Signature) bool) error {
	scheme, err := NewScheme(SchemeName(r.Scheme), r.Domain)
	if err != nil {
		return err
	}
	if want := scheme.Digest(r.Request); want != r.Hash {
		return fmt.Errorf("the hash is %s, but %s of the two addresses is %s", r.Hash, r.Scheme, want)
	}
	if signed == nil || !signed(r.Hash, r.Signature) {
		if err := r.Attestation.Verify(); err != nil {
			return err
		}
	}
	if r.Quorum == nil {
		return nil
	}
	return r.Quorum.verify(r.Attestation)
}

// Digest is the 32 bytes that are signed. Its text form is 0x and 64 lower-case hex digits.
type Digest [32]byte

// String returns 0x and 64 hex digits.
func (d Digest) String() string { return "0x" + hex.EncodeToString(d[:]) }

// MarshalText returns 0x and 64 hex digits.
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads 0x and 64 hex digits.
func (d *Digest) UnmarshalText(text []byte) error { return parseWord(d, string(text)) }

// Salt is 16 random bytes. Its text form is 32 hex digits.
type Salt [16]byte

// MarshalText returns 32 hex digits.
func (s Salt) MarshalText() ([]byte, error) { return []byte(hex.EncodeToString(s[:])), nil }

// UnmarshalText reads 32 hex digits.
func (s *Salt) UnmarshalText(text []byte) error {
	if len(text) != 2*len(s) {
		return errors.New("salt: must be 32 hex digits")
	}
	_, err := hex.Decode(s[:], text)
	return err
}

// Signature is a recoverable ECDSA signature over secp256k1, s in the lower half of the order (EIP-2).
type Signature struct {
	R, S [32]byte // big-endian
	V    byte     // 27 or 28: the parity of the y coordinate of the point R

	// Joined is set in the answer of a quorum: 65 bytes for each member's signature, as in Bytes, in ascending order of
	// the signers' addresses. R, S and V are one of them, the coordinator's.
	Joined string
}

var secp256k1HalfN = new(big.Int).Rsh(crypto.S256().Params().N, 1)

// Recover returns the address of the key that signed digest.
//
// Errors: r or s out of range, s in the upper half, v neither 27 nor 28, or no such point.
func (sig Signature) Recover(digest Digest) (Address, error) {
	r, s := new(big.Int).SetBytes(sig.R[:]), new(big.Int).SetBytes(sig.S[:])
	if sig.V != 27 && sig.V != 28 {
		return Address{}, fmt.Errorf("v is %d, not 27 or 28", sig.V)
	}
	if s.Cmp(secp256k1HalfN) > 0 {
		return Address{}, errors.New("s is in the upper half of the order (EIP-2)")
	}
	if !crypto.ValidateSignatureValues(sig.V-27, r, s, true) {
		return Address{}, errors.New("r or s is outside 1 … n-1")
	}
	key, err := crypto.SigToPub(digest[:], sig.rsv())
	if err != nil {
		return Address{}, fmt.Errorf("recover the signer: %w", err)
	}
	return Address(crypto.PubkeyToAddress(*key)), nil
}

// rsv returns go-ethereum's form: r, s and the recovery id 0 or 1.
func (sig Signature) rsv() []byte {
	b := make([]byte, 65)
	copy(b, sig.R[:])
	copy(b[32:], sig.S[:])
	b[64] = sig.V - 27
	return b
}

// Bytes returns the form that contracts take: r, s and v (27 or 28).
func (sig Signature) Bytes() [65]byte {
	b := [65]byte(sig.rsv())
	b[64] = sig.V
	return b
}

type signatureJSON struct {
	R     Digest `json:"r"`
	S     Digest `json:"s"`
	V     byte   `json:"v"`
	Bytes string `json:"bytes"`
}

// MarshalJSON returns r and s as 0x and 64 hex digits, v as a number and, for contracts, Joined or Bytes as 0x and 130
// hex digits per signature.
func (sig Signature) MarshalJSON() ([]byte, error) {
	b := sig.Bytes()
	bytes := b[:]
	if sig.Joined != "" {
		bytes = []byte(sig.Joined)
	}
	return json.Marshal(signatureJSON{R: sig.R, S: sig.S, V: sig.V, Bytes: "0x" + hex.EncodeToString(bytes)})
}

// UnmarshalJSON reads the output of MarshalJSON. The member bytes may be missing, as in a leaf. If present, it must
// equal r, s and v, or be several signatures with r, s and v among them, so that a contract gets the same signature
// that was checked.
func (sig *Signature) UnmarshalJSON(data []byte) error {
	var j signatureJSON
	if err := json.Unmarshal(data, &j); err != nil {
		return err
	}
	*sig = Signature{R: j.R, S: j.S, V: j.V}
	b := sig.Bytes()
	if j.Bytes == "" || strings.EqualFold(j.Bytes, "0x"+hex.EncodeToString(b[:])) {
		return nil
	}
	digits, _ := strings.CutPrefix(j.Bytes, "0x")
	joined, err := hex.DecodeString(digits)
	sig.Joined = string(joined)
	if err != nil || len(joined)%len(b) != 0 || !slices.Contains(sig.parts(), Signature{R: j.R, S: j.S, V: j.V}) {
		return errors.New(
			"signature.bytes must be the concatenation of r, s and v, or of several such signatures with this one among them")
	}
	return nil
}

// parts returns the signatures of Joined, or the only one.
func (sig Signature) parts() (all []Signature) {
	if sig.Joined == "" {
		return []Signature{sig}
	}
	for b := range slices.Chunk([]byte(sig.Joined), 65) {
		if len(b) < 65 {
			return append(all, Signature{}) // recovers nobody
		}
		all = append(all, Signature{R: [32]byte(b[:32]), S: [32]byte(b[32:64]), V: b[64]})
	}
	return all
}

// AddressOf returns the address of a public key (65 bytes, SEC 1 uncompressed).
//
// Errors: not 65 bytes, or not a point of secp256k1.
func AddressOf(publicKey []byte) (Address, error) {
	key, err := crypto.UnmarshalPubkey(publicKey)
	if err != nil {
		return Address{}, fmt.Errorf("public key: %w", err)
	}
	return Address(common.Address(crypto.PubkeyToAddress(*key))), nil
}

// parseWord reads 0x and exactly 64 hex digits.
func parseWord(word *Digest, s string) error {
	digits, found := strings.CutPrefix(s, "0x")
	if !found || len(digits) != 2*len(word) {
		return errors.New("must be 0x and 64 hex digits")
	}
	_, err := hex.Decode(word[:], []byte(digits))
	return err
}
