package attest_test

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/attest"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/policy"
)

// asker is the API key in the table of rules.
const asker = "aaaaaaaaaaaaaaaa"

func set(addresses ...appliance.Address) policy.AddressSet {
	s := policy.AddressSet{}
	for _, a := range addresses {
		s[a] = struct{}{}
	}
	return s
}

// weekdays are Monday to Friday.
var weekdays = [7]bool{false, true, true, true, true, true, false}

// ruling is a policy, a sequence of requests and the result of each; "warn" means that an operator is warned.
type ruling struct {
	policy *policy.Policy
	asks   []appliance.Record
	want   []appliance.Code
}

func ask(u, b appliance.Address, at time.Time) appliance.Record {
	r := appliance.Record{Request: appliance.Request{UnspendableAddress: u, Beneficiary: b}, KeyID: asker, Time: at}
	r.ID[0] = 1
	return r
}

var (
	theAddress, theBeneficiary, somebody = request.UnspendableAddress, request.Beneficiary, appliance.Address{7}
	tuesday                              = time.Date(2026, 11, 3, 12, 0, 0, 0, time.UTC)
	once                                 = []appliance.Record{ask(theAddress, theBeneficiary, tuesday)}
)

// aboutWhom returns the rules about addresses.
func aboutWhom(t *testing.T) map[string]ruling {
	return map[string]ruling{
		"no policy":       {nil, once, codes("")},
		"an empty policy": {&policy.Policy{}, once, codes("")},
		"screening": {&policy.Policy{Screening: screening(t, theBeneficiary.String())}, once,
			codes("screened")},
		"the beneficiary is denied": {&policy.Policy{Deny: policy.Sides{Beneficiary: set(
			theBeneficiary)}}, once, codes("policy_deny")},
		"the unspendable address is denied": {&policy.Policy{Deny: policy.Sides{Unspendable: set(theAddress)}},
			once, codes("policy_deny")},
		"denied on the somebody side": {&policy.Policy{Deny: policy.Sides{Unspendable: set(theBeneficiary),
			Beneficiary: set(theAddress)}}, once, codes("")},
		"another beneficiary is allowed": {&policy.Policy{Allow: policy.Sides{Beneficiary: set(somebody)}},
			once, codes("policy_allow")},
		"both are allowed": {&policy.Policy{Allow: policy.Sides{Unspendable: set(theAddress),
			Beneficiary: set(theBeneficiary, somebody)}}, once, codes("")},
		"an empty list allows nobody": {&policy.Policy{Allow: policy.Sides{Unspendable: set()}}, once,
			codes("policy_allow")},
		"deny goes before allow": {&policy.Policy{Allow: policy.Sides{Beneficiary: set(
			theBeneficiary)}, Deny: policy.Sides{Beneficiary: set(theBeneficiary)}}, once, codes("policy_deny")},
		"another beneficiary for the key": {
			&policy.Policy{Keys: map[string]policy.KeyRules{asker: {Beneficiaries: set(somebody)}}}, once,
			codes("policy_key")},
		"a list for another key": {
			&policy.Policy{Keys: map[string]policy.KeyRules{"bbbbbbbbbbbbbbbb": {Beneficiaries: set(somebody)}}}, once,
			codes("")},
	}
}

