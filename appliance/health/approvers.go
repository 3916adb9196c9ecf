package health

import (
	"slices"
	"strings"

	"github.com/attestd/attestd/appliance/approval"
	"github.com/attestd/attestd/appliance/policy"
)

// approversRemedy is for a rule that the enrolled approvers cannot satisfy.
const approversRemedy = "let them enrol passkeys in the console, page Approvals (attestd approver list), or correct " +
	"the rule, then: attestd reload"

// Approvers reports each rule of the policy that the enrolled approvers cannot satisfy: its requests would wait until
// they expire.
func Approvers(rules []policy.ApprovalRule, enrolled []approval.Approver) (all []Finding) {
	for _, rule := range rules {
		missing := slices.DeleteFunc(slices.Clone(rule.Approvers), func(name string) bool {
			return slices.ContainsFunc(enrolled, func(a approval.Approver) bool { return a.Name == name })
		})
		if has := len(rule.Approvers) - len(missing); has < rule.Required {
			all = append(all, Failure(approversRemedy, "the rule %s cannot be satisfied: %d of its approvers must approve, and "+
				"%d of them are enrolled; without a passkey: %s", rule, rule.Required, has, strings.Join(missing, ", ")))
		}
	}
	if len(all) == 0 {
		all = append(all, Good("the enrolled approvers can satisfy each rule of the policy"))
	}
	return all
}
