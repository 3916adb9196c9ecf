package quorum

import (
	"crypto/ecdsa"
	"testing"

	"github.com/ethereum/go-ethereum/crypto"

	"github.com/attestd/attestd/appliance"
)

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := crypto.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// Each answer is a valid signature of the digest and the signer that it names.
func TestOnlyAMembersSignatureOfTheDigestCounts(t *testing.T) {
	t.Parallel()
	members, others := newKey(t), newKey(t)
	digest, another := appliance.Digest{1}, appliance.Digest{2}
	m := &member{Member: Member{Signer: appliance.Address(crypto.PubkeyToAddress(members.PublicKey))}}
	for name, test := range map[string]struct {
		key    *ecdsa.PrivateKey
		digest appliance.Digest
		counts bool
	}{
		"its signature":  {members, digest, true},
		"another digest": {members, another, false},
		"another key":    {others, digest, false},
	} {
		rsv, err := crypto.Sign(test.digest[:], test.key)
		if err != nil {
			t.Fatal(err)
		}
		a := appliance.Attestation{
			Hash: test.digest, SignerAddress: appliance.Address(crypto.PubkeyToAddress(test.key.PublicKey)),
			Signature: appliance.Signature{R: [32]byte(rsv[:32]), S: [32]byte(rsv[32:64]), V: rsv[64] + 27},
		}
		if err := a.Verify(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := m.check(a, digest); (err == nil) != test.counts {
			t.Errorf("%s: %v", name, err)
		}
	}
}
