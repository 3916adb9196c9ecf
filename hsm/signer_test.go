package hsm_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/crypto"
	"github.com/miekg/pkcs11"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/hsmtest"
)

func randomDigest() (d appliance.Digest) {
	rand.Read(d[:])
	return d
}

// open returns a signer that is closed at the test's end, with the faults between it and the token.
func open(t testing.TB, f *faulty, options hsm.Options) *hsm.Signer {
	t.Helper()
	s, err := tryOpen(t, f, options)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func tryOpen(t testing.TB, f *faulty, options hsm.Options) (*hsm.Signer, error) {
	s, err := hsm.Open(t.Context(), options.Through(f.wrap).Within(20*time.Second, 2*time.Second, time.Millisecond))
	if err == nil {
		t.Cleanup(func() {
			if err := s.Close(); err != nil && !t.Failed() {
				t.Errorf("Close: %v", err)
			}
		})
	}
	return s, err
}

func mustSign(t testing.TB, s *hsm.Signer) {
	t.Helper()
	d := randomDigest()
	signature, err := s.Sign(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	checkSignature(t, s, d, signature)
}

// checkSignature asks go-ethereum, by the way a contract takes: ecrecover of the digest gives the address.
func checkSignature(t testing.TB, s *hsm.Signer, d appliance.Digest, signature appliance.Signature) {
	t.Helper()
	rsv := append(append(append([]byte(nil), signature.R[:]...), signature.S[:]...), signature.V-27)
	key, err := crypto.SigToPub(d[:], rsv)
	if err != nil {
		t.Fatalf("recover: %v", err)
	}
	if got := appliance.Address(crypto.PubkeyToAddress(*key)); got != s.Address() {
		t.Fatalf("the signature is by %s, not %s", got, s.Address())
	}
	half := new(big.Int).Rsh(crypto.S256().Params().N, 1)
	if new(big.Int).SetBytes(signature.S[:]).Cmp(half) > 0 {
		t.Fatalf("s is in the upper half")
	}
}

func wantCode(t testing.TB, err error, code appliance.Code) {
	t.Helper()
	if appliance.CodeOf(err) != code {
		t.Fatalf("code %q of %v, want %q", appliance.CodeOf(err), err, code)
	}
}

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
	for range 50 { // about half have a high s as the token makes them
		mustSign(t, s)
	}
	if err := s.Ready(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestOneLoginForAllSessions(t *testing.T) {
	t.Parallel()
	f := newFaulty(t)
	s := open(t, f, hsm.Options{URI: hsmtest.New(t).URI, Sessions: 8})
	for range 32 {
		mustSign(t, s)
	}
	if f.count("C_Login") != 1 || f.count("C_OpenSession") != 8 {
		t.Errorf("%d logins and %d sessions, want 1 and 8", f.count("C_Login"), f.count("C_OpenSession"))
	}
}

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
		"all of them":         {func(u *hsm.URI) { u.ID, u.SlotID, u.Serial, u.Model = id, &slot, status.Token.Serial, "SoftHSM v2" }, nil},
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
		t.Run(name, func(t *testing.T) { // one after the other: they share the module
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
		"two keys":   {func(u *hsm.URI) { u.Object = "" }, hsm.ErrAmbiguous, []string{`"attestor"`, `"second"`, one.Key.ID, second.ID}},
		"two tokens": {func(u *hsm.URI) { u.Token = "" }, hsm.ErrAmbiguous, []string{`"attestd"`, `"other"`, "serial=", "slot-id="}},
		"no key":     {func(u *hsm.URI) { u.Object = "third" }, hsm.ErrNotFound, []string{`"attestor"`, `"second"`}},
		"no token":   {func(u *hsm.URI) { u.Token = "nowhere" }, hsm.ErrNotFound, []string{"token=nowhere", `"attestd"`, `"other"`}},
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

// makeToken makes another token beside the test's own.
func makeToken(t testing.TB, beside *hsmtest.Token, label string) {
	t.Helper()
	u := beside.URI
	u.Token = label
	made, err := hsm.Init(t.Context(), hsm.InitOptions{URI: u, SOPIN: beside.SOPIN})
	if err != nil || !made.TokenCreated || !made.Created {
		t.Fatalf("make token %s: %+v, %v", label, made, err)
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

func TestInitGoesOnWhereItWasInterrupted(t *testing.T) {
	t.Parallel()
	token := hsmtest.New(t)
	u := token.URI
	u.Token = "other"
	for _, function := range []string{"C_InitPIN", "C_GenerateKeyPair"} {
		f := newFaulty(t)
		f.before = times(1, function, pkcs11.CKR_DEVICE_ERROR)
		if _, err := hsm.Init(t.Context(), hsm.InitOptions{URI: u, SOPIN: token.SOPIN}.Through(f.wrap)); err == nil || !strings.Contains(err.Error(), function) {
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

func TestWrongPINIsTriedOnce(t *testing.T) {
	t.Parallel()
	token := hsmtest.New(t)
	u := token.URI
	u.PINSource = secretFile(t, "31415926", 0o600)
	f := newFaulty(t)
	_, err := tryOpen(t, f, hsm.Options{URI: u})
	if !errors.Is(err, hsm.ErrPIN) || !strings.Contains(err.Error(), "CKR_PIN_INCORRECT") || !strings.Contains(err.Error(), "pin-source") {
		t.Errorf("got %v, want ErrPIN with the cause and the remedy", err)
	}
	if strings.Contains(err.Error(), "31415926") {
		t.Errorf("the error shows the PIN: %v", err)
	}
	if f.count("C_Login") != 1 {
		t.Errorf("%d logins, want 1", f.count("C_Login"))
	}
}

func TestPINThatBecameWrongIsTriedOnce(t *testing.T) {
	t.Parallel()
	token := hsmtest.New(t)
	pin, err := os.ReadFile(token.PINFile)
	if err != nil {
		t.Fatal(err)
	}
	u := token.URI
	u.PINSource = secretFile(t, string(pin), 0o400)
	var logged bytes.Buffer
	f := newFaulty(t)
	s := open(t, f, hsm.Options{URI: u, Logger: slog.New(slog.NewTextHandler(&logged, nil))})
	mustSign(t, s)
	_ = os.Chmod(u.PINSource, 0o600)
	if err := os.WriteFile(u.PINSource, []byte("31415926"), 0o600); err != nil {
		t.Fatal(err)
	}
	f.staleSessions()
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			for range 4 {
				_, err := s.Sign(t.Context(), randomDigest())
				if !errors.Is(err, hsm.ErrPIN) || appliance.CodeOf(err) != appliance.CodeHSMUnavailable {
					t.Errorf("got %v, want ErrPIN", err)
				}
			}
		})
	}
	all.Wait()
	if f.count("C_Login") != 2 {
		t.Errorf("%d logins, want the first and one with the wrong PIN", f.count("C_Login"))
	}
	if err := s.Ready(t.Context()); !errors.Is(err, hsm.ErrPIN) {
		t.Errorf("Ready says %v, want ErrPIN", err)
	}
	if status, _ := s.Status(t.Context()); status.Ready || !strings.Contains(status.LastError, "CKR_PIN_INCORRECT") {
		t.Errorf("status %+v", status)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if log := logged.String(); strings.Contains(log, "31415926") || strings.Contains(log, strings.TrimSpace(string(pin))) {
		t.Errorf("the log shows a PIN:\n%s", log)
	}
}

func TestPINIsNotTriedWhereItCouldLockTheToken(t *testing.T) {
	t.Parallel()
	token := hsmtest.New(t)
	for name, flag := range map[string]uint{
		"CKF_USER_PIN_FINAL_TRY": pkcs11.CKF_USER_PIN_FINAL_TRY,
		"CKF_USER_PIN_LOCKED":    pkcs11.CKF_USER_PIN_LOCKED,
	} {
		t.Run(name, func(t *testing.T) {
			f := newFaulty(t)
			f.tokenInfo = func(info *pkcs11.TokenInfo) error { info.Flags |= flag; return nil }
			_, err := tryOpen(t, f, hsm.Options{URI: token.URI})
			if !errors.Is(err, hsm.ErrPIN) || !strings.Contains(err.Error(), name) {
				t.Errorf("got %v, want ErrPIN that names %s", err, name)
			}
			if f.count("C_Login") != 0 {
				t.Errorf("%d logins, want none", f.count("C_Login"))
			}
		})
	}
}

func TestPINFileMustBePrivate(t *testing.T) {
	t.Parallel()
	token := hsmtest.New(t)
	pin, err := os.ReadFile(token.PINFile)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		source, want string
	}{
		"0600 and a newline": {secretFile(t, string(pin), 0o600), ""},
		"0440, as systemd":   {secretFile(t, strings.TrimSpace(string(pin)), 0o440), ""},
		"a file URI":         {"file:" + secretFile(t, string(pin), 0o600), ""},
		"0644":               {secretFile(t, string(pin), 0o644), "chmod 0600"},
		"missing":            {filepath.Join(t.TempDir(), "none"), "no such file"},
		"empty":              {secretFile(t, "\n", 0o600), "is empty"},
		"not given":          {"", "add pin-source"},
	} {
		t.Run(name, func(t *testing.T) {
			u := token.URI
			u.PINSource = test.source
			f := newFaulty(t)
			s, err := hsm.Open(t.Context(), hsm.Options{URI: u}.Through(f.wrap))
			if err == nil {
				defer func() { _ = s.Close() }()
			}
			if (test.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Fatalf("got %v, want %q", err, test.want)
			}
			if err != nil && f.count("C_Login") != 0 {
				t.Error("a login was tried")
			}
		})
	}
}

func secretFile(t testing.TB, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestKeyIsCheckedAtStart(t *testing.T) {
	t.Parallel()
	yes, no := []byte{1}, []byte{0}
	for name, test := range map[string]struct {
		attribute uint
		value     []byte
		allow     bool
		want      string
	}{
		"extractable":              {pkcs11.CKA_EXTRACTABLE, yes, false, "CKA_EXTRACTABLE"},
		"extractable, allowed":     {pkcs11.CKA_EXTRACTABLE, yes, true, ""},
		"not sensitive":            {pkcs11.CKA_SENSITIVE, no, false, "CKA_SENSITIVE"},
		"not sensitive, allowed":   {pkcs11.CKA_SENSITIVE, no, true, ""},
		"may not sign":             {pkcs11.CKA_SIGN, no, true, "CKA_SIGN"},
		"P-256":                    {pkcs11.CKA_EC_PARAMS, []byte{0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07}, true, "not secp256k1"},
		"curve by its name":        {pkcs11.CKA_EC_PARAMS, append([]byte{0x13, 9}, "secp256k1"...), false, ""},
		"point of another curve":   {pkcs11.CKA_EC_POINT, append([]byte{0x04, 0x41, 0x04}, make([]byte, 64)...), false, "CKA_EC_POINT"},
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

func TestTrialDigestIsNoAttestation(t *testing.T) {
	t.Parallel()
	order, _ := new(big.Int).SetString("30644e72e131a029b85045b68181585d2833e84879b9709143e1f593f0000001", 16)
	seen := make(map[appliance.Digest]bool)
	for range 100 {
		d := hsm.TrialDigest()
		if new(big.Int).SetBytes(d[:]).Cmp(order) < 0 || seen[d] {
			t.Fatalf("trial digest %s is below the order of BN254, or came twice", d)
		}
		seen[d] = true
	}
}

func TestSessionsAreBounded(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		asked   int
		maximum uint
		refused bool // C_OpenSession gives CKR_SESSION_COUNT after three
		want    int
	}{
		"by configuration":        {3, 0, false, 3},
		"by the token's maximum":  {8, 2, false, 2},
		"by what the token gives": {8, 0, true, 3},
		"to one":                  {1, 0, false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFaulty(t)
			f.tokenInfo = func(info *pkcs11.TokenInfo) error { info.MaxSessionCount = test.maximum; return nil }
			var opened atomic.Int32
			f.before = func(function string) error {
				if function == "C_OpenSession" && opened.Add(1) > 3 && test.refused {
					return pkcs11.Error(pkcs11.CKR_SESSION_COUNT)
				}
				return nil
			}
			s := open(t, f, hsm.Options{URI: hsmtest.New(t).URI, Sessions: test.asked})
			var all sync.WaitGroup
			for range 16 {
				all.Go(func() {
					for range 10 {
						mustSign(t, s)
					}
				})
			}
			all.Wait()
			status, err := s.Status(t.Context())
			if err != nil || status.Session.Open != test.want || f.most > test.want {
				t.Errorf("%d sessions, %d at once, want %d; %v", status.Session.Open, f.most, test.want, err)
			}
			if status.Session.InUse != 0 || status.Signatures != 160 || status.Session.Max != test.maximum {
				t.Errorf("status %+v", status)
			}
		})
	}
}

// hang makes C_Sign wait until the test lets it go.
func hang(t testing.TB, f *faulty) (entered chan struct{}, let func()) {
	entered, gate := make(chan struct{}, 100), make(chan struct{})
	let = sync.OnceFunc(func() { close(gate) })
	t.Cleanup(let)
	f.set(func() {
		f.before = func(function string) error {
			if function == "C_Sign" {
				entered <- struct{}{}
				<-gate
			}
			return nil
		}
	})
	return entered, let
}

func TestWaitEndsWithTheContext(t *testing.T) {
	t.Parallel()
	f := newFaulty(t)
	s := open(t, f, hsm.Options{URI: hsmtest.New(t).URI, Sessions: 1})
	entered, let := hang(t, f)

	inside, cancelInside := context.WithCancel(t.Context())
	hung := make(chan error, 1)
	go func() { _, err := s.Sign(inside, randomDigest()); hung <- err }()
	<-entered

	// One waits for the session, which the hanging call keeps.
	waiting, cancelWaiting := context.WithCancel(t.Context())
	waited := make(chan error, 1)
	go func() { _, err := s.Sign(waiting, randomDigest()); waited <- err }()
	cancelWaiting()
	wantCode(t, <-waited, appliance.CodeTimeout)

	// The other is inside the module, which does not know of contexts.
	cancelInside()
	wantCode(t, <-hung, appliance.CodeTimeout)
	if status, _ := s.Status(waiting); status.Session.InUse != 1 {
		t.Errorf("%d sessions in use, want the one of the call that hangs", status.Session.InUse)
	}
	if err := s.Ready(waiting); appliance.CodeOf(err) != appliance.CodeTimeout {
		t.Errorf("Ready says %v, want a timeout", err)
	}
	let()
	mustSign(t, s)
}

func TestContextWithoutDeadlineIsBounded(t *testing.T) {
	t.Parallel()
	f := newFaulty(t)
	options := hsm.Options{URI: hsmtest.New(t).URI, Sessions: 1}.Through(f.wrap).Within(10*time.Millisecond, time.Second, time.Millisecond)
	s, err := hsm.Open(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	_, let := hang(t, f)
	_, err = s.Sign(context.Background(), randomDigest())
	wantCode(t, err, appliance.CodeTimeout)
	let()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestCloseNamesACallThatHangs(t *testing.T) {
	t.Parallel()
	f := newFaulty(t)
	options := hsm.Options{URI: hsmtest.New(t).URI, Sessions: 2}.Through(f.wrap).Within(time.Second, 10*time.Millisecond, time.Millisecond)
	s, err := hsm.Open(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	entered, let := hang(t, f)
	done := make(chan error, 1)
	go func() { _, err := s.Sign(t.Context(), randomDigest()); done <- err }()
	<-entered
	if err := s.Close(); err == nil || !strings.Contains(err.Error(), "1 of 2 sessions") {
		t.Errorf("Close says %v", err)
	}
	if f.count("C_Finalize") != 0 {
		t.Error("C_Finalize was called under a call")
	}
	let()
	<-done
}

func TestCloseLetsSignaturesFinish(t *testing.T) {
	t.Parallel()
	f := newFaulty(t)
	s := open(t, f, hsm.Options{URI: hsmtest.New(t).URI, Sessions: 3})
	var signed atomic.Int32
	var all sync.WaitGroup
	started := make(chan struct{}, 1)
	for range 16 {
		all.Go(func() {
			for {
				d := randomDigest()
				signature, err := s.Sign(t.Context(), d)
				if err != nil {
					if !errors.Is(err, hsm.ErrClosed) {
						t.Errorf("got %v, want ErrClosed", err)
					}
					return
				}
				checkSignature(t, s, d, signature)
				if signed.Add(1) == 20 {
					started <- struct{}{}
				}
			}
		})
	}
	<-started
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	all.Wait()
	if err := s.Close(); err != nil {
		t.Errorf("a second Close: %v", err)
	}
	if err := s.Ready(t.Context()); !errors.Is(err, hsm.ErrClosed) {
		t.Errorf("Ready says %v, want ErrClosed", err)
	}
}

func TestFaultsAreMendedByTheStepTheyNeed(t *testing.T) {
	t.Parallel()
	type steps struct{ sessions, logins, reset int }
	once := func(function string, rv uint) func(*faulty) {
		return func(f *faulty) { f.set(func() { f.before = times(1, function, rv) }) }
	}
	for name, test := range map[string]struct {
		damage func(*faulty)
		want   steps // beyond those of the start
	}{
		"CKR_SESSION_HANDLE_INVALID":       {once("C_SignInit", pkcs11.CKR_SESSION_HANDLE_INVALID), steps{1, 0, 0}},
		"CKR_SESSION_CLOSED":               {once("C_Sign", pkcs11.CKR_SESSION_CLOSED), steps{1, 0, 0}},
		"CKR_OPERATION_ACTIVE":             {once("C_SignInit", pkcs11.CKR_OPERATION_ACTIVE), steps{1, 0, 0}},
		"CKR_GENERAL_ERROR":                {once("C_Sign", pkcs11.CKR_GENERAL_ERROR), steps{1, 0, 0}},
		"CKR_FUNCTION_FAILED":              {once("C_Sign", pkcs11.CKR_FUNCTION_FAILED), steps{1, 0, 0}},
		"CKR_HOST_MEMORY":                  {once("C_Sign", pkcs11.CKR_HOST_MEMORY), steps{1, 0, 0}},
		"a vendor's own":                   {once("C_Sign", pkcs11.CKR_VENDOR_DEFINED+7), steps{1, 0, 0}},
		"CKR_KEY_HANDLE_INVALID":           {once("C_SignInit", pkcs11.CKR_KEY_HANDLE_INVALID), steps{0, 0, 0}},
		"CKR_OBJECT_HANDLE_INVALID":        {once("C_SignInit", pkcs11.CKR_OBJECT_HANDLE_INVALID), steps{0, 0, 0}},
		"CKR_USER_NOT_LOGGED_IN":           {once("C_SignInit", pkcs11.CKR_USER_NOT_LOGGED_IN), steps{0, 1, 0}},
		"CKR_DEVICE_REMOVED":               {once("C_Sign", pkcs11.CKR_DEVICE_REMOVED), steps{1, 0, 0}},
		"CKR_TOKEN_NOT_PRESENT":            {once("C_SignInit", pkcs11.CKR_TOKEN_NOT_PRESENT), steps{1, 0, 0}},
		"CKR_DEVICE_ERROR":                 {once("C_Sign", pkcs11.CKR_DEVICE_ERROR), steps{1, 0, 0}},
		"CKR_CRYPTOKI_NOT_INITIALIZED":     {once("C_SignInit", pkcs11.CKR_CRYPTOKI_NOT_INITIALIZED), steps{2, 1, 1}},
		"stale key handle":                 {(*faulty).staleObjects, steps{0, 0, 0}},
		"all sessions gone, so logged out": {(*faulty).staleSessions, steps{2, 1, 0}},
		"a device in error until C_Initialize": {func(f *faulty) {
			var back bool
			f.set(func() {
				f.before = func(function string) error {
					back = back || function == "C_Initialize"
					if !back && function != "C_Finalize" {
						return pkcs11.Error(pkcs11.CKR_DEVICE_ERROR)
					}
					return nil
				}
			})
		}, steps{2, 1, 1}},
		"C_Finalize fails too": {func(f *faulty) {
			ending := times(1, "C_Finalize", pkcs11.CKR_GENERAL_ERROR)
			signing := times(1, "C_SignInit", pkcs11.CKR_CRYPTOKI_NOT_INITIALIZED)
			f.set(func() {
				f.before = func(function string) error {
					if err := ending(function); err != nil {
						return err
					}
					return signing(function)
				}
			})
		}, steps{2, 0, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFaulty(t)
			s := open(t, f, hsm.Options{URI: hsmtest.New(t).URI, Sessions: 2})
			now := func() steps { return steps{f.count("C_OpenSession"), f.count("C_Login"), f.count("C_Initialize")} }
			before := now()
			test.damage(f)
			for range 4 { // the sessions take turns, and each is opened again when its turn comes
				mustSign(t, s)
			}
			after := now()
			got := steps{after.sessions - before.sessions, after.logins - before.logins, after.reset - before.reset}
			if got != test.want {
				t.Errorf("took %+v, want %+v", got, test.want)
			}
			status, err := s.Status(t.Context())
			if err != nil || !status.Ready || status.Repairs == 0 || status.LastError == "" {
				t.Errorf("status %+v, %v", status, err)
			}
		})
	}
}

func TestFaultThatNothingMendsIsReturnedAtOnce(t *testing.T) {
	t.Parallel()
	f := newFaulty(t)
	s := open(t, f, hsm.Options{URI: hsmtest.New(t).URI})
	f.set(func() { f.before = times(1, "C_SignInit", pkcs11.CKR_MECHANISM_INVALID) })
	_, err := s.Sign(t.Context(), randomDigest())
	wantCode(t, err, appliance.CodeHSMUnavailable)
	if !strings.Contains(err.Error(), "C_SignInit: CKR_MECHANISM_INVALID") {
		t.Errorf("the operator sees %v", err)
	}
	if e, ok := errors.AsType[*appliance.Error](err); !ok || strings.Contains(e.Detail, "CKR") || e.RetryAfter == 0 {
		t.Errorf("the client sees %+v", e)
	}
	mustSign(t, s)
}

func TestDeadTokenFailsWithTheDeadlineAndIsReadyWhenBack(t *testing.T) {
	t.Parallel()
	f := newFaulty(t)
	s := open(t, f, hsm.Options{URI: hsmtest.New(t).URI})
	reset := make(chan struct{}, 1000)
	f.set(func() {
		f.before = func(function string) error {
			if function == "C_Initialize" {
				reset <- struct{}{}
			}
			return pkcs11.Error(pkcs11.CKR_DEVICE_ERROR)
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() { _, err := s.Sign(ctx, randomDigest()); failed <- err }()
	for range 3 { // it goes on trying
		<-reset
	}
	wantCode(t, s.Ready(t.Context()), appliance.CodeHSMUnavailable)
	cancel()
	err := <-failed
	wantCode(t, err, appliance.CodeTimeout)
	if !strings.Contains(err.Error(), "CKR_DEVICE_ERROR") {
		t.Errorf("the operator sees %v", err)
	}
	f.set(func() { f.before = nil })
	mustSign(t, s) // waits for the repair, which goes on without a request too
	if err := s.Ready(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestReadyFindsADeadSessionAndMendsIt(t *testing.T) {
	t.Parallel()
	f := newFaulty(t)
	s := open(t, f, hsm.Options{URI: hsmtest.New(t).URI, Sessions: 2})
	f.staleSessions()
	if err := s.Ready(t.Context()); err != nil {
		t.Error(err)
	}
	if f.count("C_Login") != 2 {
		t.Errorf("%d logins, want 2", f.count("C_Login"))
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
			s := open(t, f, hsm.Options{URI: hsmtest.New(t).URI})
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
			mustSign(t, s)
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

func TestAnotherKeyAfterARepairIsRefused(t *testing.T) {
	t.Parallel()
	otherSigner := open(t, newFaulty(t), hsm.Options{URI: hsmtest.New(t).URI}) // first, so that it is closed last
	f := newFaulty(t)
	s := open(t, f, hsm.Options{URI: hsmtest.New(t).URI})
	// From now on the token holds another key under the same name: its signatures are another token's.
	f.set(func() {
		f.signature = func([]byte) []byte {
			raw, err := otherSigner.Sign(context.Background(), randomDigest())
			if err != nil {
				t.Error(err)
			}
			return append(raw.R[:], raw.S[:]...)
		}
	})
	f.staleObjects()
	_, err := s.Sign(t.Context(), randomDigest())
	wantCode(t, err, appliance.CodeHSMUnavailable)
	if !errors.Is(err, hsm.ErrWrongKey) {
		t.Errorf("got %v, want ErrWrongKey", err)
	}
	if err := s.Ready(t.Context()); err == nil {
		t.Error("it is ready")
	}
}

func TestHangingCallDoesNotStopTheRepairOfOtherSessions(t *testing.T) {
	t.Parallel()
	f := newFaulty(t)
	options := hsm.Options{URI: hsmtest.New(t).URI, Sessions: 2}.Through(f.wrap).Within(10*time.Second, 20*time.Millisecond, time.Millisecond)
	s, err := hsm.Open(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	entered, let := hang(t, f)
	done := make(chan error, 1)
	go func() { _, err := s.Sign(t.Context(), randomDigest()); done <- err }()
	<-entered
	f.set(func() { f.before = times(1, "C_SignInit", pkcs11.CKR_CRYPTOKI_NOT_INITIALIZED) })
	mustSign(t, s)
	if n := f.count("C_Initialize"); n != 1 {
		t.Errorf("C_Initialize was called %d times under a call", n)
	}
	let()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// Every call of the module fails now and then, handles go stale, and the module must be initialised again and
// again; still every signature comes and is right.
func TestEverySignatureIsRightUnderContinuousFaults(t *testing.T) {
	t.Parallel()
	f := newFaulty(t)
	s := open(t, f, hsm.Options{URI: hsmtest.New(t).URI, Sessions: 4})
	faults := []uint{
		pkcs11.CKR_SESSION_HANDLE_INVALID, pkcs11.CKR_SESSION_CLOSED, pkcs11.CKR_USER_NOT_LOGGED_IN, pkcs11.CKR_KEY_HANDLE_INVALID,
		pkcs11.CKR_DEVICE_REMOVED, pkcs11.CKR_TOKEN_NOT_PRESENT, pkcs11.CKR_DEVICE_ERROR, pkcs11.CKR_GENERAL_ERROR, pkcs11.CKR_CRYPTOKI_NOT_INITIALIZED,
	}
	var injected atomic.Int32
	f.set(func() {
		f.before = func(function string) error {
			if mathrand.N(100) < 2 && function != "C_Finalize" {
				injected.Add(1)
				return pkcs11.Error(faults[mathrand.N(len(faults))])
			}
			return nil
		}
		f.signature = func(signature []byte) []byte {
			if mathrand.N(200) == 0 {
				injected.Add(1)
				signature[mathrand.N(64)] ^= 0x10
			}
			return signature
		}
	})
	const goroutines, each = 64, 15
	var all sync.WaitGroup
	var wrongTwice atomic.Int32
	for i := range goroutines {
		all.Go(func() {
			for j := range each {
				switch {
				case i == 0 && j%5 == 2:
					f.staleObjects()
				case i == 1 && j%5 == 2:
					f.staleSessions()
				}
				d := randomDigest()
				signature, err := s.Sign(t.Context(), d)
				if errors.Is(err, hsm.ErrWrongKey) {
					wrongTwice.Add(1) // refused, as it must be when the token is wrong twice in a row
					continue
				}
				if err != nil {
					t.Errorf("signature %d of %d: %v", j, i, err)
					return
				}
				checkSignature(t, s, d, signature)
			}
		})
	}
	all.Wait()
	f.set(func() { f.before, f.signature = nil, nil })
	mustSign(t, s)
	status, err := s.Status(t.Context())
	if err != nil || status.Signatures+uint64(wrongTwice.Load()) != goroutines*each+1 || injected.Load() == 0 {
		t.Errorf("%d faults; status %+v, %v", injected.Load(), status, err)
	}
	t.Logf("%d faults, %d repairs, %d times C_Initialize, %d logins, %d wrong signatures withheld, %d requests refused for them",
		injected.Load(), status.Repairs, f.count("C_Initialize"), f.count("C_Login"), status.WrongSignatures, wrongTwice.Load())
}

func TestModuleIsOpenedOncePerProcess(t *testing.T) {
	t.Parallel()
	token := hsmtest.New(t)
	s := open(t, newFaulty(t), hsm.Options{URI: token.URI})
	if _, err := hsm.Open(t.Context(), hsm.Options{URI: token.URI}); err == nil || !strings.Contains(err.Error(), "this process uses the module already") {
		t.Errorf("got %v", err)
	}
	mustSign(t, s) // the second Open must not have finalised it
}

func TestMissingModuleNamesTheRemedy(t *testing.T) {
	t.Parallel()
	notAModule := secretFile(t, "not a library", 0o600)
	for name, test := range map[string]struct {
		uri  hsm.URI
		want string
	}{
		"no such file":    {hsm.URI{ModulePath: "/nowhere/lib.so"}, "no such file"},
		"not a library":   {hsm.URI{ModulePath: notAModule}, "ldd"},
		"unknown name":    {hsm.URI{ModuleName: "nowhere"}, "use module-path"},
		"a path for name": {hsm.URI{ModuleName: "../lib"}, "use module-path"},
		"none named":      {hsm.URI{Token: "t"}, "module-path="},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := hsm.Open(t.Context(), hsm.Options{URI: test.uri})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func TestModuleIsFoundByName(t *testing.T) {
	t.Parallel()
	token := hsmtest.New(t)
	folder := filepath.Dir(token.URI.ModulePath)
	for _, name := range []string{"softhsm2", "libsofthsm2", "libsofthsm2.so"} {
		got, err := hsm.FindModuleIn(name, []string{"/nowhere", folder})
		if err != nil || got != token.URI.ModulePath {
			t.Errorf("%s: got %s, %v", name, got, err)
		}
	}
	u := token.URI
	u.ModulePath, u.ModuleName = folder, "softhsm2"
	open(t, newFaulty(t), hsm.Options{URI: u})
}

func TestStatusShowsAllAndNoPIN(t *testing.T) {
	t.Parallel()
	token := hsmtest.New(t)
	inspected, err := hsm.Inspect(t.Context(), hsm.Options{URI: token.URI})
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, newFaulty(t), hsm.Options{URI: token.URI})
	mustSign(t, s)
	running, err := s.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, status := range map[string]hsm.Status{"inspected": inspected, "running": running} {
		if !status.Ready || status.Module.Path != token.URI.ModulePath || status.Module.Manufacturer != "SoftHSM" || status.Token.Label != token.URI.Token ||
			status.Token.Serial == "" || len(status.Token.Mechanisms) != 2 || status.Key.Label != "attestor" || status.Key.ID != token.Key.ID ||
			status.Key.Curve != "secp256k1" || !status.Key.Sensitive || status.Key.Extractable || !status.Key.Sign || *status.Key.Address != token.Key.Address {
			t.Errorf("%s: %+v", name, status)
		}
		pin, _ := os.ReadFile(token.PINFile)
		if text, err := json.Marshal(status); err != nil || strings.Contains(string(text), strings.TrimSpace(string(pin))) {
			t.Errorf("%s: %s, %v", name, text, err)
		}
	}
}

func TestInspectTellsHowFarItCame(t *testing.T) {
	t.Parallel()
	token := hsmtest.New(t)
	f := newFaulty(t)
	f.attribute = func(attribute uint, value []byte) ([]byte, error) {
		if attribute == pkcs11.CKA_EXTRACTABLE {
			return []byte{1}, nil
		}
		return value, nil
	}
	status, err := hsm.Inspect(t.Context(), hsm.Options{URI: token.URI}.Through(f.wrap))
	if err == nil || status.Ready || !status.Key.Extractable || status.Token.Label != token.URI.Token || status.LastError != err.Error() {
		t.Errorf("%+v, %v", status, err)
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

func TestBenchMeasuresTheToken(t *testing.T) {
	t.Parallel()
	results, err := hsm.Bench(t.Context(), hsm.Options{URI: hsmtest.New(t).URI}, []int{1, 3}, 20*time.Millisecond)
	if err != nil || len(results) != 2 {
		t.Fatalf("%+v, %v", results, err)
	}
	for i, sessions := range []int{1, 3} {
		if r := results[i]; r.Sessions != sessions || r.Signatures == 0 || r.PerSecond <= 0 || r.CPUMicros <= 0 || r.P50 <= 0 || r.P99 < r.P50 {
			t.Errorf("%+v", r)
		}
	}
}

// BenchmarkRawSign is C_SignInit and C_Sign alone. CPU time is what compares: the clock depends on the neighbours.
func BenchmarkRawSign(b *testing.B) {
	s := benchSigner(b)
	b.RunParallel(func(pb *testing.PB) {
		raw, err := s.RawSession(context.Background())
		if err != nil {
			b.Error(err)
			return
		}
		defer raw.Release()
		for pb.Next() {
			if err := raw.Sign(); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// BenchmarkSign is what a request pays: the wait for a session, the signature, and its check.
func BenchmarkSign(b *testing.B) {
	s := benchSigner(b)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := s.Sign(context.Background(), randomDigest()); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// BenchmarkCheck is the part of BenchmarkSign that recovers the key.
func BenchmarkCheck(b *testing.B) {
	s := benchSigner(b)
	d := randomDigest()
	signature, err := s.Sign(context.Background(), d)
	if err != nil {
		b.Fatal(err)
	}
	rs := [64]byte(append(signature.R[:], signature.S[:]...))
	for b.Loop() {
		if _, err := appliance.NewSignature(d, rs, s.PublicKey()); err != nil {
			b.Fatal(err)
		}
	}
}

// benchSigner opens a signer and has the benchmark report CPU microseconds per operation.
func benchSigner(b *testing.B) *hsm.Signer {
	s, err := hsm.Open(context.Background(), hsm.Options{URI: hsmtest.New(b).URI})
	if err != nil {
		b.Fatal(err)
	}
	began := hsm.CPUTime()
	b.Cleanup(func() {
		b.ReportMetric(float64((hsm.CPUTime()-began).Nanoseconds())/1000/float64(b.N), "cpu-µs/op")
		_ = s.Close()
	})
	b.ResetTimer()
	return s
}

func ExampleParseURI() {
	u, err := hsm.ParseURI("pkcs11:token=attestd;object=attestor?module-name=softhsm2&pin-source=file:/etc/attestd/pin")
	fmt.Println(u.Token, u.Object, u.ModuleName, err)
	// Output: attestd attestor softhsm2 <nil>
}
