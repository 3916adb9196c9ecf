package appliance_test

import (
	"crypto/ecdsa"
	"math/big"
	"slices"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"

	"github.com/attestd/attestd/appliance"
)

// FuzzTheAttestorContractDecidesAsItsRules compares the contract with quorumRules. Each pair of bytes of script adds a
// signature: a key, and how the signature is changed. tail is appended to the signatures.
func FuzzTheAttestorContractDecidesAsItsRules(f *testing.F) {
	const members = 4
	keys := quorumKeys(f, members+2) // two outsiders
	digest := quorumDigest(f)
	signatures := allSignedBy(f, keys, digest)
	var quorums []*attestorQuorum
	for threshold := range members {
		quorums = append(quorums, deployQuorum(f, threshold+1, keys[:members]...))
	}
	for _, script := range []string{
		"", "\x00\x00", "\x00\x00\x01\x00", "\x01\x00\x00\x00", "\x00\x00\x00\x01", "\x00\x00\x01\x01\x02\x00",
		"\x00\x00\x01\x00\x02\x00\x03\x00", "\x04\x00\x05\x00", "\x00\x02\x01\x03", "\x00\x04\x01\x05",
		"\x00\x00\x01\x00\x01\x06",
	} {
		for threshold := range byte(members) {
			f.Add(threshold, []byte(script), []byte(nil))
		}
	}
	f.Add(byte(0), []byte("\x00\x00"), []byte{0})
	f.Add(byte(1), []byte("\x00\x00"), signatures[1])
	f.Add(byte(1), []byte(nil), make([]byte, 130))
	f.Fuzz(func(t *testing.T, threshold byte, script, tail []byte) {
		var all []byte
		for ; len(script) >= 2 && len(all) < 65*2*members; script = script[2:] {
			all = append(all, changedSignature(signatures[int(script[0])%len(signatures)], script[1])...)
		}
		all = append(all, tail...)
		q := *quorums[int(threshold)%members]
		q.TB = t
		want := quorumRules(int(threshold)%members+1, keys[:members], digest, all)
		if got := q.accepts(digest, all); got != want {
			t.Errorf("the contract decides %v of %x, the rules %v", got, all, want)
		}
	})
}

// changedSignature changes a signature in the way that is chosen by how.
func changedSignature(signature []byte, how byte) []byte {
	b := slices.Clone(signature)
	switch how {
	case 0:
	case 1:
		return malleable(b)
	case 2:
		b[64] -= 27
	case 3:
		b[64] = 27 + 28 - b[64]
	case 4:
		clear(b[:32])
	case 5:
		clear(b[32:64])
	case 6:
		return b[:64]
	default:
		b[int(how)%len(b)] ^= 1 << (how & 7)
	}
	return b
}

// quorumRules decides as AttestorQuorum.sol promises, and is written without a look at it: each 65 bytes are a
// signature in the lower half, whose signer has a higher address than the one before and is a member.
func quorumRules(threshold int, members []*ecdsa.PrivateKey, digest appliance.Digest, signatures []byte) bool {
	halfN := new(big.Int).Rsh(crypto.S256().Params().N, 1)
	var signers []common.Address
	for one := range slices.Chunk(signatures, 65) {
		if len(one) != 65 || new(big.Int).SetBytes(one[32:64]).Cmp(halfN) > 0 || one[64] != 27 && one[64] != 28 {
			return false
		}
		public, err := crypto.SigToPub(digest[:], unshifted(one))
		if err != nil {
			return false
		}
		signers = append(signers, crypto.PubkeyToAddress(*public))
	}
	for i, signer := range signers {
		isMember := slices.ContainsFunc(members, func(key *ecdsa.PrivateKey) bool {
			return memberAddress(key) == signer
		})
		if !isMember || i > 0 && signer.Cmp(signers[i-1]) <= 0 {
			return false
		}
	}
	return len(signers) >= threshold
}
