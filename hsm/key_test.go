package hsm_test

import (
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/crypto"
	"github.com/miekg/pkcs11"

	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/hsmtest"
)

func TestKeyIsCheckedAtStart(t *testing.T) {
	t.Parallel()
	yes, no := []byte{1}, []byte{0}
	for name, test := range map[string]struct {
		attribute uint
		value     []byte
		allow     bool
		want      string
	}{
		"extractable":            {pkcs11.CKA_EXTRACTABLE, yes, false, "CKA_EXTRACTABLE"},
		"extractable, allowed":   {pkcs11.CKA_EXTRACTABLE, yes, true, ""},
		"not sensitive":          {pkcs11.CKA_SENSITIVE, no, false, "CKA_SENSITIVE"},
		"not sensitive, allowed": {pkcs11.CKA_SENSITIVE, no, true, ""},
		"may not sign":           {pkcs11.CKA_SIGN, no, true, "CKA_SIGN"},
		"P-256": {pkcs11.CKA_EC_PARAMS,
			[]byte{0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07}, true, "not secp256k1"},
		"curve by its name": {pkcs11.CKA_EC_PARAMS, append([]byte{0x13, 9}, "secp256k1"...), false, ""},
		"point of another curve": {pkcs11.CKA_EC_POINT, append([]byte{0x04, 0x41, 0x04}, make([]byte, 64)...), false,
			"CKA_EC_POINT"},
		"public object of another": {pkcs11.CKA_EC_POINT, otherPoint(t), false, hsm.ErrWrongKey.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFaulty(t)
			f.attribute = func(attribute uint, value []byte) ([]byte, error) {
				if attribute == test.attribute {
					return test.value, nil
				}
				return value, nil
			}
			s, err := tryOpen(t, f, hsm.Options{URI: hsmtest.New(t).URI, AllowExtractable: test.allow})
			if (test.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Fatalf("got %v, want %q", err, test.want)
			}
			if err == nil {
				mustSign(t, s)
			}
		})
	}
}

func otherPoint(t testing.TB) []byte {
	key, err := crypto.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	return crypto.FromECDSAPub(&key.PublicKey)
}
