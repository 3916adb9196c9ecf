package attest_test

import (
	"testing"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/policy"
)

// A coordinator chooses its name. It may name the id or the name of a client's API key, and send that client's
// Idempotency-Key and addresses. It still does not get the approval of that client, which stays the client's.
func TestACoordinatorCannotUseAClientsApproval(t *testing.T) {
	t.Parallel()
	for _, byID := range []bool{true, false} {
		o := newOffice(t, ruleOf(policy.ApproveAlways))
		member, _ := newKey(t, o.Keys, appliance.KeyRequest{Name: "tokyo", Scopes: []appliance.Scope{
			appliance.ScopeCosign}})
		o.event(journal.EventKeyCreated, member.Details())
		id := o.want(appliance.CodeApprovalRequired, "one")
		o.approve(id, o.alice, o.bob)
		name := o.key.Name
		if byID {
			name = o.key.ID
		}
		_, _, err := o.Attest(t.Context(), appliance.Call{Key: member, Request: request, IdempotencyKey: "one",
			Coordinator: name})
		if appliance.CodeOf(err) != appliance.CodeApprovalRequired {
			t.Errorf("a coordinator called %s: %v", name, err)
		}
		o.want("", "one")
		o.sound()
	}
}
