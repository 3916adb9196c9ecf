package hsm_test

import (
	"bytes"
	"testing"

	"github.com/ethereum/go-ethereum/crypto"
	"github.com/miekg/pkcs11"

	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/hsmtest"
)

func TestPublicKeyIsReadInEveryForm(t *testing.T) {
	t.Parallel()
	for name, form := range map[string]func(point []byte) []byte{
		"OCTET STRING": func(p []byte) []byte { return append([]byte{0x04, 65}, p...) },
		"bare":         func(p []byte) []byte { return p },
		"BIT STRING":   func(p []byte) []byte { return append([]byte{0x03, 66, 0}, p...) },
		"compressed":   compress,
		"compressed in an OCTET STRING": func(p []byte) []byte {
			return append([]byte{0x04, 33}, compress(p)...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			token := hsmtest.New(t)
			f := newFaulty(t)
			f.attribute = func(attribute uint, value []byte) ([]byte, error) {
				if attribute == pkcs11.CKA_EC_POINT && len(value) > 0 {
					return form(value[2:]), nil
				}
				return value, nil
			}
			s := open(t, f, hsm.Options{URI: token.URI})
			if s.Address() != token.Key.Address {
				t.Errorf("address %s, want %s", s.Address(), token.Key.Address)
			}
		})
	}
}

func compress(point []byte) []byte {
	key, err := crypto.UnmarshalPubkey(point)
	if err != nil {
		panic(err)
	}
	return crypto.CompressPubkey(key)
}

func TestPublicKeyIsRecoveredWhereThereIsNoObject(t *testing.T) {
	t.Parallel()
	token := hsmtest.New(t)
	f := newFaulty(t)
	f.hide = func(template []*pkcs11.Attribute) bool {
		return bytes.Equal(template[0].Value, pkcs11.NewAttribute(pkcs11.CKA_CLASS, pkcs11.CKO_PUBLIC_KEY).Value)
	}
	s := open(t, f, hsm.Options{URI: token.URI})
	if s.Address() != token.Key.Address {
		t.Errorf("address %s, want %s", s.Address(), token.Key.Address)
	}
	mustSign(t, s)
}
