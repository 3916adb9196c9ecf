package attest_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/approval"
	"github.com/attestd/attestd/appliance/attest"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/passkeytest"
	"github.com/attestd/attestd/appliance/policy"
	"github.com/attestd/attestd/store/bolt"
)

const console = "console.example"

// office is an appliance whose policy demands approvals. Its clock is set by the test.
type office struct {
	*attest.Attestor
	t     *testing.T
	now   *time.Time
	key   appliance.APIKey
	alice *passkeytest.Passkey
	bob   *passkeytest.Passkey
	log   journal.LogKey
}

func ruleOf(when policy.ApprovalWhen) policy.ApprovalRule {
	return policy.ApprovalRule{When: when, Approvers: []string{"alice", "bob", "carol"}, Required: 2,
		WithinSeconds: 24 * 3600}
}

// newOffice has alice and bob enrolled.
func newOffice(t *testing.T, rules ...policy.ApprovalRule) *office {
	t.Helper()
	now := tuesday
	log, _, err := journal.NewLogKey("test.example/log")
	if err != nil {
		t.Fatal(err)
	}
	o := &office{t: t, now: &now, log: log, alice: passkeytest.New("alice", console),
		bob: passkeytest.New("bob", console)}
	o.open(newKeySigner(t))
	o.key, _ = newKey(t, o.Keys, appliance.KeyRequest{Name: "payments"})
	o.event(journal.EventKeyCreated, o.key.Details())
	o.rules(rules...)
	o.enrol(o.alice)
	o.approve(o.enrol(o.bob), o.alice)
	return o
}

// open opens an empty store.
func (o *office) open(signer attest.Signer) *bolt.Store {
	o.t.Helper()
	clock := func() time.Time { return *o.now }
	store, err := bolt.Open(filepath.Join(o.t.TempDir(), "attestd.db"),
		bolt.Options{Signer: o.log.Signer, Verifier: o.log.Verifier, Now: clock})
	if err != nil {
		o.t.Fatal(err)
	}
	o.t.Cleanup(func() { _ = store.Close() })
	o.Attestor = &attest.Attestor{Keys: store.Keys(), Journal: store.Journal(), Signer: signer,
		Scheme: scheme(o.t, appliance.SchemeKeccak256BN254, nil), Now: clock}
	o.restart()
	return store
}

// restart forgets all that is not in the journal.
func (o *office) restart() {
	o.Approvals = approval.New(
		approval.Options{Journal: o.Journal, Origin: "test.example/log", Now: o.Now})
}

// event appends an event to the journal. An attacker needs the log's key for it.
func (o *office) event(kind journal.EventKind, details map[string]string) journal.Event {
	o.t.Helper()
	e, err := o.Journal.AppendEvent(o.t.Context(), journal.Event{Kind: kind, Details: details})
	if err != nil {
		o.t.Fatal(err)
	}
	return *e.Event
}

func (o *office) rules(rules ...policy.ApprovalRule) {
	p := &policy.Policy{Approvals: rules}
	name, value := p.ApprovalsDetail()
	o.event(journal.EventPolicy, map[string]string{name: value})
	o.Govern(p)
}

func (o *office) enrol(p *passkeytest.Passkey) uuid.UUID {
	o.t.Helper()
	asked, err := o.Approvals.Enrol(o.t.Context(), p.Approver, "operator")
	if err != nil {
		o.t.Fatal(err)
	}
	return asked.ID
}

func (o *office) show(id uuid.UUID) approval.Listed {
	o.t.Helper()
	shown, err := o.Approvals.Show(o.t.Context(), id)
	if err != nil {
		o.t.Fatal(err)
	}
	return shown
}

func (o *office) approve(id uuid.UUID, people ...*passkeytest.Passkey) {
	o.t.Helper()
	for _, p := range people {
		if _, err := o.Approvals.Approve(o.t.Context(), id, p.Sign(o.show(id).Challenge), p.Name); err != nil {
			o.t.Fatalf("%s: %s", p.Name, err)
		}
	}
}

// ask requests an attestation, and returns the id of the approval that it needs.
func (o *office) ask(idempotencyKey string) (appliance.Code, uuid.UUID) {
	o.t.Helper()
	_, _, err := o.Attest(o.t.Context(), appliance.Call{Key: o.key, Request: request, IdempotencyKey: idempotencyKey})
	if err == nil {
		return "", uuid.Nil
	}
	e, ok := errors.AsType[*appliance.Error](err)
	if !ok {
		o.t.Fatal(err)
	}
	id, _ := uuid.Parse(e.Approval)
	return e.Code, id
}

