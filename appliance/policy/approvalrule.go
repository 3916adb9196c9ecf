package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"github.com/attestd/attestd/appliance"
	"regexp"
	"slices"
	"time"
)

// ApprovalRule demands that people approve some attestations before they are signed. Of several rules, the first that
// applies to a request counts. Its JSON is part of the journal: the event of a policy has all rules, and the event of a
// request that waits has the one that it waits for. So an audit knows the demands.
type ApprovalRule struct {
	When          ApprovalWhen `json:"when"`
	APIKeys       []string     `json:"apiKeys,omitempty"`  // names or ids; of ApproveAPIKey
	Hours         Hours        `json:"hours,omitempty"`    // of ApproveOutsideHours
	TimeZone      string       `json:"timeZone,omitempty"` // IANA name; empty means UTC
	Approvers     []string     `json:"approvers"`          // names of the people that may approve
	Required      int          `json:"required"`           // how many of them must
	WithinSeconds int64        `json:"withinSeconds"`      // an approval must be used before that
}

// ApprovalWhen selects the requests of an ApprovalRule.
type ApprovalWhen string

// The values of ApprovalWhen.
const (
	ApproveAlways         ApprovalWhen = "always"
	ApproveNewBeneficiary ApprovalWhen = "new_beneficiary" // the journal has no attestation to the beneficiary
	ApproveOutsideHours   ApprovalWhen = "outside_hours"
	ApproveAPIKey         ApprovalWhen = "api_key"
)

const (
	// MinApprovalTime and MaxApprovalTime bound the time within which people approve.
	MinApprovalTime = time.Minute
	MaxApprovalTime = 30 * 24 * time.Hour
	// maxApprovalRules bounds the JSON of all rules, in bytes, because it is part of an event.
	maxApprovalRules = 12 << 10
)

// DetailApprovals is the detail of a policy's event that has all rules.
const DetailApprovals = "approvals"

// approverName matches the name of an approver.
var approverName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}$`)

// CheckApproverName returns CodeInvalidField for an invalid name.
func CheckApproverName(name string) error {
	if !approverName.MatchString(name) {
		return appliance.Errorf(appliance.CodeInvalidField, "must be 1 to 64 letters, digits, or one of . _ @ + -").In("name")
	}
	return nil
}

// Check returns an error if the rule cannot be applied or satisfied.
func (r ApprovalRule) Check() error {
	within := time.Duration(r.WithinSeconds) * time.Second
	sorted := slices.Sorted(slices.Values(r.Approvers))
	switch {
	case !slices.Contains([]ApprovalWhen{ApproveAlways, ApproveNewBeneficiary, ApproveOutsideHours, ApproveAPIKey},
		r.When):
		return fmt.Errorf("when: %q is not new_beneficiary, always, outside_hours or api_key", r.When)
	case r.When == ApproveAPIKey && len(r.APIKeys) == 0:
		return errors.New("when: api_key needs a list of API keys, such as api_key: [payments]")
	case r.When == ApproveOutsideHours && len(r.Hours) == 0:
		return errors.New("when: outside_hours needs hours in the policy")
	case len(r.Approvers) == 0:
		return errors.New("approvers is missing: list the names of the people who may approve")
	case len(slices.Compact(sorted)) < len(r.Approvers):
		return errors.New("approvers: a name occurs twice")
	case r.Required < 1 || r.Required > len(r.Approvers):
		return fmt.Errorf("required: %d is not a count from 1 to %d, the number of approvers", r.Required,
			len(r.Approvers))
	case r.WithinSeconds < 0 || r.WithinSeconds > int64(MaxApprovalTime/time.Second) || within < MinApprovalTime:
		return fmt.Errorf("within: must be a time from %s to %s, such as 24h", MinApprovalTime, MaxApprovalTime)
	}
	for _, name := range r.Approvers {
		if !approverName.MatchString(name) {
			return fmt.Errorf("approvers: %q must be 1 to 64 letters, digits, or one of . _ @ + -", name)
		}
	}
	return nil
}

// CheckApprovalRules returns an error if the rules are too long for an event.
func CheckApprovalRules(rules []ApprovalRule) error {
	if size := len(EncodeApprovalRules(rules)); size > maxApprovalRules {
		return fmt.Errorf("approvals: the rules have %d bytes in the journal, the limit is %d", size, maxApprovalRules)
	}
	return nil
}

// EncodeApprovalRules returns the detail of an event, "" without rules.
func EncodeApprovalRules(rules []ApprovalRule) string {
	if len(rules) == 0 {
		return ""
	}
	text, _ := json.Marshal(rules) // strings and numbers only: cannot fail
	return string(text)
}

// Facts are the facts of a request that rules depend on.
type Facts struct {
	KeyID, KeyName string
	Time           time.Time
	NewBeneficiary bool
}

func (r ApprovalRule) applies(f Facts) bool {
	switch r.When {
	case ApproveNewBeneficiary:
		return f.NewBeneficiary
	case ApproveOutsideHours:
		zone, err := time.LoadLocation(r.TimeZone)
		return err != nil || r.Hours.check(f.Time.In(zone)) != nil
	case ApproveAPIKey:
		return slices.Contains(r.APIKeys, f.KeyID) || f.KeyName != "" && slices.Contains(r.APIKeys, f.KeyName)
	}
	return true
}

// Demanded returns the first rule that applies, or nil.
func Demanded(rules []ApprovalRule, f Facts) *ApprovalRule {
	for i := range rules {
		if rules[i].applies(f) {
			return &rules[i]
		}
	}
	return nil
}

// Same reports whether two rules demand the same.
func (r ApprovalRule) Same(other ApprovalRule) bool {
	return EncodeApprovalRules([]ApprovalRule{r}) == EncodeApprovalRules([]ApprovalRule{other})
}

// String describes the rule for people, such as "2 of alice, bob, carol".
func (r ApprovalRule) String() string {
	when := string(r.When)
	if r.When == ApproveAPIKey {
		when = fmt.Sprintf("api_key %v", r.APIKeys)
	}
	return fmt.Sprintf("%s: %d of %v", when, r.Required, r.Approvers)
}
