package appliance

import (
	"crypto/rand"
	"crypto/sha256"
)

// TrialDigest returns a digest for a trial signature that no attestation can have. The attestor key signs attestations and
// nothing else, so a trial signature must be of no use to anyone:
//
//   - its first byte is 0xff, so as a number it is above the order of the BN254 scalar field, where no digest of
//     the schemes keccak256-bn254 and mimc-bn254 lies and which the verifying contract refuses;
//   - the rest is SHA-256 of a tag and 32 random bytes, which meets the Keccak-256 of a chosen pair of addresses
//     (schemes keccak256 and eip712) only by a preimage found over 248 bits.
func TrialDigest() Digest {
	preimage := make([]byte, 32)
	rand.Read(preimage) // never fails (Go 1.24)
	digest := sha256.Sum256(append([]byte("attestd trial signature, not an attestation\x00"), preimage...))
	digest[0] = 0xff
	return digest
}
