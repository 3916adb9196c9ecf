package hsm_test

import (
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"github.com/miekg/pkcs11"

	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/hsmtest"
)

func TestTokenAndKeyAreFoundByAllAttributes(t *testing.T) {
	t.Parallel()
	token := hsmtest.New(t)
	status, err := hsm.Inspect(t.Context(), hsm.Options{URI: token.URI})
	if err != nil {
		t.Fatal(err)
	}
	id, _ := hex.DecodeString(token.Key.ID)
	slot := status.Token.Slot
	for name, test := range map[string]struct {
		change func(*hsm.URI)
		want   error
	}{
		"all of them": {func(u *hsm.URI) {
			u.ID, u.SlotID, u.Serial, u.Model = id, &slot, status.Token.Serial, "SoftHSM v2"
		}, nil},
		"the id alone":        {func(u *hsm.URI) { u.Object, u.ID = "", id }, nil},
		"the only key":        {func(u *hsm.URI) { u.Object = "" }, nil},
		"another serial":      {func(u *hsm.URI) { u.Serial = "0" }, hsm.ErrNotFound},
		"another model":       {func(u *hsm.URI) { u.Model = "v3" }, hsm.ErrNotFound},
		"another maker":       {func(u *hsm.URI) { u.Manufacturer = "ACME" }, hsm.ErrNotFound},
		"another slot":        {func(u *hsm.URI) { other := slot + 1; u.SlotID = &other }, hsm.ErrNotFound},
		"another label":       {func(u *hsm.URI) { u.Object = "other" }, hsm.ErrNotFound},
		"another id":          {func(u *hsm.URI) { u.ID = []byte{1} }, hsm.ErrNotFound},
		"label of another id": {func(u *hsm.URI) { u.Object, u.ID = "other", id }, hsm.ErrNotFound},
	} {
		t.Run(name, func(t *testing.T) { // sequential, because they share the module
			u := token.URI
			test.change(&u)
			s, err := hsm.Open(t.Context(), hsm.Options{URI: u})
			if !errors.Is(err, test.want) {
				t.Fatalf("got %v, want %v", err, test.want)
			}
			if err != nil {
				return
			}
			mustSign(t, s)
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAmbiguousAndMissingAreListed(t *testing.T) {
	t.Parallel()
	one := hsmtest.New(t)
	makeToken(t, one, "other")
	second, err := hsm.Keygen(t.Context(), hsm.Options{URI: one.URI}, "second")
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		change func(*hsm.URI)
		is     error
		want   []string
	}{
		"two keys": {func(u *hsm.URI) {
			u.Object = ""
		}, hsm.ErrAmbiguous, []string{`"attestor"`, `"second"`, one.Key.ID, second.ID}},
		"two tokens": {func(u *hsm.URI) {
			u.Token = ""
		}, hsm.ErrAmbiguous, []string{`"attestd"`, `"other"`, "serial=", "slot-id="}},
		"no key": {func(u *hsm.URI) { u.Object = "third" }, hsm.ErrNotFound, []string{`"attestor"`, `"second"`}},
		"no token": {func(u *hsm.URI) {
			u.Token = "nowhere"
		}, hsm.ErrNotFound, []string{"token=nowhere", `"attestd"`, `"other"`}},
	} {
		t.Run(name, func(t *testing.T) {
			u := one.URI
			test.change(&u)
			_, err := hsm.Open(t.Context(), hsm.Options{URI: u})
			if !errors.Is(err, test.is) {
				t.Fatalf("got %v, want %v", err, test.is)
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v\ndoes not name %s", err, want)
				}
			}
		})
	}
}

func TestUnreadableSlot(t *testing.T) {
	t.Parallel()
	token := hsmtest.New(t)
	makeToken(t, token, "other")
	for name, test := range map[string]struct {
		unreadable string
		want       string
	}{
		"another token's does not matter": {"other", ""},
		"our own is named":                {"attestd", "CKR_DEVICE_ERROR"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFaulty(t)
			f.tokenInfo = func(info *pkcs11.TokenInfo) error {
				if info.Label == test.unreadable {
					return pkcs11.Error(pkcs11.CKR_DEVICE_ERROR)
				}
				return nil
			}
			s, err := hsm.Open(t.Context(), hsm.Options{URI: token.URI}.Through(f.wrap))
			if err == nil {
				defer func() { _ = s.Close() }()
			}
			if (test.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

// A module may show no tokens if its server or device is unreachable. Making a token is not the remedy then.
func TestAModuleWithoutAnyTokenIsToldApart(t *testing.T) {
	t.Parallel()
	token := hsmtest.New(t)
	f := newFaulty(t)
	f.noSlots = true
	_, err := tryOpen(t, f, hsm.Options{URI: token.URI})
	if !errors.Is(err, hsm.ErrNoToken) || !errors.Is(err, hsm.ErrNotFound) {
		t.Errorf("got %v, want ErrNoToken", err)
	}
	f.noSlots = false
	other := token.URI
	other.Token = "nowhere"
	if _, err := tryOpen(t, f, hsm.Options{URI: other}); errors.Is(err, hsm.ErrNoToken) ||
		!errors.Is(err, hsm.ErrNotFound) {
		t.Errorf("got %v, want ErrNotFound alone", err)
	}
}