// aboutHowMuchAndWhen returns the rules about amounts, times and second beneficiaries.
func aboutHowMuchAndWhen() map[string]ruling {
	return map[string]ruling{
		"a cap a day": {
			&policy.Policy{Caps: []policy.Cap{{Count: 2, Per: policy.Day}}},
			[]appliance.Record{ask(theAddress, theBeneficiary, tuesday), ask(theAddress, theBeneficiary, tuesday),
				ask(theAddress, theBeneficiary, tuesday.Add(12*time.Hour-1)),
				ask(theAddress, theBeneficiary, tuesday.Add(12*time.Hour))},
			codes("", "", "policy_cap", ""),
		},
		"several caps": {
			&policy.Policy{Caps: []policy.Cap{{Count: 1, Per: policy.Hour}, {Count: 2, Per: policy.Month}}},
			[]appliance.Record{ask(theAddress, theBeneficiary, tuesday), ask(theAddress, theBeneficiary, tuesday),
				ask(theAddress, theBeneficiary, tuesday.Add(time.Hour)),
				ask(theAddress, theBeneficiary, tuesday.Add(2*time.Hour))},
			codes("", "policy_cap", "", "policy_cap"),
		},
		"a key's own cap": {
			&policy.Policy{Caps: []policy.Cap{{Count: 0, Per: policy.Day}},
				Keys: map[string]policy.KeyRules{asker: {Caps: []policy.Cap{}}}},
			once, codes(""),
		},
		"outside the hours": {
			&policy.Policy{Hours: policy.Hours{{Days: weekdays, From: 8 * 60, To: 18 * 60}}},
			[]appliance.Record{ask(theAddress, theBeneficiary, tuesday),
				ask(theAddress, theBeneficiary, tuesday.Add(6*time.Hour)), ask(theAddress, theBeneficiary,
					tuesday.Add(20*time.Hour)), ask(theAddress, theBeneficiary, tuesday.Add(4*24*time.Hour))},
			codes("", "policy_hours", "", "policy_hours"),
		},
		"a second beneficiary is refused": {
			&policy.Policy{SecondBeneficiary: policy.RefuseSecond},
			[]appliance.Record{ask(theAddress, theBeneficiary, tuesday), ask(theAddress, somebody, tuesday),
				ask(theAddress, theBeneficiary, tuesday), ask(somebody, somebody, tuesday)},
			codes("", "policy_second_beneficiary", "", ""),
		},
		"a second beneficiary is warned of": {
			&policy.Policy{SecondBeneficiary: policy.WarnOfSecond},
			[]appliance.Record{ask(theAddress, theBeneficiary, tuesday), ask(theAddress, somebody, tuesday),
				ask(theAddress, theBeneficiary, tuesday), ask(theAddress, somebody, tuesday)},
			codes("", "warn", "", "warn"),
		},
		"a second beneficiary is allowed": {
			&policy.Policy{SecondBeneficiary: policy.AllowSecond},
			[]appliance.Record{ask(theAddress, theBeneficiary, tuesday), ask(theAddress, somebody, tuesday)},
			codes("", ""),
		},
	}
}

// Each rule on its own refuses the right attestations of a sequence.
func TestRules(t *testing.T) {
	t.Parallel()
	rulings := aboutWhom(t)
	maps.Copy(rulings, aboutHowMuchAndWhen())
	for name, c := range rulings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			trial := policy.Trial{Policy: c.policy}
			for i, r := range c.asks {
				code, second := trial.Attest(r)
				if second != nil {
					code = "warn"
				}
				if code != c.want[i] {
					t.Errorf("attestation %d: %q, want %q", i, code, c.want[i])
				}
			}
		})
	}
}

// countingSigner counts the requested signatures.
type countingSigner struct {
	attest.Signer
	asked atomic.Int64
}

func (s *countingSigner) Sign(ctx context.Context, d appliance.Digest) (appliance.Signature, error) {
	s.asked.Add(1)
	return s.Signer.Sign(ctx, d)
}

func (s *countingSigner) count() int64 { return s.asked.Load() }

func codes(c ...appliance.Code) []appliance.Code { return c }

// A refused request is neither signed nor recorded. A replay is subject to the rules about addresses only.
func TestAPolicyRefusesBeforeSigning(t *testing.T) {
	t.Parallel()
	a := newAttestor(t)
	signer := &countingSigner{Signer: a.Signer}
	a.Signer = signer
	key, _ := newKey(t, a.Keys, appliance.KeyRequest{})
	call := appliance.Call{Key: key, Request: request, IdempotencyKey: "before"}
	first, _, err := a.Attest(t.Context(), call)
	if err != nil {
		t.Fatal(err)
	}
	other := request
	other.Beneficiary[0]++
	never := policy.Opening{Days: [7]bool{}, From: 0, To: 1}
	for name, c := range map[string]struct {
		policy  policy.Policy
		request appliance.Request
		code    appliance.Code
		repeat  appliance.Code // result of the call that was attested before
	}{
		"deny": {policy.Policy{Deny: policy.Sides{Beneficiary: set(request.Beneficiary)}}, request,
			appliance.CodePolicyDeny, appliance.CodePolicyDeny},
		"allow": {policy.Policy{Allow: policy.Sides{Beneficiary: set()}}, request, appliance.CodePolicyAllow,
			appliance.CodePolicyAllow},
		"key": {policy.Policy{Keys: map[string]policy.KeyRules{key.ID: {Beneficiaries: set()}}}, request,
			appliance.CodePolicyKey, appliance.CodePolicyKey},
		"cap": {policy.Policy{Caps: []policy.Cap{{Count: 1, Per: policy.Month}}}, request,
			appliance.CodePolicyCap, ""},
		"hours":  {policy.Policy{Hours: policy.Hours{never}}, request, appliance.CodePolicyHours, ""},
		"second": {policy.Policy{SecondBeneficiary: policy.RefuseSecond}, other, appliance.CodePolicySecond, ""},
	} {
		a.Govern(&c.policy)
		_, _, err := a.Attest(t.Context(), appliance.Call{Key: key, Request: c.request})
		if appliance.CodeOf(err) != c.code || !policy.IsRefusal(err) {
			t.Errorf("%s: %v, want %s", name, err, c.code)
		}
		e, replayed, err := a.Attest(t.Context(), call)
		if appliance.CodeOf(err) != c.repeat || err == nil && (!replayed || e.Record.ID != first.Record.ID) {
			t.Errorf("%s, asked for again: %v, replayed %v, want %q", name, err, replayed, c.repeat)
		}
	}
	if n := signer.count(); n != 1 {
		t.Errorf("%d signatures were made, want the one before the policies", n)
	}
	if n := records(t, a); n != 1 {
		t.Errorf("%d records, want 1", n)
	}
}