// want fails the test unless the request gets this code.
func (o *office) want(code appliance.Code, idempotencyKey string) uuid.UUID {
	o.t.Helper()
	got, id := o.ask(idempotencyKey)
	if got != code {
		o.t.Fatalf("got %q, want %q", got, code)
	}
	return id
}

// audit returns the damages that an audit of the journal finds.
func (o *office) audit() (all []string) {
	o.t.Helper()
	report, err := o.Journal.Verify(o.t.Context(), audit.Options{AnySigner: true})
	if err != nil {
		o.t.Fatal(err)
	}
	for _, d := range report.Damages {
		all = append(all, d.Part+": "+d.Detail)
	}
	return all
}

func (o *office) sound() {
	o.t.Helper()
	if found := o.audit(); len(found) > 0 {
		o.t.Errorf("the audit finds %q", found)
	}
}

func TestARequestIsAttestedOnceEnoughPeopleHaveApproved(t *testing.T) {
	t.Parallel()
	o := newOffice(t, ruleOf(policy.ApproveAlways))
	id := o.want(appliance.CodeApprovalRequired, "one")
	o.approve(id, o.alice)
	o.restart()
	if again := o.want(appliance.CodeApprovalRequired, "one"); again != id {
		t.Errorf("the repeat waits for %s, not for %s", again, id)
	}
	if _, err := o.Approvals.Approve(t.Context(), id, o.alice.Sign(o.show(id).Challenge), ""); err == nil {
		t.Error("alice approved twice")
	}
	o.approve(id, o.bob)
	o.restart()
	o.want("", "one")
	o.want("", "one")
	e, err := o.Journal.ByIdempotencyKey(t.Context(), o.key.ID, "one")
	if err != nil || e.Record.Approval == nil || *e.Record.Approval != id {
		t.Errorf("the record names %v, %v, not %s", e.Record.Approval, err, id)
	}
	if other := o.want(appliance.CodeApprovalRequired, "two"); other == id {
		t.Error("one approval for two requests")
	}
	if o.want(appliance.CodeInvalidIdempotencyKey, ""); o.show(id).State != approval.Approved {
		t.Errorf("the approval is %s", o.show(id).State)
	}
	o.sound()
}

func TestAnApprovalIsDeniedOrExpires(t *testing.T) {
	t.Parallel()
	o := newOffice(t, ruleOf(policy.ApproveAlways))
	denied, late, unused := o.want(appliance.CodeApprovalRequired, "denied"),
		o.want(appliance.CodeApprovalRequired, "late"), o.want(appliance.CodeApprovalRequired, "unused")
	o.approve(denied, o.alice)
	if _, err := o.Approvals.Deny(t.Context(), denied, "operator"); err != nil {
		t.Fatal(err)
	}
	o.approve(unused, o.alice, o.bob)
	if _, err := o.Approvals.Deny(t.Context(), unused, "operator"); err == nil {
		t.Error("an approval was denied after people gave it")
	}
	if _, err := o.Approvals.Approve(t.Context(), denied, o.bob.Sign(o.show(denied).Challenge), ""); err == nil {
		t.Error("a denied request was approved")
	}
	*o.now = o.now.Add(24*time.Hour - time.Millisecond)
	o.want(appliance.CodeApprovalRequired, "late")
	o.restart()
	*o.now = o.now.Add(time.Millisecond)
	for name, code := range map[string]appliance.Code{"denied": appliance.CodeApprovalDenied,
		"late": appliance.CodeApprovalExpired, "unused": appliance.CodeApprovalExpired} {
		o.want(code, name)
	}
	if _, err := o.Approvals.Approve(t.Context(), late, o.bob.Sign(o.show(late).Challenge), ""); err == nil {
		t.Error("an expired request was approved")
	}
	o.sound()
}

