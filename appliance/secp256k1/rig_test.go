package secp256k1_test

import (
	"crypto/ecdsa"
	"math/big"
	"testing"

	"github.com/attestd/attestd/appliance"
	"github.com/ethereum/go-ethereum/crypto"
)

func signRaw(t *testing.T, key *ecdsa.PrivateKey, d appliance.Digest, high bool) (rs [64]byte) {
	t.Helper()
	sig, err := crypto.Sign(d[:], key)
	if err != nil {
		t.Fatal(err)
	}
	copy(rs[:], sig[:64])
	if high {
		s := new(big.Int).SetBytes(rs[32:])
		new(big.Int).Sub(crypto.S256().Params().N, s).FillBytes(rs[32:])
	}
	return rs
}

func newTestKey(t *testing.T) (*ecdsa.PrivateKey, []byte, appliance.Address) {
	t.Helper()
	key, err := crypto.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	return key, crypto.FromECDSAPub(&key.PublicKey), appliance.Address(crypto.PubkeyToAddress(key.PublicKey))
}
