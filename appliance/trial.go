package appliance

import (
	"crypto/rand"
	"crypto/sha256"
)

// TrialDigest returns a digest for a trial signature that no attestation can have. An attestor key must sign
// attestations only, so a trial signature must be useless to everyone:
//
//   - Its first byte is 0xff, so as a number it is above the order of BN254's scalar field. No digest of the
//     schemes keccak256-bn254 and mimc-bn254 is that large, and the verifying contract refuses it.
//   - The rest is SHA-256 of a tag and 32 random bytes. It equals the Keccak-256 of a chosen pair of addresses
//     (schemes keccak256 and eip712) only if a preimage over 248 bits is found.
func TrialDigest() Digest {
	preimage := make([]byte, 32)
	rand.Read(preimage) // never fails (Go 1.24)
	digest := sha256.Sum256(append([]byte("attestd trial signature, not an attestation\x00"), preimage...))
	digest[0] = 0xff
	return digest
}

// IsTrial reports whether TrialDigest can have returned a digest, by its first byte.
func IsTrial(d Digest) bool { return d[0] == 0xff }