// What waits, and what people have approved and the client has not used, expires. What was used or denied does not.
func TestAnApprovalThatExpiresIsRecordedOnce(t *testing.T) {
	t.Parallel()
	o := newOffice(t, ruleOf(policy.ApproveAlways))
	ids := make(map[string]uuid.UUID)
	for _, name := range []string{"late", "unused", "used", "denied"} {
		ids[name] = o.want(appliance.CodeApprovalRequired, name)
	}
	o.approve(ids["unused"], o.alice, o.bob)
	o.approve(ids["used"], o.alice, o.bob)
	o.want("", "used")
	if _, err := o.Approvals.Deny(t.Context(), ids["denied"], "operator"); err != nil {
		t.Fatal(err)
	}
	recorded := func() (all []string) {
		t.Helper()
		if err := o.Approvals.Expire(t.Context()); err != nil {
			t.Fatal(err)
		}
		err := o.Journal.Entries(t.Context(), 0, func(e journal.Entry) error {
			if e.Event != nil && e.Event.Kind == journal.EventApprovalExpired {
				all = append(all, e.Event.Details[approval.DetailApproval])
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(all)
		return all
	}
	*o.now = o.now.Add(24*time.Hour - time.Millisecond)
	if got := recorded(); len(got) > 0 {
		t.Errorf("recorded too early: %v", got)
	}
	*o.now = o.now.Add(time.Millisecond)
	want := slices.Sorted(slices.Values([]string{ids["late"].String(), ids["unused"].String()}))
	for range 2 {
		if got := recorded(); !slices.Equal(got, want) {
			t.Errorf("recorded %v, want %v", got, want)
		}
		o.restart()
	}
	o.sound()
}

func TestEachRuleDemandsApprovalsWhenItSays(t *testing.T) {
	t.Parallel()
	const waits = appliance.CodeApprovalRequired
	byKey, byOther, hours := ruleOf(policy.ApproveAPIKey), ruleOf(policy.ApproveAPIKey),
		ruleOf(policy.ApproveOutsideHours)
	byKey.APIKeys, byOther.APIKeys = []string{"payments"}, []string{"refunds"}
	hours.Hours, hours.TimeZone = policy.Hours{{Days: weekdays, From: 8 * 60, To: 18 * 60}}, "Europe/Berlin"
	for name, c := range map[string]struct {
		rules []policy.ApprovalRule
		after time.Duration // of tuesday noon
		want  appliance.Code
	}{
		"none":             {nil, 0, ""},
		"always":           {[]policy.ApprovalRule{ruleOf(policy.ApproveAlways)}, 0, waits},
		"its API key":      {[]policy.ApprovalRule{byKey}, 0, waits},
		"another API key":  {[]policy.ApprovalRule{byOther}, 0, ""},
		"in the hours":     {[]policy.ApprovalRule{hours}, 0, ""},
		"after the hours":  {[]policy.ApprovalRule{hours}, 5*time.Hour + time.Minute, waits},
		"any of the rules": {[]policy.ApprovalRule{byOther, byKey}, 0, waits},
		"new beneficiary":  {[]policy.ApprovalRule{ruleOf(policy.ApproveNewBeneficiary)}, 0, waits},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOffice(t, c.rules...)
			*o.now = o.now.Add(c.after)
			o.want(c.want, "one")
			o.sound()
		})
	}
}

func TestABeneficiaryIsNewUntilItsFirstAttestation(t *testing.T) {
	t.Parallel()
	o := newOffice(t, ruleOf(policy.ApproveNewBeneficiary))
	first, second := o.want(appliance.CodeApprovalRequired, "first"), o.want(appliance.CodeApprovalRequired, "second")
	o.approve(first, o.alice, o.bob)
	o.want("", "first")
	o.restart()
	o.want(appliance.CodeApprovalRequired, "second") // repeats its answer
	o.want("", "third")
	if shown := o.show(second); shown.AttestedBefore != 2 || shown.Last < 0 {
		t.Errorf("%d attestations before, the last at %d", shown.AttestedBefore, shown.Last)
	}
	o.sound()
}

func TestApproversAreEnrolledAndRemovedByApprovers(t *testing.T) {
	t.Parallel()
	o := newOffice(t, ruleOf(policy.ApproveAlways))
	carol := passkeytest.New("carol", console)
	id := o.enrol(carol)
	o.approve(id, o.alice)
	if _, err := o.Approvals.Approve(t.Context(), id, carol.Sign(o.show(id).Challenge), ""); err == nil {
		t.Error("carol approved her own enrolment")
	}
	if n := len(o.approvers()); n != 2 {
		t.Errorf("%d approvers after one of two approvals", n)
	}
	o.approve(id, o.bob)
	o.restart()
	if n := len(o.approvers()); n != 3 {
		t.Errorf("%d approvers after both approvals", n)
	}
	gone, err := o.Approvals.Remove(t.Context(), "bob", "operator")
	if err != nil {
		t.Fatal(err)
	}
	waits := o.want(appliance.CodeApprovalRequired, "one")
	o.approve(gone.ID, o.alice, carol)
	if _, err := o.Approvals.Approve(t.Context(), waits, o.bob.Sign(o.show(waits).Challenge), ""); err == nil {
		t.Error("bob approved after he left")
	}
	o.approve(waits, carol, o.alice)
	o.want("", "one")
	o.sound()
}

func (o *office) approvers() []approval.Approver {
	o.t.Helper()
	all, err := o.Approvals.Approvers(o.t.Context())
	if err != nil {
		o.t.Fatal(err)
	}
	return all
}

func TestAnAssertionForAnotherChallengePageOrPersonIsRefused(t *testing.T) {
	t.Parallel()
	o := newOffice(t, ruleOf(policy.ApproveAlways))
	id, other := o.want(appliance.CodeApprovalRequired, "one"), o.want(appliance.CodeApprovalRequired, "two")
	challenge := o.show(id).Challenge
	alice := func(change func(*passkeytest.Passkey)) *passkeytest.Passkey {
		one := *o.alice
		change(&one)
		return &one
	}
	mallory := passkeytest.New("alice", console)
	changed, short := o.alice.Sign(challenge), o.alice.Sign(challenge)
	changed.AuthenticatorData[36]++
	short.AuthenticatorData = short.AuthenticatorData[:36]
	page := "https://" + console
	for name, c := range map[string]struct {
		want string
		approval.Assertion
	}{
		"another request": {"signs another challenge", o.alice.Sign(o.show(other).Challenge)},
		"a new passkey":   {"not webauthn.get", o.alice.SignAs("webauthn.create", challenge, page)},
		"another page":    {"was made on the page", o.alice.SignAs("webauthn.get", challenge, "https://evil.example")},
		"a longer name": {"was made on the page",
			o.alice.SignAs("webauthn.get", challenge, "https://evil"+console)},
		"a page in a frame": {"was made on the page",
			alice(func(p *passkeytest.Passkey) { p.CrossOrigin = true }).Sign(challenge)},
		"another relying party": {"is not for",
			alice(func(p *passkeytest.Passkey) { p.RPID = "evil.example" }).SignAs("webauthn.get", challenge, page)},
		"data without flags": {"is not for", short},
		"nobody present": {"did not verify its user",
			alice(func(p *passkeytest.Passkey) { p.Flags = 0b100 }).Sign(challenge)},
		"nobody verified": {"did not verify its user",
			alice(func(p *passkeytest.Passkey) { p.Flags = 0b001 }).Sign(challenge)},
		"another passkey": {"was not enrolled", mallory.Sign(challenge)},
		"another key": {"the passkey's",
			func() approval.Assertion { a := mallory.Sign(challenge); a.Credential = o.alice.Credential; return a }()},
		"changed data": {"signature is not", changed},
		"no data":      {"client data", approval.Assertion{Credential: o.alice.Credential}},
	} {
		if _, err := o.Approvals.Approve(t.Context(), id, c.Assertion, ""); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if n := len(o.show(id).Approved); n != 0 {
		t.Errorf("%d approvals", n)
	}
	o.sound()
}

func TestAKeyCannotAskForApprovalsWithoutLimit(t *testing.T) {
	t.Parallel()
	o := newOffice(t, ruleOf(policy.ApproveAlways))
	for i := range approval.MaxWaiting {
		o.want(appliance.CodeApprovalRequired, fmt.Sprint(i))
	}
	o.want(appliance.CodeOverloaded, "more")
	o.want(appliance.CodeApprovalRequired, "0")
}

func TestAPolicyThatDemandsApprovalsAppliesToRequestsThatWait(t *testing.T) {
	t.Parallel()
	o := newOffice(t, ruleOf(policy.ApproveAlways))
	id := o.want(appliance.CodeApprovalRequired, "one")
	o.approve(id, o.alice, o.bob)
	stricter := ruleOf(policy.ApproveAlways)
	stricter.Required = 3
	o.rules(stricter)
	if again := o.want(appliance.CodeApprovalRequired, "one"); again == id {
		t.Error("the approval under the rule before still counts")
	}
	o.rules()
	o.want("", "another")
	o.sound()
}

// signerThat calls before ahead of each signature.
type signerThat struct {
	attest.Signer
	before func()
}

func (s signerThat) Sign(ctx context.Context, d appliance.Digest) (appliance.Signature, error) {
	s.before()
	return s.Signer.Sign(ctx, d)
}

// The approval must suffice when the record is made, not only when the request arrived.
func TestAnApprovalThatEndsDuringTheSignatureDoesNotCount(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		during func(o *office)
		want   appliance.Code
	}{
		"it expires": {func(o *office) { *o.now = o.now.Add(24 * time.Hour) }, appliance.CodeApprovalExpired},
		"the rule demands others": {func(o *office) {
			o.rules(policy.ApprovalRule{When: policy.ApproveAlways, Approvers: []string{"carol"}, Required: 1,
				WithinSeconds: 3600})
		}, appliance.CodeOverloaded},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOffice(t, ruleOf(policy.ApproveAlways))
			o.Signer = signerThat{o.Signer, func() { c.during(o) }} // the HSM is asked after people have approved
			o.approve(o.want(appliance.CodeApprovalRequired, "one"), o.alice, o.bob)
			o.want(c.want, "one")
		})
	}
}
