package attest_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/approval"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/passkeytest"
	"github.com/attestd/attestd/appliance/policy"
)

// sign attests without an approval, as an attacker with the HSM's key and the log's key can.
func (o *office) sign(idempotencyKey string, approval *uuid.UUID) {
	o.t.Helper()
	o.signFor(request, idempotencyKey, approval)
}

func (o *office) signFor(request appliance.Request, idempotencyKey string, approval *uuid.UUID) {
	o.t.Helper()
	id, err := uuid.NewV7()
	if err != nil {
		o.t.Fatal(err)
	}
	r := appliance.Record{
		Attestation: appliance.Attestation{ID: id, Hash: o.Scheme.Digest(request), SignerAddress: o.Signer.Address()},
		Request:     request, Scheme: string(o.Scheme.Name), KeyID: o.key.ID, IdempotencyKey: idempotencyKey,
		Approval: approval,
	}
	if r.Signature, err = o.Signer.Sign(o.t.Context(), r.Hash); err != nil {
		o.t.Fatal(err)
	}
	if _, _, err := o.Journal.Append(o.t.Context(), r); err != nil {
		o.t.Fatal(err)
	}
}

// repeatLast writes a journal in which the last record stands twice, under two ids. An attacker needs the log's key.
func (o *office) repeatLast() {
	o.t.Helper()
	var leaves [][]byte
	var last journal.Entry
	err := o.Journal.Entries(o.t.Context(), 0, func(e journal.Entry) error {
		leaves, last = append(leaves, e.Leaf), e
		return nil
	})
	if err != nil {
		o.t.Fatal(err)
	}
	again, err := uuid.NewV7()
	if err != nil {
		o.t.Fatal(err)
	}
	leaves = append(leaves, bytes.ReplaceAll(last.Leaf, []byte(last.ID().String()), []byte(again.String())))
	if err := o.open(o.Signer).Import(o.t.Context(), 0, leaves); err != nil {
		o.t.Fatal(err)
	}
}

// pretend records an approval without the appliance's checks.
func (o *office) pretend(id uuid.UUID, name string, a approval.Assertion) {
	o.t.Helper()
	text := base64.RawURLEncoding.EncodeToString
	o.event(journal.EventApprovalGiven, map[string]string{"approval": id.String(), "approver": name,
		"credential": a.Credential, "authenticatorData": text(a.AuthenticatorData), "clientData": text(a.ClientData),
		"signature": text(a.Signature)})
}

// request records a request that waits, with any rule and log.
func (o *office) request(rule policy.ApprovalRule, log string) uuid.UUID {
	o.t.Helper()
	text, err := json.Marshal(rule)
	if err != nil {
		o.t.Fatal(err)
	}
	return o.event(journal.EventApprovalRequested, map[string]string{"log": log, "keyId": o.key.ID,
		"idempotencyKey": "one", "rule": string(text), "unspendableAddress": request.UnspendableAddress.String(),
		"beneficiary": request.Beneficiary.String()}).ID
}

// forgeries are attacks with the log's key and the attestor key. Each has the audit's finding.
func forgeries() map[string]forgery {
	all := forgedPeople()
	maps.Copy(all, forgedRecords())
	return all
}

// forgery is an attack, and what an audit says of it.
type forgery struct {
	want  string
	forge func(o *office)
}

// forgedPeople are attacks with approvals and rules.
func forgedPeople() map[string]forgery {
	weak := policy.ApprovalRule{When: policy.ApproveAlways, Approvers: []string{"mallory"}, Required: 1,
		WithinSeconds: 3600}
	return map[string]forgery{
		"signs with a passkey of its own": {"which was not enrolled at that time", func(o *office) {
			id := o.want(appliance.CodeApprovalRequired, "one")
			o.pretend(id, "alice", passkeytest.New("alice", console).Sign(o.show(id).Challenge))
			o.sign("one", &id)
		}},
		"copies the approval of another request": {"is forged: it signs another challenge", func(o *office) {
			id, other := o.want(appliance.CodeApprovalRequired, "one"), o.want(appliance.CodeApprovalRequired, "other")
			o.pretend(id, "alice", o.alice.Sign(o.show(other).Challenge))
			o.sign("one", &id)
		}},
		"enrols itself": {"which was not enrolled at that time", func(o *office) {
			mallory := passkeytest.New("carol", console)
			o.enrol(mallory)
			id := o.want(appliance.CodeApprovalRequired, "one")
			o.pretend(id, "carol", mallory.Sign(o.show(id).Challenge))
		}},
		"lets somebody approve who has left": {"which was not enrolled at that time", func(o *office) {
			gone, err := o.Approvals.Remove(o.t.Context(), "bob", "operator")
			if err != nil {
				o.t.Fatal(err)
			}
			o.approve(gone.ID, o.alice, o.bob)
			id := o.want(appliance.CodeApprovalRequired, "one")
			o.pretend(id, "bob", o.bob.Sign(o.show(id).Challenge))
		}},
		"asks by a rule of its own": {"whom its rule does not name", func(o *office) {
			id := o.request(weak, "test.example/log")
			o.pretend(id, "alice", o.alice.Sign(o.show(id).Challenge))
			o.sign("one", &id)
		}},
		"asks by a rule that needs fewer": {"lacks the approvals that the policy demanded", func(o *office) {
			fewer := ruleOf(policy.ApproveAlways)
			fewer.Required = 1
			id := o.request(fewer, "test.example/log")
			o.approve(id, o.alice)
			o.sign("one", &id)
		}},
		"copies requests and approvals of another log": {`asked for in the log "other.example"`, func(o *office) {
			o.request(ruleOf(policy.ApproveAlways), "other.example")
		}},
	}
}

