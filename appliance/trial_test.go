package appliance_test

import (
	"math/big"
	"testing"

	"github.com/attestd/attestd/appliance"
)

func TestTrialDigestIsNoAttestation(t *testing.T) {
	t.Parallel()
	seen := make(map[appliance.Digest]bool)
	for range 100 {
		d := appliance.TrialDigest()
		if new(big.Int).SetBytes(d[:]).Cmp(appliance.BN254R()) < 0 || seen[d] {
			t.Fatalf("trial digest %s is below the order of BN254, or came twice", d)
		}
		seen[d] = true
	}
}
