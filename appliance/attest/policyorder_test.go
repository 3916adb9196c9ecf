package attest_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/attest"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/policy"
)

// A request that several rules refuse gets the code of the first one, in the order of docs/policy.md.
func TestTheFirstRuleThatRefusesGivesTheCode(t *testing.T) {
	t.Parallel()
	never := policy.Opening{Days: [7]bool{}, From: 0, To: 1}
	p := policy.Policy{
		Screening: screening(t, theBeneficiary.String()),
		Deny:      policy.Sides{Beneficiary: set(theBeneficiary)}, Allow: policy.Sides{Beneficiary: set()},
		Keys:  map[string]policy.KeyRules{asker: {Beneficiaries: set()}},
		Hours: policy.Hours{never}, Caps: []policy.Cap{{Count: 1, Per: policy.Day}},
		SecondBeneficiary: policy.RefuseSecond,
	}
	for _, rule := range []struct {
		code   appliance.Code
		remove func()
	}{
		{appliance.CodeScreened, func() { p.Screening = nil }},
		{appliance.CodePolicyDeny, func() { p.Deny = policy.Sides{} }},
		{appliance.CodePolicyAllow, func() { p.Allow = policy.Sides{} }},
		{appliance.CodePolicyKey, func() { p.Keys = nil }},
		{appliance.CodePolicyHours, func() { p.Hours = nil }},
		{appliance.CodePolicyCap, func() { p.Caps = nil }},
		{appliance.CodePolicySecond, func() { p.SecondBeneficiary = policy.AllowSecond }},
		{"", func() {}},
	} {
		trial := policy.Trial{Policy: &p}
		trial.Seen(ask(theAddress, somebody, tuesday)) // fills the cap, and is the first beneficiary
		if code, _ := trial.Attest(ask(theAddress, theBeneficiary, tuesday)); code != rule.code {
			t.Errorf("the code is %q, want %q", code, rule.code)
		}
		rule.remove()
	}
}

// A refusal is the same for either address, and contains neither.
func TestARefusalDoesNotSayWhichAddressItIsAbout(t *testing.T) {
	t.Parallel()
	for name, both := range map[string][2]policy.Policy{
		"screening": {{Screening: screening(t, theAddress.String())},
			{Screening: screening(t, theBeneficiary.String())}},
		"deny": {
			{Deny: policy.Sides{Unspendable: set(theAddress)}},
			{Deny: policy.Sides{Beneficiary: set(theBeneficiary)}},
		},
		"allow": {{Allow: policy.Sides{Unspendable: set()}}, {Allow: policy.Sides{Beneficiary: set()}}},
	} {
		one, other := decide(&both[0], once[0]), decide(&both[1], once[0])
		if one == nil || other == nil || one.Error() != other.Error() {
			t.Errorf("%s: %v and %v", name, one, other)
			continue
		}
		for _, address := range []appliance.Address{theAddress, theBeneficiary} {
			if strings.Contains(strings.ToLower(one.Error()), strings.ToLower(address.String())) {
				t.Errorf("%s: %v", name, one)
			}
		}
	}
}

// interruptedSigner calls a function before each signature.
type interruptedSigner struct {
	attest.Signer
	before func()
}

func (s interruptedSigner) Sign(ctx context.Context, d appliance.Digest) (appliance.Signature, error) {
	s.before()
	return s.Signer.Sign(ctx, d)
}

// A policy or a pause that comes while the HSM signs refuses that request, too.
func TestAPolicyAndAPauseApplyToRequestsInProgress(t *testing.T) {
	t.Parallel()
	store, signer := openStore(t), openSigner(t)
	paused := func() error { return appliance.Errorf(appliance.CodePaused, "no") }
	for name, c := range map[string]struct {
		change func(a *attest.Attestor, pause func())
		code   appliance.Code
	}{
		"nothing": {func(*attest.Attestor, func()) {}, ""},
		"a policy": {func(a *attest.Attestor, _ func()) {
			a.Govern(&policy.Policy{Deny: policy.Sides{Beneficiary: set(request.Beneficiary)}})
		}, appliance.CodePolicyDeny},
		"a cap": {func(a *attest.Attestor, _ func()) {
			a.Govern(&policy.Policy{Caps: []policy.Cap{{Per: policy.Day}}})
		}, appliance.CodePolicyCap},
		"a pause": {func(_ *attest.Attestor, pause func()) { pause() }, appliance.CodePaused},
	} {
		stopped := false
		a := &attest.Attestor{
			Keys: store.Keys(), Journal: store.Journal(), Scheme: scheme(t, appliance.SchemeKeccak256BN254, nil),
			Now: time.Now,
			Stopped: func() error {
				if stopped {
					return paused()
				}
				return nil
			},
		}
		a.Signer = interruptedSigner{signer, func() { c.change(a, func() { stopped = true }) }}
		a.Govern(&policy.Policy{Deny: policy.Sides{Beneficiary: set(somebody)}})
		key, _ := newKey(t, a.Keys, appliance.KeyRequest{})
		before := records(t, a)
		_, _, err := a.Attest(t.Context(), appliance.Call{Key: key, Request: request})
		if appliance.CodeOf(err) != c.code {
			t.Errorf("%s: %v, want %q", name, err, c.code)
		}
		if recorded := records(t, a) > before; recorded != (c.code == "") {
			t.Errorf("%s: recorded is %t", name, recorded)
		}
	}
}

// decide applies a policy to a record of an API key without earlier attestations.
func decide(p *policy.Policy, r appliance.Record) error {
	q := p.Asks(r)
	_, err := p.Decide(r, journal.Past{Counts: make([]int64, len(q.Since))})
	return err
}
