package wire

import (
	"github.com/attestd/attestd/appliance/approval"
)

// Approvals is the answer of GET /approvals, newest first.
type Approvals struct {
	Approvals []approval.Listed `json:"approvals"`
}

// Approvers is the answer of GET /approvers.
type Approvers struct {
	Approvers []approval.Approver `json:"approvers"`
}

// Enrolment is the body of POST /approvers: a new passkey of a person.
type Enrolment struct {
	Name       string `json:"name"`
	Credential string `json:"credential"` // base64url
	PublicKey  []byte `json:"publicKey"`  // SubjectPublicKeyInfo, base64
	RPID       string `json:"rpId"`       // host name of the page that made it
}

// ApproverName is the body of POST /approvers/remove.
type ApproverName struct {
	Name string `json:"name"`
}
