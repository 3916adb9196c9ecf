package attest

import (
	"context"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/approval"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/policy"
	"github.com/google/uuid"
)

// admission is the Condition of an attestation: attesting is not stopped, and the policy allows the record. It uses the
// policy that is in force when the journal evaluates the condition.
type admission struct {
	attestor *Attestor
	policy   *policy.Policy    // loaded by the last Asks
	second   *appliance.Record // first attestation of the address, if the last Decide found that a warning is due
	keyName  string

	approval *approval.Approval // of this request; nil if people were not asked
	known    bool               // the journal has attestations to the beneficiary
}

// Asks implements Condition.
func (a *admission) Asks(r appliance.Record) journal.PastQuery {
	a.policy = a.attestor.policy.Load()
	return a.policy.Asks(r)
}

// Decide implements Condition.
func (a *admission) Decide(r appliance.Record, past journal.Past) (err error) {
	if err := a.decide(r, past); err != nil {
		return err
	}
	return a.stillApproved(r)
}

func (a *admission) decide(r appliance.Record, past journal.Past) (err error) {
	if err := a.attestor.stopped(); err != nil {
		return err
	}
	a.second, err = a.policy.Decide(r, past)
	return err
}

// early evaluates the condition before the HSM signs, so that a refused request costs no signature. It skips the
// second-beneficiary lookup if the policy only warns.
func (a *admission) early(ctx context.Context, r appliance.Record) (err error) {
	r.Time = a.attestor.Now()
	q := a.Asks(r)
	if a.policy == nil {
		return nil
	}
	if a.policy.SecondBeneficiary == policy.WarnOfSecond {
		q.Unspendable = nil
	}
	var past journal.Past
	if !q.Empty() {
		if past, err = a.attestor.Journal.Past(ctx, q); err != nil {
			return err
		}
	}
	return a.decide(r, past)
}

// approve returns the id of the people's approval, nil if the policy demands no approval. If a demanded approval is
// missing, the error says so, and people are asked.
func (a *admission) approve(ctx context.Context, call appliance.Call) (*uuid.UUID, error) {
	if a.policy == nil || len(a.policy.Approvals) == 0 {
		return nil, nil
	}
	if a.attestor.Approvals == nil {
		return nil, appliance.Errorf(appliance.CodeInternal, "this appliance cannot ask for approvals")
	}
	var err error
	a.approval, a.known, err = a.attestor.Approvals.Admit(ctx, call, a.policy.Approvals)
	if err != nil || a.approval == nil {
		return nil, err
	}
	return &a.approval.ID, nil
}

// stillApproved checks the approval at the time of the record, by the policy that is in force then.
func (a *admission) stillApproved(r appliance.Record) error {
	if a.approval != nil && !r.Time.Before(a.approval.Expires) {
		return a.approval.Refusal(approval.Expired, 0)
	}
	if a.policy == nil || len(a.policy.Approvals) == 0 {
		return nil
	}
	rule := policy.Demanded(a.policy.Approvals, policy.Facts{KeyID: r.KeyID, KeyName: a.keyName, Time: r.Time,
		NewBeneficiary: !a.known})
	if rule == nil || a.approval != nil && a.approval.Satisfies(*rule) {
		return nil
	}
	e := appliance.Errorf(appliance.CodeOverloaded,
		"the policy's demand for approvals changed during the request; repeat it")
	e.RetryAfter = time.Second
	return e
}
