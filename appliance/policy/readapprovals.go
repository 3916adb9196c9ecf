package policy

import (
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"
)

// placed is a rule of approvals with its place in the file.
type placed struct {
	rule ApprovalRule
	at   *yaml.Node
}

// approvals reads the rules. complete checks them, when the whole file has been read.
func (r *reader) approvals(n *yaml.Node) (rules []placed) {
	r.list(n, "approvals", func(n *yaml.Node) {
		before := len(r.failures)
		var rule ApprovalRule
		r.mapping(n, "approvals",
			member{"when", func(n *yaml.Node) { r.when(n, &rule) }},
			member{"api_key", func(n *yaml.Node) {
				r.fail(n, "approvals: api_key belongs into when, such as when: { api_key: [payments] }")
			}},
			member{"approvers", func(n *yaml.Node) { rule.Approvers = r.names(n, "approvers") }},
			member{"required", func(n *yaml.Node) {
				text, _ := r.text(n, "required")
				count, err := strconv.Atoi(text)
				if err != nil {
					r.fail(n, "approvals: required: %q is not a count", text)
				}
				rule.Required = count
			}},
			member{"within", func(n *yaml.Node) {
				text, _ := r.text(n, "within")
				within, err := time.ParseDuration(text)
				if err != nil || within%time.Second != 0 {
					r.fail(n, "approvals: within: %q is not a time in whole seconds, such as 24h", text)
				}
				rule.WithinSeconds = int64(within / time.Second)
			}},
		)
		if len(r.failures) == before {
			rules = append(rules, placed{rule, n})
		}
	})
	return rules
}

// when reads always, new_beneficiary or outside_hours, or a mapping of api_key to a list.
func (r *reader) when(n *yaml.Node, rule *ApprovalRule) {
	if target(n).Kind == yaml.MappingNode {
		r.mapping(n, "when", member{string(ApproveAPIKey), func(n *yaml.Node) {
			rule.When, rule.APIKeys = ApproveAPIKey, r.names(n, "api_key")
		}})
		return
	}
	text, _ := r.text(n, "when")
	rule.When = ApprovalWhen(text)
}

func (r *reader) names(n *yaml.Node, what string) (all []string) {
	r.list(n, what, func(n *yaml.Node) {
		if text, ok := r.text(n, "a name"); ok {
			all = append(all, text)
		}
	})
	return all
}

// complete adds the hours to the rules that need them, and checks all rules.
func (r *reader) complete(p *Policy, rules []placed) {
	for _, one := range rules {
		rule := one.rule
		if rule.When == ApproveOutsideHours {
			rule.Hours = p.Hours
			if p.Zone != nil {
				rule.TimeZone = p.Zone.String()
			}
		}
		if err := rule.Check(); err != nil {
			r.fail(one.at, "approvals: %w", err)
		}
		p.Approvals = append(p.Approvals, rule)
	}
	if err := CheckApprovalRules(p.Approvals); err != nil {
		r.fail(rules[0].at, "%w", err)
	}
}
