package attest_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"math/big"
	"path/filepath"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/bolt"
)

var request = appliance.Request{
	UnspendableAddress: appliance.Address(common.HexToAddress("0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed")),
	Beneficiary:        appliance.Address(common.HexToAddress("0xfB6916095ca1df60bB79Ce92cE3Ea74c37c5d359")),
}

func scheme(t testing.TB, name appliance.SchemeName, domain *appliance.EIP712Domain) appliance.Scheme {
	t.Helper()
	s, err := appliance.NewScheme(name, domain)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// openStore opens a real store in its own folder.
func openStore(t *testing.T) *bolt.Store {
	t.Helper()
	log, _, err := journal.NewLogKey("test.example/log")
	if err != nil {
		t.Fatal(err)
	}
	store, err := bolt.Open(filepath.Join(t.TempDir(), "attestd.db"),
		bolt.Options{Signer: log.Signer, Verifier: log.Verifier})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return store
}

func newKey(t *testing.T, keys appliance.Keys, req appliance.KeyRequest) (appliance.APIKey, string) {
	t.Helper()
	if req.Name == "" {
		req.Name = "test-" + rand.Text() // no two usable keys have one name
	}
	key, token, err := appliance.NewAPIKey(req, time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC))
	if err != nil {
		t.Fatal(err)
	}
	if err := keys.Create(context.Background(), key); err != nil {
		t.Fatal(err)
	}
	return key, token
}

// signRaw signs like an HSM: it returns r ‖ s. high selects the upper half for s.
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