// forgedRecords are attacks with records.
func forgedRecords() map[string]forgery {
	return map[string]forgery{
		"attests without asking": {"lacks the approvals that the policy demanded", func(o *office) {
			o.sign("one", nil)
		}},
		"names an approval that nobody asked for": {"which the journal has no request for", func(o *office) {
			id := uuid.New()
			o.sign("one", &id)
		}},
		"names an approval that waits": {"was waiting, with 1 of the 2 approvals", func(o *office) {
			id := o.want(appliance.CodeApprovalRequired, "one")
			o.approve(id, o.alice)
			o.sign("one", &id)
		}},
		"names an approval that was denied": {"was denied", func(o *office) {
			id := o.want(appliance.CodeApprovalRequired, "one")
			if _, err := o.Approvals.Deny(o.t.Context(), id, ""); err != nil {
				o.t.Fatal(err)
			}
			o.pretend(id, "alice", o.alice.Sign(o.show(id).Challenge))
			o.pretend(id, "bob", o.bob.Sign(o.show(id).Challenge))
			o.sign("one", &id)
		}},
		"uses an approval after its time": {"was expired", func(o *office) {
			id := o.want(appliance.CodeApprovalRequired, "one")
			o.approve(id, o.alice, o.bob)
			*o.now = o.now.Add(24 * time.Hour)
			o.sign("one", &id)
		}},
		"uses an approval for another request": {"which is of another request", func(o *office) {
			id := o.want(appliance.CodeApprovalRequired, "one")
			o.approve(id, o.alice, o.bob)
			o.sign("two", &id)
		}},
		"uses an approval for other addresses": {"which is of another request", func(o *office) {
			id := o.want(appliance.CodeApprovalRequired, "one")
			o.approve(id, o.alice, o.bob)
			o.signFor(appliance.Request{UnspendableAddress: request.UnspendableAddress, Beneficiary: appliance.Address{9}},
				"one", &id)
		}},
		"uses an approval twice": {"has used", func(o *office) {
			id := o.want(appliance.CodeApprovalRequired, "one")
			o.approve(id, o.alice, o.bob)
			o.want("", "one")
			o.repeatLast()
		}},
	}
}

func TestAnAuditNamesEachForgedApproval(t *testing.T) {
	t.Parallel()
	for name, c := range forgeries() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOffice(t, ruleOf(policy.ApproveAlways))
			*o.now = o.now.Add(2 * time.Hour) // the rules before count no more
			o.sound()
			c.forge(o)
			found := strings.Join(o.audit(), "\n")
			if !strings.Contains(found, "approval: ") || !strings.Contains(found, c.want) {
				t.Errorf("the audit finds %q, want %q", found, c.want)
			}
		})
	}
}

// An operator may change the rules alone, so an audit says when.
func TestAnAuditTellsEachChangeOfTheRules(t *testing.T) {
	t.Parallel()
	o := newOffice(t, ruleOf(policy.ApproveAlways))
	*o.now = o.now.Add(2 * time.Hour)
	o.rules()
	o.sign("one", nil)
	*o.now = o.now.Add(2 * time.Hour)
	o.rules(ruleOf(policy.ApproveNewBeneficiary))
	o.rules(ruleOf(policy.ApproveNewBeneficiary))
	report, err := o.Journal.Verify(t.Context(), audit.Options{AnySigner: true})
	if err != nil || !report.OK() {
		t.Fatal(report.Damages, err)
	}
	if n := len(report.ApprovalRules); n != 3 || len(report.ApprovalRules[1].Rules) != 0 || len(report.Approvers) != 2 {
		t.Errorf("changes %+v, %d approvers", report.ApprovalRules, len(report.Approvers))
	}
}

// A restored backup brings back an approver who has left. An audit with a checkpoint from after the backup fails.
func TestARestoredBackupDoesNotBringBackAnApprover(t *testing.T) {
	t.Parallel()
	o := newOffice(t, ruleOf(policy.ApproveAlways))
	var backup [][]byte
	err := o.Journal.Entries(t.Context(), 0, func(e journal.Entry) error {
		backup = append(backup, e.Leaf)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	gone, err := o.Approvals.Remove(t.Context(), "bob", "operator")
	if err != nil {
		t.Fatal(err)
	}
	o.approve(gone.ID, o.alice, o.bob)
	later, err := o.Journal.Checkpoint(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := o.open(o.Signer).Import(t.Context(), 0, backup); err != nil {
		t.Fatal(err)
	}
	o.Govern(&policy.Policy{Approvals: []policy.ApprovalRule{ruleOf(policy.ApproveAlways)}})
	if err := o.Keys.Create(t.Context(), o.key); err != nil {
		t.Fatal(err)
	}
	o.approve(o.want(appliance.CodeApprovalRequired, "one"), o.alice, o.bob)
	o.want("", "one")
	report, err := o.Journal.Verify(t.Context(), audit.Options{AnySigner: true, Earlier: later})
	if err != nil || report.OK() || !strings.Contains(report.Damages[0].Detail, "earlier checkpoint") {
		t.Errorf("damages %v, %v", report.Damages, err)
	}
}
