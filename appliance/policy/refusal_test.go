package policy_test

import (
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/policy"
)

// A client repeats a request until people approve it. A coordinator does not record each repeat as a refusal.
func TestARequestThatWaitsAtAnotherMemberWaitsForPeople(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code  appliance.Code
		after time.Duration
		waits bool
	}{
		{appliance.CodeApprovalRequired, time.Minute, true}, {appliance.CodeApprovalRequired, 0, false},
		{appliance.CodePolicyCap, time.Minute, false}, {appliance.CodeApprovalDenied, 0, false},
	} {
		refused := appliance.Errorf(appliance.CodeQuorumRefused, "")
		refused.Members, refused.RetryAfter = []appliance.MemberFailure{{Member: "tokyo", Code: c.code}}, c.after
		if got := policy.WaitsForPeople(refused); got != c.waits || !policy.IsRefusal(refused) {
			t.Errorf("%s after %s: waits for people: %t", c.code, c.after, got)
		}
	}
}
