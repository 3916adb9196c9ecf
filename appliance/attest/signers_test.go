package attest_test

import (
	"context"
	"crypto/ecdsa"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/attest"
	"github.com/attestd/attestd/appliance/secp256k1"
)

// keySigner signs with a key in this process.
type keySigner struct {
	t       *testing.T
	key     *ecdsa.PrivateKey
	public  []byte
	address appliance.Address
}

func newKeySigner(t *testing.T) *keySigner {
	key, public, address := newTestKey(t)
	return &keySigner{t, key, public, address}
}

func (s *keySigner) Sign(_ context.Context, d appliance.Digest) (appliance.Signature, error) {
	return secp256k1.NewSignature(d, signRaw(s.t, s.key, d, false), s.public)
}
func (s *keySigner) PublicKey() []byte           { return s.public }
func (s *keySigner) Address() appliance.Address  { return s.address }
func (s *keySigner) Ready(context.Context) error { return nil }

// named returns an attestor key that signs in this process.
func named(t *testing.T, name string, state attest.AttestorKeyState) attest.AttestorKey {
	return attest.AttestorKey{Name: name, State: state, Signer: newKeySigner(t), Concurrency: func() int {
		return 4
	}}
}

func newRotating(t *testing.T) *attest.Attestor {
	t.Helper()
	store := openStore(t)
	return &attest.Attestor{Keys: store.Keys(), Journal: store.Journal(),
		Scheme: scheme(t, appliance.SchemeKeccak256BN254, nil), Now: time.Now}
}

// While attestor keys change, each call is signed by the attestor key of its API key only. Unbound API keys use the
// default.
func TestAnAPIKeyIsSignedForByTheKeyItIsBoundTo(t *testing.T) {
	t.Parallel()
	a := newRotating(t)
	old, next := named(t, "2026", attest.AttestorKeyActive), named(t, "2027", attest.AttestorKeyActive)
	retiring := old
	retiring.State = attest.AttestorKeyRetiring
	unbound, _ := newKey(t, a.Keys, appliance.KeyRequest{})
	toOld, _ := newKey(t, a.Keys, appliance.KeyRequest{Attestor: "2026"})
	toNext, _ := newKey(t, a.Keys, appliance.KeyRequest{Attestor: "2027"})
	none := attest.Signer(nil)
	for _, step := range []struct {
		name                   string
		keys                   []attest.AttestorKey
		unbound, toOld, toNext attest.Signer // the expected signer; none means that the call is refused
	}{
		{"one key with a name", []attest.AttestorKey{old}, old.Signer, old.Signer, none},
		{"a second that is active", []attest.AttestorKey{old, next}, old.Signer, old.Signer, next.Signer},
		{"the second is the first now", []attest.AttestorKey{next, old}, next.Signer, old.Signer, next.Signer},
		{"one that is retiring is no default, wherever it stands", []attest.AttestorKey{retiring, next}, next.Signer,
			old.Signer, next.Signer},
		{"the old one is gone", []attest.AttestorKey{next}, next.Signer, none, next.Signer},
	} {
		a.SetAttestorKeys(step.keys)
		for _, call := range []struct {
			key  appliance.APIKey
			want attest.Signer
		}{{unbound, step.unbound}, {toOld, step.toOld}, {toNext, step.toNext}} {
			e, _, err := a.Attest(t.Context(), appliance.Call{Key: call.key, Request: request})
			switch {
			case call.want == none && appliance.CodeOf(err) != appliance.CodeAttestorKeyUnavailable:
				t.Errorf("%s: an API key bound to %q got %+v, %v", step.name, call.key.Attestor, e, err)
			case call.want != none &&
				(err != nil || e.Record.Verify() != nil || e.Record.SignerAddress != call.want.Address()):
				t.Errorf("%s: for an API key bound to %q %s signed, %v, want %s", step.name, call.key.Attestor,
					e.Record.SignerAddress, err, call.want.Address())
			}
		}
	}
}

