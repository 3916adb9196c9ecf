package appliance_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
)

// asker is the API key in the table of rules.
const asker = "aaaaaaaaaaaaaaaa"

func set(addresses ...appliance.Address) appliance.AddressSet {
	s := appliance.AddressSet{}
	for _, a := range addresses {
		s[a] = struct{}{}
	}
	return s
}

// weekdays are Monday to Friday.
var weekdays = [7]bool{false, true, true, true, true, true, false}

// ruling is a policy, a sequence of requests and the result of each; "warn" means that an operator is warned.
type ruling struct {
	policy *appliance.Policy
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
		"an empty policy": {&appliance.Policy{}, once, codes("")},
		"screening": {&appliance.Policy{Screening: screening(t, theBeneficiary.String())}, once,
			codes("screened")},
		"the beneficiary is denied": {&appliance.Policy{Deny: appliance.Sides{Beneficiary: set(
			theBeneficiary)}}, once, codes("policy_deny")},
		"the unspendable address is denied": {&appliance.Policy{Deny: appliance.Sides{Unspendable: set(theAddress)}},
			once, codes("policy_deny")},
		"denied on the somebody side": {&appliance.Policy{Deny: appliance.Sides{Unspendable: set(theBeneficiary),
			Beneficiary: set(theAddress)}}, once, codes("")},
		"another beneficiary is allowed": {&appliance.Policy{Allow: appliance.Sides{Beneficiary: set(somebody)}},
			once, codes("policy_allow")},
		"both are allowed": {&appliance.Policy{Allow: appliance.Sides{Unspendable: set(theAddress),
			Beneficiary: set(theBeneficiary, somebody)}}, once, codes("")},
		"an empty list allows nobody": {&appliance.Policy{Allow: appliance.Sides{Unspendable: set()}}, once,
			codes("policy_allow")},
		"deny goes before allow": {&appliance.Policy{Allow: appliance.Sides{Beneficiary: set(
			theBeneficiary)}, Deny: appliance.Sides{Beneficiary: set(theBeneficiary)}}, once, codes("policy_deny")},
		"another beneficiary for the key": {&appliance.Policy{Keys: map[string]appliance.KeyPolicy{asker: {Beneficiaries: set(somebody)}}}, once, codes("policy_key")},
		"a list for another key":          {&appliance.Policy{Keys: map[string]appliance.KeyPolicy{"bbbbbbbbbbbbbbbb": {Beneficiaries: set(somebody)}}}, once, codes("")},
	}
}

