package witness_test

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/witness"
)

// groupOrder is the order of Ed25519's group (RFC 8032, section 5.1).
var groupOrder, _ = new(big.Int).SetString(
	"7237005577332262213973186563042994240857116359379907606001950938285454250989", 10)

func TestChangedCosignaturesAreRefused(t *testing.T) {
	t.Parallel()
	text := textOf(checkpointOf(t, newLog(t, "example.com/log"), 5))
	w1 := newCosigner("w1.example")
	key, err := witness.ParseCosigner(w1.vkey())
	if err != nil {
		t.Fatal(err)
	}
	good, err := base64.StdEncoding.DecodeString(
		strings.TrimSpace(strings.TrimPrefix(w1.cosign(text, time.Now()), "— w1.example ")))
	if err != nil {
		t.Fatal(err)
	}
	good = good[4:] // after the key's hash: 8 bytes of time, R, s
	if !key.Verify([]byte(text), good) {
		t.Fatal("a good cosignature does not verify")
	}
	for name, change := range map[string]func(b []byte) []byte{
		"s has the order added":  func(b []byte) []byte { return withS(b, func(s *big.Int) { s.Add(s, groupOrder) }) },
		"s is negated":           func(b []byte) []byte { return withS(b, func(s *big.Int) { s.Sub(groupOrder, s) }) },
		"s is zero":              func(b []byte) []byte { return withS(b, func(s *big.Int) { s.SetInt64(0) }) },
		"s is the order":         func(b []byte) []byte { return withS(b, func(s *big.Int) { s.Set(groupOrder) }) },
		"R has another sign":     func(b []byte) []byte { b[8+31] ^= 0x80; return b },
		"R is the neutral point": func(b []byte) []byte { clear(b[8:40]); b[8] = 1; return b },
		"another time":           func(b []byte) []byte { b[7]++; return b },
		"a time before 1970":     func(b []byte) []byte { b[0] |= 0x80; return b },
		"a byte less":            func(b []byte) []byte { return b[:len(b)-1] },
		"a byte more":            func(b []byte) []byte { return append(b, 0) },
		"no time":                func(b []byte) []byte { return b[8:] },
		"nothing":                func([]byte) []byte { return nil },
	} {
		if key.Verify([]byte(text), change(slices.Clone(good))) {
			t.Errorf("%s: it was taken", name)
		}
	}
	if key.Verify([]byte(strings.Replace(text, "\n5\n", "\n6\n", 1)), good) {
		t.Error("another checkpoint's: it was taken")
	}
}

// withS changes s, the last 32 bytes in little-endian.
func withS(b []byte, change func(s *big.Int)) []byte {
	le := b[len(b)-32:]
	slices.Reverse(le)
	s := new(big.Int).SetBytes(le)
	change(s)
	s.FillBytes(le)
	slices.Reverse(le)
	return b
}

// Under the neutral point as a key, anybody can sign.
func TestAWitnessKeyOfSmallOrderIsRefused(t *testing.T) {
	t.Parallel()
	typed := append([]byte{0x04, 1}, make([]byte, ed25519.PublicKeySize-1)...)
	hash := sha256.Sum256(append([]byte("w1.example\n"), typed...))
	vkey := fmt.Sprintf("w1.example+%x+%s", hash[:4], base64.StdEncoding.EncodeToString(typed))
	if _, err := witness.ParseCosigner(vkey); !errors.Is(err, journal.ErrSmallOrder) {
		t.Errorf("%s: %v", vkey, err)
	}
}
