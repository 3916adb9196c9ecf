package appliance

import (
	"fmt"
	"time"
)

// Policy says what an operator lets be attested. Nil allows all. It is not changed once it is in use. Package appliance/policy reads it
// from a file.
//
// There are two kinds of rules. Those about whom hold for each answer, also for one that is given again for an Idempotency-Key. Those
// about how much and when, and the one about a second beneficiary, hold for new attestations only.
type Policy struct {
	Version   string     // SHA-256 of the file, in hex; empty where there is none
	Entries   int        // values in the file, such as addresses and caps
	Blank     bool       // the file has neither a value nor a comment
	Screening *Screening // nil screens nobody

	Deny, Allow Sides                // an allow list that is nil allows all
	Keys        map[string]KeyPolicy // by the API key's id

	Caps              []Cap // of each API key that has none of its own
	Zone              *time.Location
	Hours             Hours
	SecondBeneficiary SecondBeneficiary
}

// Sides are lists of addresses by what they are in a request.
type Sides struct{ Unspendable, Beneficiary AddressSet }

// AddressSet is a list of addresses.
type AddressSet map[Address]struct{}

func (s AddressSet) has(a Address) bool { _, found := s[a]; return found }

// allows says whether the list, as an allow list, has the address.
func (s AddressSet) allows(a Address) bool { return s == nil || s.has(a) }

// KeyPolicy is what holds for one API key.
type KeyPolicy struct {
	Beneficiaries AddressSet // the only ones; nil means any
	Caps          []Cap      // instead of Policy.Caps; nil means those
}

// SecondBeneficiary says what becomes of a request for an unspendable address that was attested for another beneficiary before. The first
// attestation of an address is the one that counts.
type SecondBeneficiary string

// What may become of it. The zero value is AllowSecond.
const (
	AllowSecond  SecondBeneficiary = "allow"
	WarnOfSecond SecondBeneficiary = "warn"
	RefuseSecond SecondBeneficiary = "refuse"
)

// whom checks the rules about the addresses. It does not say which address is on which list: the lists may be confidential.
func (p *Policy) whom(keyID string, r Request) error {
	if p == nil {
		return nil
	}
	if err := p.Screening.check(r); err != nil {
		return err
	}
	switch {
	case p.Deny.Unspendable.has(r.UnspendableAddress), p.Deny.Beneficiary.has(r.Beneficiary):
		return Errorf(CodePolicyDeny, "this request is refused by a deny list of the policy")
	case !p.Allow.Unspendable.allows(r.UnspendableAddress), !p.Allow.Beneficiary.allows(r.Beneficiary):
		return Errorf(CodePolicyAllow, "this request is refused by an allow list of the policy")
	case !p.Keys[keyID].Beneficiaries.allows(r.Beneficiary):
		return Errorf(CodePolicyKey, "this API key may not ask for this beneficiary")
	}
	return nil
}

// asks returns what decides on a record beside the record itself.
func (p *Policy) asks(r Record) (q PastQuery) {
	if p == nil {
		return q
	}
	for _, c := range p.caps(r.KeyID) {
		begin, _ := c.Per.around(r.Time.In(p.zone()))
		q.KeyID, q.Since = r.KeyID, append(q.Since, begin)
	}
	if p.SecondBeneficiary == WarnOfSecond || p.SecondBeneficiary == RefuseSecond {
		unspendable := r.UnspendableAddress // so that r stays where it is for who asks nothing
		q.Unspendable = &unspendable
	}
	return q
}

// decide checks all rules for a new record, given the answer to asks. second is the attestation of which an operator is to be warned.
func (p *Policy) decide(r Record, past Past) (second *Record, err error) {
	if p == nil {
		return nil, nil
	}
	if err := p.whom(r.KeyID, r.Request); err != nil {
		return nil, err
	}
	local := r.Time.In(p.zone())
	if err := p.Hours.check(local); err != nil {
		return nil, err
	}
	for i, c := range p.caps(r.KeyID) {
		if past.Counts[i] >= c.Count {
			_, end := c.Per.around(local)
			e := Errorf(CodePolicyCap, "this API key has reached its cap of %d attestations a %s", c.Count, c.Per)
			e.RetryAfter = max(time.Second, end.Sub(local))
			return nil, e
		}
	}
	if past.First == nil || past.First.Beneficiary == r.Beneficiary {
		return nil, nil
	}
	switch p.SecondBeneficiary {
	case RefuseSecond:
		return nil, Errorf(CodePolicySecond, "this unspendable address was attested for another beneficiary").Because(fmt.Errorf("by attestation %s", past.First.ID))
	case WarnOfSecond:
		return past.First, nil
	}
	return nil, nil
}

// caps are those of an API key.
func (p *Policy) caps(keyID string) []Cap {
	if p == nil {
		return nil
	}
	if own := p.Keys[keyID].Caps; own != nil {
		return own
	}
	return p.Caps
}

func (p *Policy) zone() *time.Location {
	if p.Zone == nil {
		return time.UTC
	}
	return p.Zone
}

// IsRefusal says whether an error is that a request was refused for what it asked: by screening or by the policy.
func IsRefusal(err error) bool {
	switch CodeOf(err) {
	case CodeScreened, CodePolicyDeny, CodePolicyAllow, CodePolicyKey, CodePolicyHours, CodePolicyCap, CodePolicySecond:
		return true
	}
	return false
}