// aboutHowMuchAndWhen returns the rules about amounts, times and second beneficiaries.
func aboutHowMuchAndWhen() map[string]ruling {
	return map[string]ruling{
		"a cap a day": {
			&appliance.Policy{Caps: []appliance.Cap{{Count: 2, Per: appliance.Day}}},
			[]appliance.Record{ask(theAddress, theBeneficiary, tuesday), ask(theAddress, theBeneficiary, tuesday),
				ask(theAddress, theBeneficiary, tuesday.Add(12*time.Hour-1)),
				ask(theAddress, theBeneficiary, tuesday.Add(12*time.Hour))},
			codes("", "", "policy_cap", ""),
		},
		"several caps": {
			&appliance.Policy{Caps: []appliance.Cap{{Count: 1, Per: appliance.Hour}, {Count: 2, Per: appliance.Month}}},
			[]appliance.Record{ask(theAddress, theBeneficiary, tuesday), ask(theAddress, theBeneficiary, tuesday),
				ask(theAddress, theBeneficiary, tuesday.Add(time.Hour)),
				ask(theAddress, theBeneficiary, tuesday.Add(2*time.Hour))},
			codes("", "policy_cap", "", "policy_cap"),
		},
		"a key's own cap": {
			&appliance.Policy{Caps: []appliance.Cap{{Count: 0, Per: appliance.Day}},
				Keys: map[string]appliance.KeyPolicy{asker: {Caps: []appliance.Cap{}}}},
			once, codes(""),
		},
		"outside the hours": {
			&appliance.Policy{Hours: appliance.Hours{{Days: weekdays, From: 8 * 60, To: 18 * 60}}},
			[]appliance.Record{ask(theAddress, theBeneficiary, tuesday),
				ask(theAddress, theBeneficiary, tuesday.Add(6*time.Hour)), ask(theAddress, theBeneficiary,
					tuesday.Add(20*time.Hour)), ask(theAddress, theBeneficiary, tuesday.Add(4*24*time.Hour))},
			codes("", "policy_hours", "", "policy_hours"),
		},
		"a second beneficiary is refused": {
			&appliance.Policy{SecondBeneficiary: appliance.RefuseSecond},
			[]appliance.Record{ask(theAddress, theBeneficiary, tuesday), ask(theAddress, somebody, tuesday),
				ask(theAddress, theBeneficiary, tuesday), ask(somebody, somebody, tuesday)},
			codes("", "policy_second_beneficiary", "", ""),
		},
		"a second beneficiary is warned of": {
			&appliance.Policy{SecondBeneficiary: appliance.WarnOfSecond},
			[]appliance.Record{ask(theAddress, theBeneficiary, tuesday), ask(theAddress, somebody, tuesday),
				ask(theAddress, theBeneficiary, tuesday), ask(theAddress, somebody, tuesday)},
			codes("", "warn", "", "warn"),
		},
		"a second beneficiary is allowed": {
			&appliance.Policy{SecondBeneficiary: appliance.AllowSecond},
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
			trial := appliance.Trial{Policy: c.policy}
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
	appliance.Signer
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
	never := appliance.Opening{Days: [7]bool{}, From: 0, To: 1}
	for name, c := range map[string]struct {
		policy  appliance.Policy
		request appliance.Request
		code    appliance.Code
		repeat  appliance.Code // result of the call that was attested before
	}{
		"deny": {appliance.Policy{Deny: appliance.Sides{Beneficiary: set(request.Beneficiary)}}, request,
			appliance.CodePolicyDeny, appliance.CodePolicyDeny},
		"allow": {appliance.Policy{Allow: appliance.Sides{Beneficiary: set()}}, request, appliance.CodePolicyAllow,
			appliance.CodePolicyAllow},
		"key": {appliance.Policy{Keys: map[string]appliance.KeyPolicy{key.ID: {Beneficiaries: set()}}}, request,
			appliance.CodePolicyKey, appliance.CodePolicyKey},
		"cap": {appliance.Policy{Caps: []appliance.Cap{{Count: 1, Per: appliance.Month}}}, request,
			appliance.CodePolicyCap, ""},
		"hours":  {appliance.Policy{Hours: appliance.Hours{never}}, request, appliance.CodePolicyHours, ""},
		"second": {appliance.Policy{SecondBeneficiary: appliance.RefuseSecond}, other, appliance.CodePolicySecond, ""},
	} {
		a.Govern(&c.policy)
		_, _, err := a.Attest(t.Context(), appliance.Call{Key: key, Request: c.request})
		if appliance.CodeOf(err) != c.code || !appliance.IsRefusal(err) {
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
	for name, p := range map[string]*appliance.Policy{
		"screened":       {Screening: screening(t, request.Beneficiary.String())},
		"denied":         {Deny: appliance.Sides{Unspendable: set(request.UnspendableAddress)}},
		"not allowed":    {Allow: appliance.Sides{Beneficiary: set()}},
		"not of the key": {Keys: map[string]appliance.KeyPolicy{key.ID: {Beneficiaries: set()}}},
		"capped":         {Caps: []appliance.Cap{{Count: 0, Per: appliance.Hour}}},
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
	a.Second = func(e appliance.Entry, first appliance.Record) {
		mu.Lock()
		defer mu.Unlock()
		warned++
		if first.Beneficiary == e.Record.Beneficiary || first.UnspendableAddress != e.Record.UnspendableAddress {
			t.Errorf("warned of %+v after %+v", e.Record.Request, first.Request)
		}
	}
	const limit, tries = 5, 20
	a.Govern(&appliance.Policy{Caps: []appliance.Cap{{Count: limit, Per: appliance.Month}},
		SecondBeneficiary: appliance.WarnOfSecond})
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

// A daylight-saving change moves the begin of no day and of no opening.
func TestPeriodsAndHoursAreOfTheTimeZone(t *testing.T) {
	t.Parallel()
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Skip("this machine has no time zones")
	}
	at := func(text string) time.Time {
		when, err := time.Parse(time.RFC3339, text)
		if err != nil {
			t.Fatal(err)
		}
		return when
	}
	p := appliance.Policy{Zone: berlin, Hours: appliance.Hours{{Days: weekdays, From: 22 * 60, To: 6 * 60}}}
	for when, open := range map[string]bool{
		"2026-10-24T00:00:00+02:00": true, // Friday night's
		"2026-10-24T05:59:59+02:00": true,
		"2026-10-24T06:00:00+02:00": false,
		"2026-10-24T23:00:00+02:00": false, // Saturday's
		"2026-10-26T05:00:00+01:00": false, // Sunday's
		"2026-10-26T21:59:59+01:00": false,
		"2026-10-26T22:00:00+01:00": true,
		"2026-10-26T20:00:00Z":      false,
		"2026-10-26T21:00:00Z":      true,
	} {
		err := appliance.Decide(&p, appliance.Record{Time: at(when)})
		if (err == nil) != open {
			t.Errorf("%s: open %v, %v", when, err == nil, err)
		}
	}
	for _, c := range []struct {
		per              appliance.Period
		when, begin, end string
	}{
		// of 25 hours
		{appliance.Day, "2026-10-25T12:00:00+01:00", "2026-10-25T00:00:00+02:00", "2026-10-26T00:00:00+01:00"},
		{appliance.Day, "2026-03-29T12:00:00+02:00", "2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00"}, // of 23
		{appliance.Hour, "2026-10-25T02:30:00+02:00", "2026-10-25T02:00:00+02:00", "2026-10-25T02:00:00+01:00"},
		{appliance.Hour, "2026-10-25T02:30:00+01:00", "2026-10-25T02:00:00+01:00", "2026-10-25T03:00:00+01:00"},
		// a Sunday
		{appliance.Week, "2026-11-01T23:59:59+01:00", "2026-10-26T00:00:00+01:00", "2026-11-02T00:00:00+01:00"},
		{appliance.Week, "2026-11-02T00:00:00+01:00", "2026-11-02T00:00:00+01:00", "2026-11-09T00:00:00+01:00"},
		{appliance.Month, "2026-12-31T23:59:59+01:00", "2026-12-01T00:00:00+01:00", "2027-01-01T00:00:00+01:00"},
	} {
		begin, end := appliance.Around(c.per, at(c.when).In(berlin))
		if !begin.Equal(at(c.begin)) || !end.Equal(at(c.end)) {
			t.Errorf("the %s of %s is %s to %s, want %s to %s", c.per, c.when, begin, end, c.begin, c.end)
		}
	}
}

// A temporary refusal carries a RetryAfter.
func TestARefusalThatEndsByItselfSaysWhen(t *testing.T) {
	t.Parallel()
	saturday := time.Date(2026, 11, 7, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		policy appliance.Policy
		after  time.Duration
	}{
		"hours": {appliance.Policy{Hours: appliance.Hours{{Days: weekdays, From: 8*60 + 30, To: 18 * 60}}},
			44*time.Hour + 30*time.Minute},
		"a cap": {appliance.Policy{Caps: []appliance.Cap{{Count: 0, Per: appliance.Week}}}, 36 * time.Hour},
	} {
		err := appliance.Decide(&c.policy, appliance.Record{Time: saturday})
		if e, ok := errors.AsType[*appliance.Error](err); !ok || e.RetryAfter != c.after {
			t.Errorf("%s: %v, want after %s", name, err, c.after)
		}
	}
}

func BenchmarkPolicy(b *testing.B) {
	many := set()
	for i := range 100_000 {
		many[appliance.Address{byte(i), byte(i >> 8), byte(i >> 16)}] = struct{}{}
	}
	for name, p := range map[string]*appliance.Policy{
		"none": nil,
		"whom": {Deny: appliance.Sides{Beneficiary: many},
			Allow: appliance.Sides{Unspendable: set(request.UnspendableAddress)}},
		"all": {Deny: appliance.Sides{Beneficiary: many},
			Hours: appliance.Hours{{Days: weekdays, From: 0, To: 24 * 60}},
			Caps:  []appliance.Cap{{Count: 2, Per: appliance.Day}}, SecondBeneficiary: appliance.RefuseSecond},
	} {
		b.Run(name, func(b *testing.B) {
			r := appliance.Record{Request: request, Time: time.Date(2026, 11, 3, 12, 0, 0, 0, time.UTC)}
			for b.Loop() {
				if err := appliance.Decide(p, r); err != nil {
					b.Fatal(fmt.Errorf("refused: %w", err))
				}
			}
		})
	}
}
