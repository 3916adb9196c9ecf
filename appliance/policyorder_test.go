package appliance_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
)

// A request that several rules refuse gets the code of the first one, in the order of docs/policy.md.
func TestTheFirstRuleThatRefusesGivesTheCode(t *testing.T) {
	t.Parallel()
	never := appliance.Opening{Days: [7]bool{}, From: 0, To: 1}
	p := appliance.Policy{
		Screening: screening(t, theBeneficiary.String()),
		Deny:      appliance.Sides{Beneficiary: set(theBeneficiary)}, Allow: appliance.Sides{Beneficiary: set()},
		Keys:  map[string]appliance.KeyPolicy{asker: {Beneficiaries: set()}},
		Hours: appliance.Hours{never}, Caps: []appliance.Cap{{Count: 1, Per: appliance.Day}},
		SecondBeneficiary: appliance.RefuseSecond,
	}
	for _, rule := range []struct {
		code   appliance.Code
		remove func()
	}{
		{appliance.CodeScreened, func() { p.Screening = nil }},
		{appliance.CodePolicyDeny, func() { p.Deny = appliance.Sides{} }},
		{appliance.CodePolicyAllow, func() { p.Allow = appliance.Sides{} }},
		{appliance.CodePolicyKey, func() { p.Keys = nil }},
		{appliance.CodePolicyHours, func() { p.Hours = nil }},
		{appliance.CodePolicyCap, func() { p.Caps = nil }},
		{appliance.CodePolicySecond, func() { p.SecondBeneficiary = appliance.AllowSecond }},
		{"", func() {}},
	} {
		trial := appliance.Trial{Policy: &p}
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
	for name, both := range map[string][2]appliance.Policy{
		"screening": {{Screening: screening(t, theAddress.String())},
			{Screening: screening(t, theBeneficiary.String())}},
		"deny": {
			{Deny: appliance.Sides{Unspendable: set(theAddress)}},
			{Deny: appliance.Sides{Beneficiary: set(theBeneficiary)}},
		},
		"allow": {{Allow: appliance.Sides{Unspendable: set()}}, {Allow: appliance.Sides{Beneficiary: set()}}},
	} {
		one, other := appliance.Decide(&both[0], once[0]), appliance.Decide(&both[1], once[0])
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
	appliance.Signer
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
		change func(a *appliance.Attestor, pause func())
		code   appliance.Code
	}{
		"nothing": {func(*appliance.Attestor, func()) {}, ""},
		"a policy": {func(a *appliance.Attestor, _ func()) {
			a.Govern(&appliance.Policy{Deny: appliance.Sides{Beneficiary: set(request.Beneficiary)}})
		}, appliance.CodePolicyDeny},
		"a cap": {func(a *appliance.Attestor, _ func()) {
			a.Govern(&appliance.Policy{Caps: []appliance.Cap{{Per: appliance.Day}}})
		}, appliance.CodePolicyCap},
		"a pause": {func(_ *appliance.Attestor, pause func()) { pause() }, appliance.CodePaused},
	} {
		stopped := false
		a := &appliance.Attestor{
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
		a.Govern(&appliance.Policy{Deny: appliance.Sides{Beneficiary: set(somebody)}})
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
