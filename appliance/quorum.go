package appliance

import (
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
)

// Quorum is the part of a record that several appliances signed, each with its own key. A contract (ERC-1271) accepts
// the signatures together; see package appliance/quorum.
type Quorum struct {
	Contract   Address           `json:"contract"`   // accepts Bytes for the record's hash
	Signatures []MemberSignature `json:"signatures"` // the record's own among them, in ascending order of their signers
}

// MemberSignature is a member's signature, and its record in that member's journal.
type MemberSignature struct {
	// name in the coordinator's configuration; of its own, the origin of its log
	Member        string    `json:"member"`
	SignerAddress Address   `json:"signerAddress"`
	ID            uuid.UUID `json:"id"` // of the record in the member's journal
	R             Digest    `json:"r"`
	S             Digest    `json:"s"`
	V             byte      `json:"v"`
}

// By returns an attestation as the signature of a member.
func (a Attestation) By(member string) MemberSignature {
	s := a.Signature
	return MemberSignature{Member: member, SignerAddress: a.SignerAddress, ID: a.ID, R: s.R, S: s.S, V: s.V}
}

// NewQuorum returns the quorum of signatures by different signers.
func NewQuorum(contract Address, signatures []MemberSignature) *Quorum {
	slices.SortFunc(signatures, func(a, b MemberSignature) int {
		return slices.Compare(a.SignerAddress[:], b.SignerAddress[:])
	})
	return &Quorum{Contract: contract, Signatures: signatures}
}

// joined returns the signatures for the contract, 65 bytes each; see Signature.Joined.
func (q *Quorum) joined() string {
	var b []byte
	for _, s := range q.Signatures {
		one := Signature{R: s.R, S: s.S, V: s.V}.Bytes()
		b = append(b, one[:]...)
	}
	return string(b)
}

// verify checks that each signature is its signer's, that no signer has two, and that a is one of them.
func (q *Quorum) verify(a Attestation) error {
	answer := a
	answer.Signature.Joined = q.joined()
	signers, err := answer.Signers()
	if err != nil {
		return err
	}
	own := false
	for i, s := range q.Signatures {
		if s.SignerAddress != signers[i] {
			return fmt.Errorf("signature %d of the quorum is by %s, not by %s", i+1, signers[i], s.SignerAddress)
		}
		own = own || s.SignerAddress == a.SignerAddress && s.ID == a.ID
	}
	if !own {
		return errors.New("the quorum does not have the record's own signature")
	}
	return nil
}

// Answer returns the attestation as a client gets it. If a quorum signed it, the signer is the contract, and the
// signature has all signatures for it.
func (r Record) Answer() Attestation {
	a := r.Attestation
	if r.Quorum != nil {
		a.SignerAddress, a.Signature.Joined = r.Quorum.Contract, r.Quorum.joined()
	}
	return a
}

// Signers recovers the signers: one, or with Signature.Joined the members of a quorum, in ascending order.
//
// Errors: a signature is malformed, a signer has two, or the order is wrong. A contract refuses such a signature.
func (a Attestation) Signers() (all []Address, err error) {
	for i, s := range a.Signature.parts() {
		signer, err := s.Recover(a.Hash)
		if err != nil {
			return nil, fmt.Errorf("signature %d: %w", i+1, err)
		}
		if i > 0 && slices.Compare(all[i-1][:], signer[:]) >= 0 {
			return nil,
				fmt.Errorf("signature %d, by %s, must be of a higher address than the one before it", i+1, signer)
		}
		all = append(all, signer)
	}
	return all, nil
}

// VerifyQuorum returns an error unless at least threshold members signed and every signer is a member.
func (a Attestation) VerifyQuorum(members []Address, threshold int) error {
	signers, err := a.Signers()
	if err != nil {
		return err
	}
	for _, s := range signers {
		if !slices.Contains(members, s) {
			return fmt.Errorf("signer %s is not a member of the quorum", s)
		}
	}
	if len(signers) < threshold {
		return fmt.Errorf("%d members signed, and at least %d must", len(signers), threshold)
	}
	return nil
}

// CosignRequest asks another member of a quorum for its signature.
type CosignRequest struct {
	Request
	Hash Digest // digest of Request, which the member computes itself and compares
	ID   string // identifies the request at the coordinator: a member signs once for it
}

// MemberFailure is why a member of a quorum did not sign.
type MemberFailure struct {
	Member string `json:"member"`
	Code   Code   `json:"code"`
}
