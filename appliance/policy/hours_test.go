package policy_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/policy"
)

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
	p := policy.Policy{Zone: berlin, Hours: policy.Hours{{Days: weekdays, From: 22 * 60, To: 6 * 60}}}
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
		err := p.Apply(appliance.Record{Time: at(when)})
		if (err == nil) != open {
			t.Errorf("%s: open %v, %v", when, err == nil, err)
		}
	}
	for _, c := range []struct {
		per              policy.Period
		when, begin, end string
	}{
		// of 25 hours
		{policy.Day, "2026-10-25T12:00:00+01:00", "2026-10-25T00:00:00+02:00", "2026-10-26T00:00:00+01:00"},
		{policy.Day, "2026-03-29T12:00:00+02:00", "2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00"}, // of 23
		{policy.Hour, "2026-10-25T02:30:00+02:00", "2026-10-25T02:00:00+02:00", "2026-10-25T02:00:00+01:00"},
		{policy.Hour, "2026-10-25T02:30:00+01:00", "2026-10-25T02:00:00+01:00", "2026-10-25T03:00:00+01:00"},
		// a Sunday
		{policy.Week, "2026-11-01T23:59:59+01:00", "2026-10-26T00:00:00+01:00", "2026-11-02T00:00:00+01:00"},
		{policy.Week, "2026-11-02T00:00:00+01:00", "2026-11-02T00:00:00+01:00", "2026-11-09T00:00:00+01:00"},
		{policy.Month, "2026-12-31T23:59:59+01:00", "2026-12-01T00:00:00+01:00", "2027-01-01T00:00:00+01:00"},
	} {
		begin, end := policy.Around(c.per, at(c.when).In(berlin))
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
		policy policy.Policy
		after  time.Duration
	}{
		"hours": {policy.Policy{Hours: policy.Hours{{Days: weekdays, From: 8*60 + 30, To: 18 * 60}}},
			44*time.Hour + 30*time.Minute},
		"a cap": {policy.Policy{Caps: []policy.Cap{{Count: 0, Per: policy.Week}}}, 36 * time.Hour},
	} {
		err := c.policy.Apply(appliance.Record{Time: saturday})
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
	for name, p := range map[string]*policy.Policy{
		"none": nil,
		"whom": {Deny: policy.Sides{Beneficiary: many},
			Allow: policy.Sides{Unspendable: set(request.UnspendableAddress)}},
		"all": {Deny: policy.Sides{Beneficiary: many},
			Hours: policy.Hours{{Days: weekdays, From: 0, To: 24 * 60}},
			Caps:  []policy.Cap{{Count: 2, Per: policy.Day}}, SecondBeneficiary: policy.RefuseSecond},
	} {
		b.Run(name, func(b *testing.B) {
			r := appliance.Record{Request: request, Time: time.Date(2026, 11, 3, 12, 0, 0, 0, time.UTC)}
			for b.Loop() {
				if err := p.Apply(r); err != nil {
					b.Fatal(fmt.Errorf("refused: %w", err))
				}
			}
		})
	}
}

var (
	weekdays = [7]bool{false, true, true, true, true, true, false}
	request  = appliance.Request{UnspendableAddress: appliance.Address{1}, Beneficiary: appliance.Address{2}}
)

func set(addresses ...appliance.Address) policy.AddressSet {
	s := make(policy.AddressSet)
	for _, a := range addresses {
		s[a] = struct{}{}
	}
	return s
}
