package attest_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/attest"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/hsmtest"
)

// newAttestor makes an attestor on a real token and a real store.
func newAttestor(t *testing.T) *attest.Attestor {
	t.Helper()
	store := openStore(t)
	return &attest.Attestor{
		Keys: store.Keys(), Journal: store.Journal(), Signer: openSigner(t),
		Scheme: scheme(t, appliance.SchemeKeccak256BN254, nil), Now: time.Now,
	}
}

func openSigner(t *testing.T) *hsm.Signer {
	t.Helper()
	signer, err := hsm.Open(t.Context(), hsm.Options{URI: hsmtest.New(t).URI})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := signer.Close(); err != nil {
			t.Error(err)
		}
	})
	return signer
}

func TestAnAttestorIsActiveForTenSecondsAfterAnAttestation(t *testing.T) {
	t.Parallel()
	a := newAttestor(t)
	var after time.Duration
	a.Now = func() time.Time { return time.Now().Add(after) }
	if a.Active() {
		t.Error("active before the first attestation")
	}
	key, _ := newKey(t, a.Keys, appliance.KeyRequest{})
	if _, _, err := a.Attest(t.Context(), appliance.Call{Key: key, Request: request}); err != nil {
		t.Fatal(err)
	}
	if after = -time.Hour; !a.Active() {
		t.Error("not active after an attestation")
	}
	if after = 10 * time.Second; a.Active() {
		t.Error("active ten seconds after an attestation")
	}
}

func TestAnAttestationIsSignedByTheTokenRecordedAndAcceptedOnChain(t *testing.T) {
	t.Parallel()
	a := newAttestor(t)
	key, _ := newKey(t, a.Keys, appliance.KeyRequest{})
	e, replayed, err := a.Attest(t.Context(), appliance.Call{Key: key, Request: request})
	if err != nil || replayed {
		t.Fatal(err, replayed)
	}
	if !wouldAccept(t, e.Record.Attestation, a.Signer.Address()) {
		t.Error("the contract refuses it")
	}
	if err := e.Record.Verify(); err != nil {
		t.Error(err)
	}
	if e.Record.ID.Version() != 7 {
		t.Errorf("the id is a UUIDv%d", e.Record.ID.Version())
	}
	stored, err := a.Journal.ByID(t.Context(), e.Record.ID)
	if err != nil || stored.Record != e.Record {
		t.Errorf("the journal has %+v, %v, want %+v", stored.Record, err, e.Record)
	}
	if e.Record.KeyID != key.ID || e.Record.Request != request {
		t.Errorf("recorded for another: %+v", e.Record)
	}
}

func TestTheSameIdempotencyKeyAndRequestGiveTheSameAttestationEvenAtOnce(t *testing.T) {
	t.Parallel()
	a := newAttestor(t)
	key, _ := newKey(t, a.Keys, appliance.KeyRequest{})
	const callers = 32
	ids := make([]uuid.UUID, callers)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			e, _, err := a.Attest(t.Context(), appliance.Call{Key: key, Request: request, IdempotencyKey: "once"})
			if err != nil {
				t.Error(err)
			}
			ids[i] = e.Record.ID
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id != ids[0] {
			t.Fatalf("two attestations under one idempotency key: %s and %s", ids[0], id)
		}
	}
	if n := records(t, a); n != 1 {
		t.Errorf("%d records, want 1", n)
	}
}

func TestAnIdempotencyKeyBelongsToItsAPIKeyAndItsRequest(t *testing.T) {
	t.Parallel()
	a := newAttestor(t)
	mine, _ := newKey(t, a.Keys, appliance.KeyRequest{})
	theirs, _ := newKey(t, a.Keys, appliance.KeyRequest{})
	call := appliance.Call{Key: mine, Request: request, IdempotencyKey: "k"}
	if _, _, err := a.Attest(t.Context(), call); err != nil {
		t.Fatal(err)
	}
	other := call
	other.Request.Beneficiary[0]++
	if _, _, err := a.Attest(t.Context(), other); appliance.CodeOf(err) != appliance.CodeIdempotencyMismatch {
		t.Errorf("another request under the same key: %v", err)
	}
	other.Key = theirs
	if _, replayed, err := a.Attest(t.Context(), other); err != nil || replayed {
		t.Errorf("another API key's idempotency key: replayed %v, %v", replayed, err)
	}
	if n := records(t, a); n != 2 {
		t.Errorf("%d records, want 2", n)
	}
}

func TestAnAPIKeyReadsOnlyWhatItWasIssued(t *testing.T) {
	t.Parallel()
	a := newAttestor(t)
	mine, _ := newKey(t, a.Keys, appliance.KeyRequest{})
	theirs, _ := newKey(t, a.Keys, appliance.KeyRequest{})
	e, _, err := a.Attest(t.Context(), appliance.Call{Key: mine, Request: request})
	if err != nil {
		t.Fatal(err)
	}
	got, _, err := a.ReadBack(t.Context(), mine, e.Record.ID)
	if err != nil || got.Record != e.Record {
		t.Errorf("%+v, %v", got, err)
	}
	_, _, errTheirs := a.ReadBack(t.Context(), theirs, e.Record.ID)
	_, _, errNone := a.ReadBack(t.Context(), theirs, uuid.Must(uuid.NewV7()))
	if appliance.CodeOf(errTheirs) != appliance.CodeNotFound || appliance.CodeOf(errNone) != appliance.CodeNotFound {
		t.Errorf("another's: %v; nobody's: %v", errTheirs, errNone)
	}
}

func TestAClosedTokenFailsTheCallAndRecordsNothing(t *testing.T) {
	t.Parallel()
	a := newAttestor(t)
	key, _ := newKey(t, a.Keys, appliance.KeyRequest{})
	signer, err := hsm.Open(t.Context(), hsm.Options{URI: hsmtest.New(t).URI})
	if err != nil {
		t.Fatal(err)
	}
	if err := signer.Close(); err != nil {
		t.Fatal(err)
	}
	a.Signer = signer
	if _, _, err := a.Attest(t.Context(),
		appliance.Call{Key: key, Request: request}); appliance.CodeOf(err) != appliance.CodeHSMUnavailable {
		t.Errorf("%v, want %s", err, appliance.CodeHSMUnavailable)
	}
	if err := a.Ready(t.Context()); err == nil {
		t.Error("ready without a token")
	}
	if n := records(t, a); n != 0 {
		t.Errorf("%d records, want none", n)
	}
}

func TestIdempotencyKeysThatAreNotPlainTextAreRefused(t *testing.T) {
	t.Parallel()
	long := string(make([]byte, appliance.MaxIdempotencyKey+1))
	for _, key := range []string{" ", "a b", "a\n", "ä", "\x00", long} {
		if err := appliance.ValidateIdempotencyKey(key); appliance.CodeOf(err) != appliance.CodeInvalidIdempotencyKey {
			t.Errorf("%q: %v", key, err)
		}
	}
}

func records(t *testing.T, a *attest.Attestor) (n int) {
	t.Helper()
	if err := a.Journal.Entries(context.Background(), 0, func(journal.Entry) error { n++; return nil }); err != nil {
		t.Fatal(err)
	}
	return n
}
