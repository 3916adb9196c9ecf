package appliance

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/big"
	"strings"

	"github.com/consensys/gnark-crypto/ecc/bn254/fr/mimc"
	"github.com/ethereum/go-ethereum/crypto"
)

// SchemeName names a digest scheme in the configuration and in records.
type SchemeName string

// The digest schemes. The verifying contract determines which one an appliance must use.
const (
	SchemeKeccak256BN254 SchemeName = "keccak256-bn254"
	SchemeMiMCBN254      SchemeName = "mimc-bn254"
	SchemeKeccak256      SchemeName = "keccak256"
	SchemeEIP712         SchemeName = "eip712"
)

// SchemeNames lists the digest schemes, the default first.
var SchemeNames = []SchemeName{SchemeKeccak256BN254, SchemeMiMCBN254, SchemeKeccak256, SchemeEIP712}

// EIP712Domain is the domain of SchemeEIP712. Empty members are left out of the domain's type (EIP-712).
type EIP712Domain struct {
	Name              string   `json:"name,omitempty"`
	Version           string   `json:"version,omitempty"`
	ChainID           uint64   `json:"chainId,omitempty"`
	VerifyingContract *Address `json:"verifyingContract,omitempty"`
}

// Scheme computes the 32 bytes to sign from the two addresses of a Request.
type Scheme struct {
	Name   SchemeName
	Domain *EIP712Domain // only for SchemeEIP712
	digest func(Request) Digest
}

// NewScheme returns the named scheme. SchemeEIP712 needs a domain with at least one member. The other schemes take nil.
func NewScheme(name SchemeName, domain *EIP712Domain) (Scheme, error) {
	if name != SchemeEIP712 && domain != nil {
		return Scheme{}, fmt.Errorf("digest scheme %s has no EIP-712 domain", name)
	}
	scheme := Scheme{Name: name, Domain: domain}
	switch name {
	case SchemeKeccak256BN254:
		scheme.digest = keccak256BN254
	case SchemeMiMCBN254:
		scheme.digest = mimcBN254
	case SchemeKeccak256:
		scheme.digest = keccak256
	case SchemeEIP712:
		if domain == nil || *domain == (EIP712Domain{}) {
			return Scheme{}, fmt.Errorf("digest scheme %s needs an EIP-712 domain", name)
		}
		separator := domain.separator()
		scheme.digest = func(r Request) Digest { return eip712(separator, r) }
	default:
		return Scheme{}, fmt.Errorf("unknown digest scheme %q; use one of %s", name, joinNames(SchemeNames))
	}
	return scheme, nil
}

// String returns the scheme's name, and the domain of SchemeEIP712 as JSON.
func (s Scheme) String() string {
	if s.Domain == nil {
		return string(s.Name)
	}
	domain, _ := json.Marshal(s.Domain) // never fails: text and numbers
	return string(s.Name) + " " + string(domain)
}

// Digest returns the 32 bytes to sign.
func (s Scheme) Digest(r Request) Digest { return s.digest(r) }

// keccak256 hashes the two addresses, 40 bytes.
func keccak256(r Request) Digest {
	return Digest(crypto.Keccak256Hash(r.UnspendableAddress[:], r.Beneficiary[:]))
}

// keccak256BN254 is keccak256 with the first byte cleared. The result is below 2^248 and so a canonical scalar of
// BN254.
func keccak256BN254(r Request) Digest {
	d := keccak256(r)
	d[0] = 0
	return d
}

// mimcBN254 is gnark's MiMC (Miyaguchi-Preneel, exponent 5, 110 rounds, constants from "seed") over the scalar field of
// BN254. Each address is one field element.
func mimcBN254(r Request) Digest {
	h := mimc.NewMiMC()
	for _, a := range []Address{r.UnspendableAddress, r.Beneficiary} {
		element := leftPad(a[:])
		if _, err := h.Write(element[:]); err != nil {
			panic(err) // unreachable: 160 bits are below the field's modulus
		}
	}
	return Digest(h.Sum(nil))
}

const (
	attestationType = "Attestation(address unspendableAddress,address beneficiary)"
	domainTypeName  = "EIP712Domain"
)

// eip712 is keccak256(0x1901 ‖ domain separator ‖ struct hash).
func eip712(separator Digest, r Request) Digest {
	hash := structHash(r)
	return Digest(crypto.Keccak256([]byte{0x19, 0x01}, separator[:], hash[:]))
}

// structHash is EIP-712's hashStruct of an Attestation.
func structHash(r Request) Digest {
	u, b := leftPad(r.UnspendableAddress[:]), leftPad(r.Beneficiary[:])
	return Digest(crypto.Keccak256(crypto.Keccak256([]byte(attestationType)), u[:], b[:]))
}

// separator returns EIP-712's domainSeparator.
func (d *EIP712Domain) separator() Digest {
	domainType, values := d.encode()
	return Digest(crypto.Keccak256(crypto.Keccak256([]byte(domainType)), values))
}

// encode returns the domain's type and its encoded values: the members that are set, in the order of EIP-712.
func (d *EIP712Domain) encode() (domainType string, values []byte) {
	var members []string
	add := func(member string, value []byte) {
		members = append(members, member)
		values = append(values, value...)
	}
	if d.Name != "" {
		add("string name", crypto.Keccak256([]byte(d.Name)))
	}
	if d.Version != "" {
		add("string version", crypto.Keccak256([]byte(d.Version)))
	}
	if d.ChainID != 0 {
		id := leftPad(binary.BigEndian.AppendUint64(nil, d.ChainID))
		add("uint256 chainId", id[:])
	}
	if d.VerifyingContract != nil {
		a := leftPad(d.VerifyingContract[:])
		add("address verifyingContract", a[:])
	}
	return domainTypeName + "(" + strings.Join(members, ",") + ")", values
}

// leftPad returns b as a 32-byte big-endian word.
func leftPad(b []byte) (word [32]byte) {
	copy(word[len(word)-len(b):], b)
	return word
}

// BN254R returns the order of BN254's scalar field. A contract that passes the digest to a circuit requires a smaller
// digest. Digests of keccak256-bn254 and mimc-bn254 are always smaller.
func BN254R() *big.Int {
	r, _ := new(big.Int).SetString("30644e72e131a029b85045b68181585d2833e84879b9709143e1f593f0000001", 16)
	return r
}

func joinNames[T ~string](names []T) string {
	s := make([]string, len(names))
	for i, n := range names {
		s[i] = string(n)
	}
	return strings.Join(s, ", ")
}
