package hsm_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math/big"
	"testing"

	"github.com/ethereum/go-ethereum/crypto"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/hsmtest"
)

func TestSignaturesRecoverToTheKey(t *testing.T) {
	t.Parallel()
	token := hsmtest.New(t)
	s := open(t, newFaulty(t), hsm.Options{URI: token.URI})
	if s.Address() != token.Key.Address {
		t.Errorf("address %s, want %s", s.Address(), token.Key.Address)
	}
	if got := "0x" + hex.EncodeToString(s.PublicKey()); got != token.Key.PublicKey {
		t.Errorf("public key %s, want %s", got, token.Key.PublicKey)
	}
	for range 50 { // the token returns about half of them with a high s
		mustSign(t, s)
	}
	if err := s.Ready(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestWrongSignatureNeverLeaves(t *testing.T) {
	t.Parallel()
	corrupt := func(signature []byte) []byte {
		signature[40] ^= 1
		return signature
	}
	for name, test := range map[string]struct {
		times   int
		change  func([]byte) []byte
		succeed bool
	}{
		"once":             {1, corrupt, true},
		"always":           {1 << 30, corrupt, false},
		"too short":        {1 << 30, func(b []byte) []byte { return b[:63] }, false},
		"zero":             {1 << 30, func([]byte) []byte { return make([]byte, 64) }, false},
		"r and s above n":  {1 << 30, func([]byte) []byte { return bytes.Repeat([]byte{0xff}, 64) }, false},
		"another's, valid": {1 << 30, anothersSignature, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFaulty(t)
			options := hsm.Options{URI: hsmtest.New(t).URI}
			s := open(t, f, options)
			left := test.times
			f.set(func() {
				f.signature = func(signature []byte) []byte {
					if left == 0 {
						return signature
					}
					left--
					return test.change(signature)
				}
			})
			d := randomDigest()
			signature, err := s.Sign(t.Context(), d)
			if test.succeed {
				if err != nil {
					t.Fatal(err)
				}
				checkSignature(t, s, d, signature)
			} else {
				wantCode(t, err, appliance.CodeHSMUnavailable)
				if !errors.Is(err, hsm.ErrWrongKey) || signature != (appliance.Signature{}) {
					t.Errorf("got %+v, %v, want nothing and ErrWrongKey", signature, err)
				}
			}
			if status, _ := s.Status(t.Context()); status.WrongSignatures == 0 {
				t.Error("the wrong signature was not counted")
			}
			f.set(func() { f.signature = nil })
			mustSignAfterRepair(t, f, s, options)
		})
	}
}

func anothersSignature([]byte) []byte {
	key, err := crypto.GenerateKey()
	if err != nil {
		panic(err)
	}
	signature, err := crypto.Sign(make([]byte, 32), key)
	if err != nil {
		panic(err)
	}
	return signature[:64]
}

func TestHighSIsMadeLow(t *testing.T) {
	t.Parallel()
	f := newFaulty(t)
	s := open(t, f, hsm.Options{URI: hsmtest.New(t).URI})
	n, half := crypto.S256().Params().N, new(big.Int).Rsh(crypto.S256().Params().N, 1)
	f.set(func() {
		f.signature = func(signature []byte) []byte {
			if v := new(big.Int).SetBytes(signature[32:]); v.Cmp(half) <= 0 {
				v.Sub(n, v).FillBytes(signature[32:])
			}
			return signature
		}
	})
	mustSign(t, s)
}
