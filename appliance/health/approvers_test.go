package health_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/attestd/attestd/appliance/approval"
	"github.com/attestd/attestd/appliance/health"
	"github.com/attestd/attestd/appliance/policy"
)

func TestARuleThatTheEnrolledApproversCannotSatisfyIsAFailure(t *testing.T) {
	t.Parallel()
	two := policy.ApprovalRule{When: policy.ApproveAlways, Approvers: []string{"alice", "bob", "carol"}, Required: 2}
	one := policy.ApprovalRule{When: policy.ApproveNewBeneficiary, Approvers: []string{"dave"}, Required: 1}
	for enrolled, unsatisfied := range map[string][]string{
		"":                      {"always: 2 of", "new_beneficiary: 1 of"},
		"alice alice dave":      {"always: 2 of"}, // two passkeys of one person
		"alice dave erin":       {"always: 2 of"}, // erin is in no rule
		"alice bob":             {"new_beneficiary: 1 of"},
		"alice bob carol":       {"new_beneficiary: 1 of"},
		"alice carol dave":      nil,
		"alice bob carol dave ": nil,
	} {
		var people []approval.Approver
		for _, name := range strings.Fields(enrolled) {
			people = append(people, approval.Approver{Name: name})
		}
		findings := health.Approvers([]policy.ApprovalRule{two, one}, people)
		failures := slices.DeleteFunc(slices.Clone(findings), func(f health.Finding) bool { return f.State == health.OK })
		if len(failures) != len(unsatisfied) || len(findings) == 0 {
			t.Errorf("%q: %v", enrolled, findings)
			continue
		}
		for i, f := range failures {
			if f.State != health.Fail || f.Remedy == "" || !strings.Contains(f.Detail, unsatisfied[i]) {
				t.Errorf("%q: %+v, want %s", enrolled, f, unsatisfied[i])
			}
		}
	}
}
