package appliance

import "context"

// admission is the Condition of an attestation: attesting is not stopped, and the policy allows the record. It uses the
// policy that is in force when the journal evaluates the condition.
type admission struct {
	attestor *Attestor
	policy   *Policy // loaded by the last Asks
	second   *Record // first attestation of the address, if the last Decide found that a warning is due
}

// Asks implements Condition.
func (a *admission) Asks(r Record) PastQuery {
	a.policy = a.attestor.policy.Load()
	return a.policy.asks(r)
}

// Decide implements Condition.
func (a *admission) Decide(r Record, past Past) (err error) {
	if err := a.attestor.stopped(); err != nil {
		return err
	}
	a.second, err = a.policy.decide(r, past)
	return err
}

// early evaluates the condition before the HSM signs, so that a refused request costs no signature. It skips the
// second-beneficiary lookup if the policy only warns.
func (a *admission) early(ctx context.Context, r Record) (err error) {
	r.Time = a.attestor.Now()
	q := a.Asks(r)
	if a.policy == nil {
		return nil
	}
	if a.policy.SecondBeneficiary == WarnOfSecond {
		q.Unspendable = nil
	}
	var past Past
	if !q.Empty() {
		if past, err = a.attestor.Journal.Past(ctx, q); err != nil {
			return err
		}
	}
	return a.Decide(r, past)
}
