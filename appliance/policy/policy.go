// Package policy is the operator's rules about which attestations are allowed, and reads them from a file. It accepts a
// file as a whole or not at all. Each unknown name and each invalid value is an error with its line.
package policy

import (
	"errors"
	"fmt"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
	"slices"
	"time"
)

// Policy is the operator's rules about which attestations are allowed. Nil allows everything. A policy in use is never
// modified.
//
// There are two kinds of rules. Rules about addresses apply to every answer, also to a replay under an Idempotency-Key.
// Rules about amounts, times and second beneficiaries apply to new attestations only.
type Policy struct {
	Version   string     // SHA-256 of the file, in hex; empty without a file
	Entries   int        // values in the file, such as addresses and caps
	Blank     bool       // the file has neither a value nor a comment
	Screening *Screening // may be nil

	Deny, Allow Sides               // a nil allow list allows everything
	Keys        map[string]KeyRules // by the API key's id

	Caps              []Cap // apply to each API key without caps of its own
	Zone              *time.Location
	Hours             Hours
	SecondBeneficiary SecondBeneficiary
	Approvals         []ApprovalRule // of those, the first that applies to a request
}

// Sides are address lists by role in a request.
type Sides struct{ Unspendable, Beneficiary AddressSet }

// AddressSet is a set of addresses.
type AddressSet map[appliance.Address]struct{}

func (s AddressSet) has(a appliance.Address) bool { _, found := s[a]; return found }

// allows reports whether an allow list permits the address. A nil list permits every address.
func (s AddressSet) allows(a appliance.Address) bool { return s == nil || s.has(a) }

// KeyRules is the part of a policy that applies to one API key.
type KeyRules struct {
	Beneficiaries AddressSet // the allowed beneficiaries; nil allows any
	Caps          []Cap      // replace Policy.Caps unless nil
}

// SecondBeneficiary is the treatment of a request for an unspendable address that was attested for another beneficiary
// before. The first attestation of an address is the one that counts.
type SecondBeneficiary string

// The treatments. The zero value is AllowSecond.
const (
	AllowSecond  SecondBeneficiary = "allow"
	WarnOfSecond SecondBeneficiary = "warn"
	RefuseSecond SecondBeneficiary = "refuse"
)

// CheckAddresses checks the rules about addresses. Its errors do not say which address is on which list, because the lists may be
// confidential.
func (p *Policy) CheckAddresses(keyID string, r appliance.Request) error {
	if p == nil {
		return nil
	}
	if err := p.Screening.check(r); err != nil {
		return err
	}
	switch {
	case p.Deny.Unspendable.has(r.UnspendableAddress), p.Deny.Beneficiary.has(r.Beneficiary):
		return appliance.Errorf(appliance.CodePolicyDeny, "this request is refused by a deny list of the policy")
	case !p.Allow.Unspendable.allows(r.UnspendableAddress), !p.Allow.Beneficiary.allows(r.Beneficiary):
		return appliance.Errorf(appliance.CodePolicyAllow, "this request is refused by an allow list of the policy")
	case !p.Keys[keyID].Beneficiaries.allows(r.Beneficiary):
		return appliance.Errorf(appliance.CodePolicyKey, "this API key is not allowed to attest this beneficiary")
	}
	return nil
}

// Asks returns the query for the facts that Decide needs in addition to the record.
func (p *Policy) Asks(r appliance.Record) (q journal.PastQuery) {
	if p == nil {
		return q
	}
	for _, c := range p.caps(r.KeyID) {
		begin, _ := c.Per.around(r.Time.In(p.zone()))
		q.KeyID, q.Since = r.KeyID, append(q.Since, begin)
	}
	if p.SecondBeneficiary == WarnOfSecond || p.SecondBeneficiary == RefuseSecond {
		unspendable := r.UnspendableAddress // copied, so that r escapes to the heap only if the policy asks for it
		q.Unspendable = &unspendable
	}
	return q
}

// Decide checks all rules for a new record, given the answer to Asks. If second is not nil, an operator is to be
// warned, and second is the first attestation of the address.
func (p *Policy) Decide(r appliance.Record, past journal.Past) (second *appliance.Record, err error) {
	if p == nil {
		return nil, nil
	}
	if err := p.CheckAddresses(r.KeyID, r.Request); err != nil {
		return nil, err
	}
	local := r.Time.In(p.zone())
	if err := p.Hours.check(local); err != nil && !p.approvedOutsideHours() {
		return nil, err
	}
	for i, c := range p.caps(r.KeyID) {
		if past.Counts[i] >= c.Count {
			_, end := c.Per.around(local)
			e := appliance.Errorf(appliance.CodePolicyCap,
				"this API key has reached its cap of %d attestations per %s", c.Count, c.Per)
			e.RetryAfter = max(time.Second, end.Sub(local))
			return nil, e
		}
	}
	if past.First == nil || past.First.Beneficiary == r.Beneficiary {
		return nil, nil
	}
	switch p.SecondBeneficiary {
	case RefuseSecond:
		return nil, appliance.Errorf(appliance.CodePolicySecond, "this unspendable address was already attested for another "+
			"beneficiary").Because(fmt.Errorf("by attestation %s", past.First.ID))
	case WarnOfSecond:
		return past.First, nil
	}
	return nil, nil
}

// caps returns the caps that apply to an API key.
func (p *Policy) caps(keyID string) []Cap {
	if p == nil {
		return nil
	}
	if own := p.Keys[keyID].Caps; own != nil {
		return own
	}
	return p.Caps
}

// approvedOutsideHours reports whether people may approve a request outside the hours.
func (p *Policy) approvedOutsideHours() bool {
	return slices.ContainsFunc(p.Approvals, func(r ApprovalRule) bool { return r.When == ApproveOutsideHours })
}

// ApprovalsDetail returns the rules as a detail of the policy's event, "" without rules.
func (p *Policy) ApprovalsDetail() (name, value string) {
	if p == nil {
		return DetailApprovals, ""
	}
	return DetailApprovals, EncodeApprovalRules(p.Approvals)
}

func (p *Policy) zone() *time.Location {
	if p.Zone == nil {
		return time.UTC
	}
	return p.Zone
}

// IsRefusal reports whether an error means that screening or the policy refused a request, here or at other members of
// the quorum.
func IsRefusal(err error) bool {
	switch appliance.CodeOf(err) {
	case appliance.CodeScreened, appliance.CodePolicyDeny, appliance.CodePolicyAllow, appliance.CodePolicyKey,
		appliance.CodePolicyHours, appliance.CodePolicyCap, appliance.CodePolicySecond,
		appliance.CodeQuorumRefused:
		return true
	}
	return aboutApproval(appliance.CodeOf(err))
}

// WaitsForPeople reports whether an error is about an approval, which has events of its own, or another member asks its
// people and a repeat may succeed.
func WaitsForPeople(err error) bool {
	e, _ := errors.AsType[*appliance.Error](err)
	return e != nil && (aboutApproval(e.Code) || e.RetryAfter > 0 && slices.ContainsFunc(e.Members,
		func(f appliance.MemberFailure) bool { return f.Code == appliance.CodeApprovalRequired }))
}

func aboutApproval(c appliance.Code) bool {
	switch c {
	case appliance.CodeApprovalRequired, appliance.CodeApprovalDenied, appliance.CodeApprovalExpired:
		return true
	}
	return false
}
