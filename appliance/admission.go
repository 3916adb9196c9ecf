package appliance

import "context"

// admission is the Condition of an attestation: that nothing stops attesting, and that the policy allows it. The policy is the one of
// the moment in which the journal asks.
type admission struct {
	attestor *Attestor
	policy   *Policy // of the last Asks
	second   *Record // the attestation that is to be warned of, as the last Decide found
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

// early finds what Append would refuse before the HSM has signed it. It holds nothing up for what is only warned of.
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
