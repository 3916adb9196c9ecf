package hsm_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/miekg/pkcs11"

	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/hsmtest"
)

func TestInitGoesOnWhereItWasInterrupted(t *testing.T) {
	t.Parallel()
	token := hsmtest.New(t)
	u := token.URI
	u.Token = "other"
	for _, function := range []string{"C_InitPIN", "C_GenerateKeyPair"} {
		f := newFaulty(t)
		f.before = times(1, function, pkcs11.CKR_DEVICE_ERROR)
		if _, err := hsm.Init(t.Context(), hsm.InitOptions{URI: u, SOPIN: token.SOPIN}.Through(f.wrap)); err == nil ||
			!strings.Contains(err.Error(), function) {
			t.Fatalf("got %v, want the failure of %s", err, function)
		}
	}
	made, err := hsm.Init(t.Context(), hsm.InitOptions{URI: u})
	if err != nil || made.TokenCreated || !made.Created {
		t.Errorf("%+v, %v", made, err)
	}
	mustSign(t, open(t, newFaulty(t), hsm.Options{URI: u}))
}

func TestWrongSOPINIsTriedOnce(t *testing.T) {
	t.Parallel()
	token := hsmtest.New(t)
	u := token.URI
	u.Token = "other"
	f := newFaulty(t)
	f.before = times(1, "C_InitPIN", pkcs11.CKR_DEVICE_ERROR)
	if _, err := hsm.Init(t.Context(), hsm.InitOptions{URI: u, SOPIN: token.SOPIN}.Through(f.wrap)); err == nil {
		t.Fatal("C_InitPIN did not fail")
	}
	f = newFaulty(t)
	_, err := hsm.Init(t.Context(), hsm.InitOptions{URI: u, SOPIN: []byte("31415926")}.Through(f.wrap))
	if !errors.Is(err, hsm.ErrPIN) || strings.Contains(err.Error(), "31415926") || f.count("C_Login") != 1 {
		t.Errorf("%d logins, %v", f.count("C_Login"), err)
	}
}

func TestInitAndKeygenChangeNothingThatExists(t *testing.T) {
	t.Parallel()
	token := hsmtest.New(t)
	again, err := hsm.Init(t.Context(), hsm.InitOptions{URI: token.URI})
	if err != nil || again.Created || again.TokenCreated || again.Key != token.Key {
		t.Errorf("a second Init: %+v, %v", again, err)
	}
	if _, err := hsm.Keygen(t.Context(), hsm.Options{URI: token.URI}, "attestor"); !errors.Is(err, hsm.ErrExists) {
		t.Errorf("Keygen of an existing label: %v", err)
	}
	made, err := hsm.Keygen(t.Context(), hsm.Options{URI: token.URI}, "next")
	if err != nil || made.Label != "next" || made.Address == token.Key.Address {
		t.Errorf("Keygen: %+v, %v", made, err)
	}
	u := token.URI
	u.Object = "next"
	s := open(t, newFaulty(t), hsm.Options{URI: u})
	if s.Address() != made.Address {
		t.Errorf("address %s, want %s", s.Address(), made.Address)
	}
	mustSign(t, s)
}

func TestInitRefuses(t *testing.T) {
	t.Parallel()
	token := hsmtest.New(t)
	for name, test := range map[string]struct {
		change func(*hsm.URI)
		before func(string) error
		want   string
	}{
		"no label":         {func(u *hsm.URI) { u.Token = "" }, nil, "must have token"},
		"a label too long": {func(u *hsm.URI) { u.Token = strings.Repeat("x", 33) }, nil, "1 to 32 bytes"},
		"no PIN":           {func(u *hsm.URI) { u.PINSource = "" }, nil, "pin-source"},
		"no SO PIN":        {func(u *hsm.URI) { u.Token = "new" }, nil, "security officer"},
		"a token out of sight": {func(*hsm.URI) {}, func(function string) error {
			if function == "C_GetTokenInfo" {
				return pkcs11.Error(pkcs11.CKR_DEVICE_ERROR)
			}
			return nil
		}, "CKR_DEVICE_ERROR"},
	} {
		t.Run(name, func(t *testing.T) {
			u := token.URI
			test.change(&u)
			f := newFaulty(t)
			f.before = test.before
			_, err := hsm.Init(t.Context(), hsm.InitOptions{URI: u}.Through(f.wrap))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
			if f.count("C_InitToken") != 0 {
				t.Error("a token was initialised")
			}
		})
	}
}

// Some HSMs generate secp256k1 keys and then refuse to sign with them, or sign wrongly. Such a key must not become an
// attestor key.
func TestAKeyThatCannotSignIsRefusedWhenItIsMade(t *testing.T) {
	t.Parallel()
	token := hsmtest.New(t)
	u := token.URI
	u.Object = "next"
	for name, fault := range map[string]func(*faulty){
		"C_SignInit": func(f *faulty) { f.before = always("C_SignInit", pkcs11.CKR_MECHANISM_INVALID) },
		"C_Sign":     func(f *faulty) { f.before = always("C_Sign", pkcs11.CKR_CURVE_NOT_SUPPORTED) },
		"trial signature": func(f *faulty) {
			f.signature = func(s []byte) []byte { s[0] ^= 1; return s }
		},
	} {
		f := newFaulty(t)
		fault(f)
		if made, err := hsm.Init(t.Context(), hsm.InitOptions{URI: u}.Through(f.wrap)); err == nil ||
			!strings.Contains(err.Error(), name) {
			t.Errorf("%s: Init: %+v, %v", name, made, err)
		}
		f = newFaulty(t)
		fault(f)
		made, err := hsm.Keygen(t.Context(), hsm.Options{URI: u}.Through(f.wrap), "label of "+name)
		if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "cannot sign with it") {
			t.Errorf("%s: Keygen: %+v, %v", name, made, err)
		}
	}
}

func always(function string, rv uint) func(string) error {
	return func(called string) error {
		if called == function {
			return pkcs11.Error(rv)
		}
		return nil
	}
}
