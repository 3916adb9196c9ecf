package journal_test

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"testing"

	"github.com/attestd/attestd/appliance/journal"
)

// smallOrderKeys returns public keys for which signatures can be forged without a secret.
func smallOrderKeys(t *testing.T) (keys []ed25519.PublicKey) {
	t.Helper()
	for _, text := range []string{
		"0000000000000000000000000000000000000000000000000000000000000000",
		"0000000000000000000000000000000000000000000000000000000000000080",
		"0100000000000000000000000000000000000000000000000000000000000000",
		"26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
		"26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
		"c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
		"c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
		"ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
		"edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
		"edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
		"eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
	} {
		key, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, key)
	}
	return keys
}

// isForged forges a signature under a key of small order and reports whether it verifies. R is the neutral element and
// s is 0. Such a signature is valid for each text whose hash is a multiple of the key's order.
func isForged(key ed25519.PublicKey) bool {
	signature := make([]byte, ed25519.SignatureSize)
	signature[0] = 1
	for n := range 1000 {
		if ed25519.Verify(key, fmt.Append(nil, "forged ", n), signature) {
			return true
		}
	}
	return false
}

func TestKeysOfSmallOrderAreRefused(t *testing.T) {
	for _, key := range smallOrderKeys(t) {
		if !isForged(key) {
			t.Errorf("%x: no signature was forged: the test does not run the attack", key)
		}
		if !journal.HasSmallOrder(key) {
			t.Errorf("%x was taken", key)
		}
		typed := append([]byte{0x01}, key...)
		hash := sha256.Sum256(append([]byte("example.com/log\n"), typed...))
		vkey := fmt.Sprintf("example.com/log+%x+%s", hash[:4], base64.StdEncoding.EncodeToString(typed))
		if _, err := journal.ParseVerifier(vkey); !errors.Is(err, journal.ErrSmallOrder) {
			t.Errorf("%s: %v", vkey, err)
		}
	}
	own := testLogKey(t, "example.com/log")
	if v, err := journal.ParseVerifier(own.VerifierText); err != nil || v.KeyHash() != own.Verifier.KeyHash() {
		t.Errorf("a log's own key: %v", err)
	}
	for _, bad := range []string{"", "a", "a+b", "a+00000000+", own.VerifierText + "x"} {
		if _, err := journal.ParseVerifier(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}
