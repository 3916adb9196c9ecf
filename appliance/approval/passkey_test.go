package approval_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"math/big"
	"testing"

	"github.com/attestd/attestd/appliance/approval"
)

func TestWeakAndUnknownPublicKeysAreNoPasskeys(t *testing.T) {
	t.Parallel()
	curve := func(c elliptic.Curve) crypto.PublicKey {
		key, err := ecdsa.GenerateKey(c, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return &key.PublicKey
	}
	ed, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	long, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	short := rsa.PublicKey{N: new(big.Int).Rsh(long.N, 1024), E: long.E}
	for name, c := range map[string]struct {
		key  crypto.PublicKey
		good bool
	}{
		"P-256": {curve(elliptic.P256()), true}, "P-384": {curve(elliptic.P384()), false},
		"Ed25519": {ed, true}, "RSA 2048": {&long.PublicKey, true}, "RSA 1024": {&short, false},
	} {
		der, err := x509.MarshalPKIXPublicKey(c.key)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := approval.ParsePasskey(der); (err == nil) != c.good {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := approval.ParsePasskey([]byte("key")); err == nil {
		t.Error("a text is a public key")
	}
}
