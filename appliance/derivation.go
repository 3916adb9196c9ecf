package appliance

import (
	"encoding/hex"
	"slices"
)

// Step is one step from the two addresses of a record to its digest.
type Step struct {
	What  string // such as "Keccak256 of these 40 bytes"
	Value string // 0x and hex digits, or the hashed text
}

// Derivation returns the steps from a record's addresses to its digest under its scheme. The last value is the digest.
// It equals the record's Hash unless the record was altered.
func (r Record) Derivation() ([]Step, error) {
	scheme, err := NewScheme(SchemeName(r.Scheme), r.Domain)
	if err != nil {
		return nil, err
	}
	steps := []Step{
		{"The unspendable address, 20 bytes", hexOf(r.UnspendableAddress[:])},
		{"The beneficiary, 20 bytes", hexOf(r.Beneficiary[:])},
	}
	switch scheme.Name {
	case SchemeMiMCBN254:
		return append(steps, r.mimcSteps()...), nil
	case SchemeEIP712:
		return append(steps, r.eip712Steps()...), nil
	}
	return append(steps, r.keccakSteps(scheme)...), nil
}

func (r Record) keccakSteps(scheme Scheme) []Step {
	steps := []Step{
		{"Both concatenated, 40 bytes", hexOf(slices.Concat(r.UnspendableAddress[:], r.Beneficiary[:]))},
		{"Keccak256 of these 40 bytes", keccak256(r.Request).String()},
	}
	if scheme.Name == SchemeKeccak256BN254 {
		steps = append(steps,
			Step{"Its first byte set to 0, so that it is a scalar of BN254", scheme.Digest(r.Request).String()})
	}
	return steps
}

func (r Record) mimcSteps() []Step {
	unspendable, beneficiary := leftPad(r.UnspendableAddress[:]), leftPad(r.Beneficiary[:])
	return []Step{
		{"The unspendable address as an element of BN254's scalar field", hexOf(unspendable[:])},
		{"The beneficiary as an element of BN254's scalar field", hexOf(beneficiary[:])},
		{"MiMC of both elements (Miyaguchi-Preneel, exponent 5, 110 rounds, seed \"seed\")",
			mimcBN254(r.Request).String()},
	}
}

func (r Record) eip712Steps() []Step {
	domainType, values := r.Domain.encode()
	separator, hash := r.Domain.separator(), structHash(r.Request)
	return []Step{
		{"The domain's type", domainType},
		{"The domain's values, encoded", hexOf(values)},
		{"The domain separator: keccak256 of the hash of the type and of the values", separator.String()},
		{"The type of the signed struct", attestationType},
		{"The struct hash: keccak256 of the hash of the type and of both addresses as words of 32 bytes",
			hash.String()},
		{"0x1901, the domain separator and the struct hash, 66 bytes",
			hexOf(slices.Concat([]byte{0x19, 0x01}, separator[:], hash[:]))},
		{"Keccak256 of these 66 bytes", eip712(separator, r.Request).String()},
	}
}

func hexOf(b []byte) string { return "0x" + hex.EncodeToString(b) }