func TestABindingHoldsFromTheNextCallOn(t *testing.T) {
	t.Parallel()
	a := newRotating(t)
	old, next := named(t, "2026", attest.AttestorKeyRetiring), named(t, "2027", attest.AttestorKeyActive)
	a.SetAttestorKeys([]attest.AttestorKey{old, next})
	key, _ := newKey(t, a.Keys, appliance.KeyRequest{Attestor: "2026"})
	// authenticated before the key was bound to another
	call := appliance.Call{Key: key, Request: request, IdempotencyKey: "before"}
	before, _, err := a.Attest(t.Context(), call)
	if err != nil || before.Record.SignerAddress != old.Signer.Address() {
		t.Fatalf("signed by %s, %v", before.Record.SignerAddress, err)
	}
	if _, err := a.Keys.Bind(t.Context(), key.ID, "2027"); err != nil {
		t.Fatal(err)
	}
	again, replayed, err := a.Attest(t.Context(), call)
	if err != nil || !replayed || again.Record.Signature != before.Record.Signature {
		t.Errorf("repeated under its Idempotency-Key: %+v, replayed %v, %v", again.Record, replayed, err)
	}
	call.IdempotencyKey = ""
	after, _, err := a.Attest(t.Context(), call)
	if err != nil || after.Record.SignerAddress != next.Signer.Address() {
		t.Errorf("signed by %s, %v, want %s", after.Record.SignerAddress, err, next.Signer.Address())
	}
}

// hanging is a signer that returns only when its ctx ends.
type hanging struct{ *keySigner }

func (hanging) Sign(ctx context.Context, _ appliance.Digest) (appliance.Signature, error) {
	<-ctx.Done()
	return appliance.Signature{}, appliance.Errorf(appliance.CodeTimeout, "the HSM hangs")
}

func TestAKeyThatHangsHoldsNobodyUpWhoIsNotBoundToIt(t *testing.T) {
	t.Parallel()
	a := newRotating(t)
	old := attest.AttestorKey{Name: "2026", State: attest.AttestorKeyRetiring, Signer: hanging{newKeySigner(t)},
		Concurrency: func() int {
			return 1
		}}
	next := named(t, "2027", attest.AttestorKeyActive)
	a.SetAttestorKeys([]attest.AttestorKey{old, next})
	bound, _ := newKey(t, a.Keys, appliance.KeyRequest{Attestor: "2026"})
	unbound, _ := newKey(t, a.Keys, appliance.KeyRequest{})
	hung, leave := context.WithCancel(t.Context())
	ended := make(chan error)
	for range 3 {
		go func() {
			_, _, err := a.Attest(hung, appliance.Call{Key: bound, Request: request})
			ended <- err
		}()
	}
	for a.Signing() < 3 {
		time.Sleep(time.Millisecond) // polling interval
	}
	if _, _, err := a.Attest(t.Context(), appliance.Call{Key: unbound, Request: request}); err != nil {
		t.Error(err)
	}
	if a.Saturated() {
		t.Error("the default key counts as saturated")
	}
	leave()
	for range 3 {
		if err := <-ended; err == nil {
			t.Error("a key that hangs signed")
		}
	}
}

func TestWhatAnAPIKeyMayBeBoundTo(t *testing.T) {
	t.Parallel()
	two := []attest.AttestorKey{{Name: "2026", State: attest.AttestorKeyRetiring},
		{Name: "2027", State: attest.AttestorKeyActive}}
	one := []attest.AttestorKey{{State: attest.AttestorKeyActive}}
	for _, test := range []struct {
		keys []attest.AttestorKey
		name string
		says string // expected error; empty if the binding is allowed
	}{
		{one, "", ""},
		{one, "2027", "attestor keys have names only if hsm.keys is set"},
		{two, "", ""},
		{two, "2027", ""},
		{two, "2026", "2026 is retiring"},
		{two, "2028", `unknown attestor key "2028"; use one of 2026, 2027`},
	} {
		err := attest.CheckBinding(test.keys, test.name)
		if (err == nil) != (test.says == "") || err != nil &&
			(!strings.Contains(err.Error(), test.says) || appliance.CodeOf(err) != appliance.CodeInvalidField) {
			t.Errorf("%q of %d keys: %v, want %q", test.name, len(test.keys), err, test.says)
		}
	}
}
