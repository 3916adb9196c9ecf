package policy_test

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/policy"
)

const (
	one = "0xdbF03B407c01E7cD3CBea99509d93f8DDDC8C6FB"
	key = "abcdefghijkl2345"
)

func read(t *testing.T, text string) *policy.Policy {
	t.Helper()
	p, err := policy.Read(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestEverythingThatAPolicyCanSay(t *testing.T) {
	t.Parallel()
	p := read(t, `# a comment
deny:
  unspendable: [`+one+`]
  beneficiary:
    - "`+strings.ToLower(one)+`"
allow: { beneficiary: [] }
second_beneficiary: refuse
time_zone: Europe/Berlin
hours:
  - { days: [mon, fri], from: 08:00, to: 18:30 }
  - { from: "22:00", to: "24:00" }
caps: { hour: 10, day: 100, week: 300, month: 1000 }
keys:
  `+key+`:
    beneficiaries: [`+one+`]
    caps: {}
`)
	address, err := appliance.ParseAddress(one)
	if err != nil {
		t.Fatal(err)
	}
	lists := map[string]policy.AddressSet{
		"deny.unspendable": p.Deny.Unspendable, "deny.beneficiary": p.Deny.Beneficiary,
		"keys": p.Keys[key].Beneficiaries,
	}
	for name, list := range lists {
		if _, found := list[address]; !found || len(list) != 1 {
			t.Errorf("%s is %v", name, list)
		}
	}
	if p.Allow.Beneficiary == nil || len(p.Allow.Beneficiary) != 0 || p.Allow.Unspendable != nil {
		t.Errorf("allow is %+v", p.Allow)
	}
	if p.SecondBeneficiary != policy.RefuseSecond || p.Zone.String() != "Europe/Berlin" || len(p.Version) != 64 {
		t.Errorf("%+v", p)
	}
	all := [7]bool{true, true, true, true, true, true, true}
	hours := policy.Hours{{Days: [7]bool{time.Monday: true, time.Friday: true}, From: 8 * 60, To: 18*60 + 30},
		{Days: all, From: 22 * 60, To: 24 * 60}}
	if !slices.Equal(p.Hours, hours) {
		t.Errorf("hours are %+v", p.Hours)
	}
	caps := []policy.Cap{{Count: 10, Per: policy.Hour}, {Count: 100, Per: policy.Day},
		{Count: 300, Per: policy.Week}, {Count: 1000, Per: policy.Month}}
	if !slices.Equal(p.Caps, caps) || p.Keys[key].Caps == nil || len(p.Keys[key].Caps) != 0 {
		t.Errorf("caps are %+v, and the key's own %+v", p.Caps, p.Keys[key].Caps)
	}
}

// approvals returns a policy with one rule.
func approvals(more string) string {
	return "approvals:\n  - { approvers: [alice, bob], required: 2, within: 24h, " + more + " }\n"
}

func TestRulesOfApprovalsAreRead(t *testing.T) {
	t.Parallel()
	p := read(t, approvals("when: new_beneficiary")+`
  - { when: { api_key: [payments] }, approvers: [carol], required: 1, within: 90m }
  - { when: outside_hours, approvers: [carol], required: 1, within: 1h }
hours: [{ from: 08:00, to: 18:00 }]
time_zone: Europe/Berlin
`)
	all := [7]bool{true, true, true, true, true, true, true}
	want := []policy.ApprovalRule{
		{When: policy.ApproveNewBeneficiary, Approvers: []string{"alice", "bob"}, Required: 2, WithinSeconds: 86400},
		{When: policy.ApproveAPIKey, APIKeys: []string{"payments"}, Approvers: []string{"carol"}, Required: 1,
			WithinSeconds: 5400},
		{When: policy.ApproveOutsideHours, Hours: policy.Hours{{Days: all, From: 480, To: 1080}},
			TimeZone: "Europe/Berlin", Approvers: []string{"carol"}, Required: 1, WithinSeconds: 3600},
	}
	if !reflect.DeepEqual(p.Approvals, want) {
		t.Errorf("got  %+v\nwant %+v", p.Approvals, want)
	}
}

func TestAPolicyThatSaysNothingWarnsOfASecondBeneficiary(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "# nothing\n", "deny:\n"} {
		if p := read(t, text); p.SecondBeneficiary != policy.WarnOfSecond || p.Caps != nil || p.Hours != nil ||
			p.Allow.Unspendable != nil || p.Allow.Beneficiary != nil {
			t.Errorf("%q: %+v", text, p)
		}
	}
}

func TestEachMistakeIsNamedWithItsLine(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"denny: {}":                           `line 1: unknown name "denny" in the policy; did you mean deny?`,
		"deny:\n  benefciary: []":             `line 2: unknown name "benefciary" in deny; did you mean beneficiary?`,
		"deny:\n  beneficiary: [\n    0x12 ]": `line 3: "0x12"`,
		"deny:\n  beneficiary: " + one:        `line 2: deny.beneficiary must be a list`,
		"deny: [x]":                           `line 1: deny must be a mapping of names to values`,
		"- x":                                 `line 1: the policy must be a mapping of names to values`,
		"second_beneficiary: no":              `line 1: second_beneficiary: "no" is not refuse, warn or allow`,
		"second_beneficiary:":                 `line 1: second_beneficiary is missing`,
		"time_zone: Berlin":                   `line 1: time_zone: "Berlin" is not a name such as Europe/Berlin or UTC`,
		"time_zone: Local":                    `"Local" is not a name`,
		"caps: { fortnight: 1 }":              `unknown name "fortnight" in caps; did you mean`,
		"caps: { day: -1 }":                   `caps.day: "-1" is not a count`,
		"caps: { day: 1.5 }":                  `caps.day: "1.5" is not a count`,
		"caps: { day: 1, day: 2 }":            `"day" occurs twice`,
		"keys: { payments: {} }":              `keys: "payments" is not an API key's id, as 'attestd key list' shows it`,
		"keys:\n  " + key + ":\n    rate: 10/s": `line 3: unknown name "rate" in keys.` + key +
			`; did you mean caps?`,
		"hours: [{ from: 8, to: 18:00 }]":                     `from: "8" is not a time of the day such as 08:00`,
		"hours: [{ from: 08:00 }]":                            `hours: from and to are required`,
		"hours: [{ from: 08:00, to: 08:00 }]":                 `hours: from and to are equal`,
		"hours: [{ from: 24:00, to: 08:00 }]":                 `hours: the times must be within one day`,
		"hours: [{ days: [], from: 08:00, to: 09:00 }]":       `hours: days are required`,
		"hours: [{ days: [monday], from: 08:00, to: 09:00 }]": `unknown day "monday"; use one of sun, mon`,
		"hours: { from: 08:00, to: 18:00 }":                   `line 1: hours must be a list`,
		"approvals: {}":                                       `line 1: approvals must be a list`,
		approvals(
			"when: sometimes"): `line 2: approvals: when: "sometimes" is not new_beneficiary`,
		approvals(
			"when: outside_hours"): `line 2: approvals: when: outside_hours needs hours`,
		approvals(
			"when: api_key"): `line 2: approvals: when: api_key needs a list of API keys`,
		approvals(
			"when: { key: [a] }"): `unknown name "key" in when; did you mean api_key?`,
		approvals(
			"api_key: [payments]"): `api_key belongs into when, such as when: { api_key: [payments] }`,
		approvals("when: always, required: 3"): `"required" occurs twice`,
		approvals(
			"when: always, approver: [x]"): `unknown name "approver" in approvals; did you mean approvers?`,
		strings.Replace(approvals("when: always"), "required: 2", "required: 3",
			1): `required: 3 is not a count from 1 to 2`,
		strings.Replace(approvals("when: always"), "required: 2", "required: 0",
			1): `required: 0 is not a count from 1 to 2`,
		strings.Replace(approvals("when: always"), "required: 2", "required: x", 1): `required: "x" is not a count`,
		strings.Replace(approvals("when: always"), "bob", "alice", 1):               `approvers: a name occurs twice`,
		strings.Replace(approvals("when: always"), "bob", "b b", 1):                 `approvers: "b b" must be 1 to 64`,
		strings.Replace(approvals("when: always"), "24h", "1s",
			1): `within: must be a time from 1m0s to 720h`,
		strings.Replace(approvals("when: always"), "24h", "1 day",
			1): `within: "1 day" is not a time in whole seconds`,
		"deny: {": "line 1",
	} {
		_, err := policy.Read(strings.NewReader(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

// The error names all mistakes of a file.
func TestAllMistakesAreNamed(t *testing.T) {
	t.Parallel()
	_, err := policy.Read(strings.NewReader("alow: {}\ncaps: { day: x }\nsecond_beneficiary: maybe\n"))
	for line := range 3 {
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("line %d: ", line+1)) {
			t.Errorf("line %d is not named: %v", line+1, err)
		}
	}
}

func TestAVersionIsOfTheFile(t *testing.T) {
	t.Parallel()
	versions := make(map[string]bool)
	for _, text := range []string{"caps: { day: 1 }", "caps: { day: 1 } ", "caps: { day: 1 }"} {
		versions[read(t, text).Version] = true
	}
	if len(versions) != 2 {
		t.Errorf("%d versions of two files: %v", len(versions), slices.Collect(maps.Keys(versions)))
	}
}

// Rules after --- would have no effect, so a second document is refused.
func TestASecondDocumentIsRefused(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"caps: { day: 1 }\n---\ndeny:\n  beneficiary: [" + one + "]\n", "{}\n--- {}\n",
		"# rules\n---\n---\ncaps: { day: 1 }\n", "caps: { day: 1 }\n---\n[",
		"caps: { day: 1 }\n---\n", "caps: { day: 1 }\n...\n---\nhours: []\n",
	} {
		if p, err := policy.Read(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), "line ") {
			t.Errorf("%q: %+v, %v", text, p, err)
		}
	}
	for _, text := range []string{"---\ncaps: { day: 1 }\n", "caps: { day: 1 }\n...\n",
		"caps: { day: 1 }\n...\n# the end\n"} {
		if p := read(t, text); len(p.Caps) != 1 || p.Entries != 1 || p.Blank {
			t.Errorf("%q: %+v", text, p)
		}
	}
}

func TestAFileWithoutATextIsBlank(t *testing.T) {
	t.Parallel()
	for text, blank := range map[string]bool{"": true, " \n\n": true, "# none": false, "{}": false, "caps: {}": false} {
		if p := read(t, text); p.Blank != blank || p.Entries != 0 {
			t.Errorf("%q: blank %v with %d values", text, p.Blank, p.Entries)
		}
	}
	text := "deny: { beneficiary: [" + one + ", " + one +
		"] }\ncaps: { hour: 1, day: 2 }\nsecond_beneficiary: warn\ntime_zone: UTC\n"
	if p := read(t, text); p.Entries != 6 {
		t.Errorf("%d values in %s", p.Entries, text)
	}
}

// FuzzRead checks that Read returns either an error or a policy with a version.
func FuzzRead(f *testing.F) {
	for _, seed := range []string{"deny: {beneficiary: [" + one + "]}",
		"hours: [{days: [mon], from: 08:00, to: 18:00}]", "a: &a [*a]", "keys: {" + key + ": {caps: {day: 1}}}",
		"? [x]\n: y", "<<: {}"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := policy.Read(strings.NewReader(text))
		if err == nil && (p == nil || p.Version == "") {
			t.Errorf("%q gives %+v", text, p)
		}
	})
}
