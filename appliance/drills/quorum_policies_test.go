package drills

import (
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/approval"
	"github.com/attestd/attestd/appliance/daemontest"
	"github.com/attestd/attestd/appliance/passkeytest"
)

// demand restarts the member with a policy under which alice approves each request.
func (m *quorumMember) demand(t *testing.T) *passkeytest.Passkey {
	t.Helper()
	alice := passkeytest.New("alice", "localhost")
	m.Write(t, "policy.yaml", "approvals:\n  - { when: always, approvers: [alice], required: 1, within: 24h }\n")
	m.Configure("ATTESTD_ATTESTATION_POLICY=" + filepath.Join(m.Dir, "policy.yaml"))
	m.restart(t)
	admin := client.NewAdmin(filepath.Join(m.Dir, "admin.sock"))
	defer admin.Close()
	_, err := admin.EnrolApprover(t.Context(), wire.Enrolment{Name: alice.Name, Credential: alice.Credential,
		PublicKey: alice.PublicKey, RPID: alice.RPID})
	if err != nil {
		t.Fatal(err)
	}
	return alice
}

// waiting returns the approval that waits at the member.
func waiting(t *testing.T, d *daemontest.Daemon) approval.Listed {
	t.Helper()
	admin := client.NewAdmin(filepath.Join(d.Dir, "admin.sock"))
	defer admin.Close()
	all, err := admin.Approvals(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all = slices.DeleteFunc(all, func(l approval.Listed) bool { return l.State != approval.Waiting })
	if len(all) != 1 {
		t.Fatalf("%d approvals wait: %v", len(all), all)
	}
	return all[0]
}

// decide approves the approval that waits at the member, or denies it without a passkey.
func decide(t *testing.T, d *daemontest.Daemon, by *passkeytest.Passkey) {
	t.Helper()
	asked := waiting(t, d)
	admin := client.NewAdmin(filepath.Join(d.Dir, "admin.sock"))
	defer admin.Close()
	var err error
	if by == nil {
		_, err = admin.Deny(t.Context(), asked.ID)
	} else {
		_, err = admin.Approve(t.Context(), asked.ID, by.Sign(asked.Challenge))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// refusals asks a member for the n-th pair, which must be refused with a code, and by these members' codes, if given.
func (q *quorumRig) refusals(from *quorumMember, n int, order string, code appliance.Code, repeat bool,
	members ...appliance.MemberFailure) quorumAnswer {
	q.Helper()
	got, err := from.attestAs(q.T, n, order)
	slices.SortFunc(got.Members, func(x, y appliance.MemberFailure) int { return strings.Compare(x.Member, y.Member) })
	if err != nil || got.status != http.StatusForbidden || got.Code != code || (got.retryAfter != "") != repeat ||
		len(members) > 0 && !slices.Equal(got.Members, members) {
		q.Fatalf("%s of %s: %v, %d with Retry-After %q: %s\nwant %s, repeat %t, %v\n%s", order, from.name, err, got.status,
			got.retryAfter, got.text, code, repeat, members, from.Log())
	}
	return got
}

// succeeds repeats a request, and repeats it once more. The answers must be one attestation.
func (q *quorumRig) succeeds(from *quorumMember, n int, order string) quorumAnswer {
	q.Helper()
	made, err := from.attestAs(q.T, n, order)
	if err != nil || made.status != http.StatusOK {
		q.Fatalf("%s of %s: %v, %d %s\n%s", order, from.name, err, made.status, made.text, from.Log())
	}
	if again, err := from.attestAs(q.T, n, order); err != nil || again.text != made.text {
		q.Errorf("%s, repeated: %v\n%s\n%s", order, err, again.text, made.text)
	}
	return made
}

// a asks its own people, c asks its own, and b refuses one beneficiary. All three must sign, so a repeat gets the
// signature that b recorded the first time. No member signs twice, and a refusal has Retry-After while people can still
// approve.
func TestTheMembersOfAQuorumHaveTheirOwnPoliciesAndPeople(t *testing.T) {
	q := startQuorum(t, 3)
	a, b, c := q.members[0], q.members[1], q.members[2]
	ofC := c.demand(t)
	b.Write(t, "screened", "0x000000000000000000000000000000000000b004\n")
	b.Configure("ATTESTD_ATTESTATION_SCREENING_LIST=" + filepath.Join(b.Dir, "screened"))
	b.restart(t)
	code := func(m *quorumMember, c appliance.Code) appliance.MemberFailure {
		return appliance.MemberFailure{Member: m.name, Code: c}
	}
	const waits, denied = appliance.CodeApprovalRequired, appliance.CodeApprovalDenied

	// The people of one member only: b coordinates, and c asks.
	q.refusals(b, 1, "one", appliance.CodeQuorumRefused, true, code(c, waits))
	q.refusals(b, 1, "one", appliance.CodeQuorumRefused, true, code(c, waits))
	if asked := waiting(t, c.Daemon); asked.Coordinator != "member1.example/attestd" {
		t.Errorf("c asks for %q", asked.Coordinator)
	}
	decide(t, c.Daemon, ofC)
	first := q.succeeds(b, 1, "one")

	// The people of the coordinator, and those of c: the other members are asked once a's people have approved.
	ofA := a.demand(t)
	refused := q.refusals(a, 2, "two", waits, true)
	if _, err := uuid.Parse(refused.ApprovalID); err != nil || len(b.recordsOf(t, hashOf(t, 2))) != 0 {
		t.Errorf("before a's people approve, b has signed, or there is no approval: %s", refused.text)
	}
	decide(t, a.Daemon, ofA)
	q.refusals(a, 2, "two", appliance.CodeQuorumRefused, true, code(c, waits))
	c.Kill(t) // its people are asked once, over a restart
	c.Start(t)
	q.refusals(a, 2, "two", appliance.CodeQuorumRefused, true, code(c, waits))
	decide(t, c.Daemon, ofC)
	second := q.succeeds(a, 2, "two")

	// A denial, and a rule of one member.
	q.refusals(a, 3, "three", waits, true)
	decide(t, a.Daemon, nil)
	q.refusals(a, 3, "three", denied, false)
	q.refusals(b, 3, "three", appliance.CodeQuorumRefused, true, code(a, waits), code(c, waits))
	decide(t, c.Daemon, nil)
	q.refusals(b, 3, "three", appliance.CodeQuorumRefused, false) // a's people are still asked
	decide(t, a.Daemon, nil)
	q.refusals(a, 4, "four", waits, true)
	decide(t, a.Daemon, ofA)
	q.refusals(a, 4, "four", appliance.CodeQuorumRefused, false) // b never signs this

	for _, m := range q.members {
		for _, made := range []quorumAnswer{first, second} {
			if records := m.recordsOf(t, made.Hash); len(records) != 1 {
				t.Errorf("%s signed %d times: %v", m.name, len(records), records)
			}
		}
	}
	if out := a.Run(t, "log", "export"); strings.Count(out, `"event":"refused"`) != 1 {
		t.Errorf("a recorded other refusals than b's of the fourth: %s", out)
	}
	q.auditAll()
}
