package appliance_test

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/crypto"

	"github.com/attestd/attestd/appliance"
)

// Each hashing step hashes the previous step's value, and the last value is the digest that is signed.
func TestADerivationLeadsToTheDigest(t *testing.T) {
	t.Parallel()
	domain := &appliance.EIP712Domain{Name: "ZAsset", Version: "1", ChainID: 1}
	for _, name := range appliance.SchemeNames {
		record := appliance.Record{Scheme: string(name)}
		record.UnspendableAddress, record.Beneficiary = appliance.Address{1, 2, 3}, appliance.Address{19: 9}
		if name == appliance.SchemeEIP712 {
			record.Domain = domain
		}
		scheme, err := appliance.NewScheme(name, record.Domain)
		if err != nil {
			t.Fatal(err)
		}
		steps, err := record.Derivation()
		if err != nil || len(steps) < 4 {
			t.Fatalf("%s: %v, %v", name, steps, err)
		}
		if got, want := steps[len(steps)-1].Value, scheme.Digest(record.Request).String(); got != want {
			t.Errorf("%s ends at %s, want %s", name, got, want)
		}
		hashed := 0
		for i, step := range steps {
			if !strings.HasPrefix(step.What, "Keccak256 of these") {
				continue
			}
			hashed++
			before, err := hex.DecodeString(steps[i-1].Value[2:])
			if want := "0x" + hex.EncodeToString(crypto.Keccak256(before)); err != nil || step.Value != want {
				t.Errorf("%s, %q is %s, want %s", name, step.What, step.Value, want)
			}
		}
		if hashed != 1 && name != appliance.SchemeMiMCBN254 {
			t.Errorf("%s hashes %d times, want once", name, hashed)
		}
	}
	if steps, err := (appliance.Record{Scheme: "rot13"}).Derivation(); err == nil {
		t.Errorf("of a scheme that is none: %v", steps)
	}
}
