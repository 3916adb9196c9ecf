package attest_test

import (
	"strings"
	"testing"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/policy"
)

func TestScreenedAddressesGetNothingAndOthersDo(t *testing.T) {
	t.Parallel()
	a := newAttestor(t)
	key, _ := newKey(t, a.Keys, appliance.KeyRequest{})
	call := appliance.Call{Key: key, Request: request, IdempotencyKey: "k"}
	if _, _, err := a.Attest(t.Context(), call); err != nil {
		t.Fatal(err)
	}
	for name, line := range map[string]string{
		"the unspendable address": request.UnspendableAddress.String(),
		"the beneficiary":         strings.ToLower(request.Beneficiary.String()) + "  # case 17",
		"one of many, with blank lines": "# list\n\n0xdbF03B407c01E7cD3CBea99509d93f8DDDC8C6FB\n" +
			request.Beneficiary.String(),
	} {
		a.Govern(&policy.Policy{Screening: screening(t, line)})
		if _, _, err := a.Attest(t.Context(), call); appliance.CodeOf(err) != appliance.CodeScreened {
			t.Errorf("%s, asked for again: %v", name, err)
		}
		if _, _, err := a.Attest(t.Context(),
			appliance.Call{Key: key, Request: request}); appliance.CodeOf(err) != appliance.CodeScreened {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, list := range map[string]*policy.Screening{
		"somebody else": screening(t, "0xdbF03B407c01E7cD3CBea99509d93f8DDDC8C6FB"), "an empty list": screening(t, ""),
		"no list": nil,
	} {
		a.Govern(&policy.Policy{Screening: list})
		if _, _, err := a.Attest(t.Context(), appliance.Call{Key: key, Request: request}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := records(t, a); n != 4 {
		t.Errorf("%d records, want 4: screened requests leave none", n)
	}
}

func TestAListWithABadLineIsRefusedAndTheLineNamed(t *testing.T) {
	_, err := policy.ParseScreening(strings.NewReader("# ok\n0xdbF03B407c01E7cD3CBea99509d93f8DDDC8C6FB\n0xdb\n"))
	if err == nil || !strings.Contains(err.Error(), "line 3") {
		t.Errorf("%v", err)
	}
	if _, err := policy.ParseScreening(strings.NewReader(strings.Repeat("a", 1<<20))); err == nil {
		t.Error("an endless line was taken")
	}
}

func screening(t *testing.T, text string) *policy.Screening {
	t.Helper()
	s, err := policy.ParseScreening(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}
