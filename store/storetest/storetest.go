// Package storetest is the conformance suite of stores. It tests each implementation of appliance.Keys,
// journal.Journal and index.Index through these interfaces alone.
package storetest

import (
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/secp256k1"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/google/uuid"
)

// Record returns a new, valid record of an API key, as attest.Attestor creates it. The signing key is the same in
// every test.
func Record(t testing.TB, keyID string) appliance.Record {
	t.Helper()
	id := uuid.Must(uuid.NewV7())
	return RecordOf(t, keyID, appliance.Request{
		UnspendableAddress: appliance.Address(crypto.Keccak256(id[:])[12:]),
		Beneficiary:        appliance.Address(crypto.Keccak256([]byte(keyID))[12:]),
	})
}

// RecordOf returns a record for a request; see Record.
func RecordOf(t testing.TB, keyID string, request appliance.Request) appliance.Record {
	t.Helper()
	key, err := crypto.ToECDSA(crypto.Keccak256([]byte("a key for tests")))
	if err != nil {
		t.Fatal(err)
	}
	scheme, err := appliance.NewScheme(appliance.SchemeKeccak256BN254, nil)
	if err != nil {
		t.Fatal(err)
	}
	id, err := uuid.NewV7()
	if err != nil {
		t.Fatal(err)
	}
	digest := scheme.Digest(request)
	rsv, err := crypto.Sign(digest[:], key)
	if err != nil {
		t.Fatal(err)
	}
	public := crypto.FromECDSAPub(&key.PublicKey)
	signature, err := secp256k1.NewSignature(digest, [64]byte(rsv), public)
	if err != nil {
		t.Fatal(err)
	}
	return appliance.Record{
		Attestation: appliance.Attestation{
			ID: id, Hash: digest, Signature: signature,
			SignerAddress: appliance.Address(crypto.PubkeyToAddress(key.PublicKey)),
		},
		Request: request,
		Scheme:  string(scheme.Name),
		KeyID:   keyID,
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantCode(t testing.TB, err error, code appliance.Code) {
	t.Helper()
	if got := appliance.CodeOf(err); got != code {
		t.Fatalf("error code is %q (%v), not %q", got, err, code)
	}
}

// epoch is the initial time of the tests' clocks.
func epoch() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 678_901_234, time.FixedZone("", 3600)) }