// Reading back follows the same rules as a replay: rules about addresses apply, rules about amounts and times do not.
func TestReadingBackIsRefusedAsARepeatIs(t *testing.T) {
	t.Parallel()
	a := newAttestor(t)
	key, _ := newKey(t, a.Keys, appliance.KeyRequest{})
	call := appliance.Call{Key: key, Request: request, IdempotencyKey: "before"}
	made, _, err := a.Attest(t.Context(), call)
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]*policy.Policy{
		"screened":       {Screening: screening(t, request.Beneficiary.String())},
		"denied":         {Deny: policy.Sides{Unspendable: set(request.UnspendableAddress)}},
		"not allowed":    {Allow: policy.Sides{Beneficiary: set()}},
		"not of the key": {Keys: map[string]policy.KeyRules{key.ID: {Beneficiaries: set()}}},
		"capped":         {Caps: []policy.Cap{{Count: 0, Per: policy.Hour}}},
		"no policy":      nil,
	} {
		a.Govern(p)
		_, _, repeat := a.Attest(t.Context(), call)
		e, proof, err := a.ReadBack(t.Context(), key, made.Record.ID)
		if appliance.CodeOf(err) != appliance.CodeOf(repeat) {
			t.Errorf("%s: reading back is answered %v, a repeat %v", name, err, repeat)
		}
		if empty := e.Leaf == nil && e.Record.Signature == (appliance.Signature{}) &&
			len(proof.Hashes) == 0; empty != (err != nil) {
			t.Errorf("%s: read back: %+v, %v", name, e, err)
		}
	}
}

func TestWhileStoppedNothingIsAttestedNorAnsweredAgain(t *testing.T) {
	t.Parallel()
	a := newAttestor(t)
	key, _ := newKey(t, a.Keys, appliance.KeyRequest{})
	call := appliance.Call{Key: key, Request: request, IdempotencyKey: "before"}
	before, _, err := a.Attest(t.Context(), call)
	if err != nil {
		t.Fatal(err)
	}
	a.Stopped = func() error { return appliance.Errorf(appliance.CodePaused, "no") }
	for _, c := range []appliance.Call{call, {Key: key, Request: request}} {
		if _, _, err := a.Attest(t.Context(), c); appliance.CodeOf(err) != appliance.CodePaused {
			t.Errorf("%v", err)
		}
	}
	if err := a.Ready(t.Context()); appliance.CodeOf(err) != appliance.CodePaused {
		t.Errorf("it is ready: %v", err)
	}
	if e, _, err := a.ReadBack(t.Context(), key, before.Record.ID); err != nil || e.Record.ID != before.Record.ID {
		t.Errorf("reading back: %v", err)
	}
}

// Under concurrent requests, a cap holds exactly, and an operator is warned of every second beneficiary but the first.
func TestRulesHoldAtOnce(t *testing.T) {
	t.Parallel()
	a := newAttestor(t)
	var mu sync.Mutex
	warned := 0
	a.Second = func(e journal.Entry, first appliance.Record) {
		mu.Lock()
		defer mu.Unlock()
		warned++
		if first.Beneficiary == e.Record.Beneficiary || first.UnspendableAddress != e.Record.UnspendableAddress {
			t.Errorf("warned of %+v after %+v", e.Record.Request, first.Request)
		}
	}
	const limit, tries = 5, 20
	a.Govern(&policy.Policy{Caps: []policy.Cap{{Count: limit, Per: policy.Month}},
		SecondBeneficiary: policy.WarnOfSecond})
	key, _ := newKey(t, a.Keys, appliance.KeyRequest{})
	var all sync.WaitGroup
	for i := range tries {
		all.Go(func() {
			r := request
			r.Beneficiary[0] = byte(i)
			if _, _, err := a.Attest(t.Context(), appliance.Call{Key: key, Request: r}); err != nil &&
				appliance.CodeOf(err) != appliance.CodePolicyCap {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := records(t, a); n != limit || warned != limit-1 {
		t.Errorf("%d records and %d warnings, want %d and %d", n, warned, limit, limit-1)
	}
}
