package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/daemontest"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/policy"
)

func readDocument(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../../docs/policy.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The example in docs/policy.md is a valid policy, and uses every rule.
func TestTheExampleOfAPolicyIsOne(t *testing.T) {
	t.Parallel()
	example := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindStringSubmatch(readDocument(t))
	if example == nil {
		t.Fatal("there is no example")
	}
	p, err := policy.Read(strings.NewReader(example[1]))
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Deny.Beneficiary) == 0 || len(p.Allow.Unspendable) == 0 || p.SecondBeneficiary != policy.RefuseSecond ||
		p.Zone == nil ||
		len(p.Hours) != 2 || len(p.Caps) != 2 || len(p.Keys) != 1 || len(p.Approvals) != 1 {
		t.Errorf("%+v", p)
	}
	for id, k := range p.Keys {
		if len(k.Beneficiaries) == 0 || len(k.Caps) == 0 {
			t.Errorf("API key %s: %+v", id, k)
		}
	}
}

// docs/policy.md describes each code, and no unknown code.
func TestTheCodesOfThePolicyAreDocumented(t *testing.T) {
	t.Parallel()
	document := readDocument(t)
	for _, code := range []appliance.Code{
		appliance.CodeScreened, appliance.CodePolicyDeny, appliance.CodePolicyAllow, appliance.CodePolicyKey,
		appliance.CodePolicyHours,
		appliance.CodePolicyCap, appliance.CodePolicySecond, appliance.CodePaused, appliance.CodeHalted,
	} {
		if !strings.Contains(document, "`"+string(code)+"`") {
			t.Errorf("docs/policy.md does not tell of %s", code)
		}
	}
	for _, found := range regexp.MustCompile("`(policy_[a-z_]+)`").FindAllStringSubmatch(document, -1) {
		if err := appliance.Errorf(appliance.Code(found[1]), ""); !policy.IsRefusal(err) &&
			found[1] != string(journal.EventPolicy) {
			t.Errorf("docs/policy.md tells of %s, which is no code", found[1])
		}
	}
}

// The script policy.txtar runs the commands of docs/policy.md.
func TestTheCommandsOfThePolicyAreTyped(t *testing.T) {
	t.Parallel()
	script, err := os.ReadFile("testdata/script/policy.txtar")
	if err != nil {
		t.Fatal(err)
	}
	typed := regexp.MustCompile(`(?m)^exec (.*)$`).FindAllStringSubmatch(string(script), -1)
	commands := regexp.MustCompile("(?m)^# (attestd .*)$").FindAllStringSubmatch(readDocument(t), -1)
	if len(commands) == 0 {
		t.Fatal("there are no commands")
	}
	for _, c := range commands {
		want := strings.ReplaceAll(c[1], "/etc/attestd/policy.yaml", "strict")
		found := false
		for _, line := range typed {
			found = found || line[1] == want
		}
		if !found {
			t.Errorf("%q is not typed", want)
		}
	}
}

// The metrics of docs/policy.md: attestations for a second beneficiary, refusals by code, and a pause.
func TestTheMetricsOfThePolicy(t *testing.T) {
	d := daemontest.New(t)
	t.Parallel()
	metrics, denied := daemontest.FreeAddress(t), daemontest.RandomRequest()
	d.Write(t, "policy.yaml", "deny: { beneficiary: [\""+denied.Beneficiary.String()+"\"] }\n")
	d.Configure("ATTESTD_METRICS_LISTEN="+metrics, "ATTESTD_ATTESTATION_POLICY="+filepath.Join(d.Dir, "policy.yaml"))
	d.Start(t)
	defer d.Kill(t)
	c, err := client.New(d.URL, d.Token, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	second := daemontest.RandomRequest()
	for _, beneficiary := range []appliance.Address{{1}, {2}, denied.Beneficiary} {
		second.Beneficiary = beneficiary
		_, err := c.Attest(t.Context(), second, client.AttestOptions{})
		if want := beneficiary == denied.Beneficiary; (err != nil) != want {
			t.Errorf("%s: %v", beneficiary, err)
		}
	}
	checkMetrics(t, metrics, "attestd_second_beneficiaries_total 1", "attestd_paused 0",
		`attestd_problems_total{code="policy_deny"} 1`)
	d.Run(t, "pause", "--reason", "a test")
	checkMetrics(t, metrics, "attestd_paused 1")
}
