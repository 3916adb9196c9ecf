// Package wire defines the JSON bodies of the public API and of the admin socket, for the server (package api) and the
// client (package api/client). Types of package appliance, such as an attestation, are sent unchanged.
package wire

import (
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/attest"
	"github.com/attestd/attestd/appliance/journal"
)

// Problem is the body of every error (RFC 9457). Type is about:blank, so Title is the phrase of the status. Clients
// branch on Code.
type Problem struct {
	Type      string         `json:"type"`
	Title     string         `json:"title"`
	Status    int            `json:"status"`
	Detail    string         `json:"detail,omitempty"`
	Message   string         `json:"message,omitempty"` // same as Detail, for clients of the hosted service
	Code      appliance.Code `json:"code"`
	Field     string         `json:"field,omitempty"` // the invalid member of the request
	RequestID string         `json:"requestId,omitempty"`

	ApprovalID string `json:"approvalId,omitempty"` // of the codes that begin with approval_

	Members []appliance.MemberFailure `json:"members,omitempty"` // of a quorum, which did not sign
}

// Attestation is the answer of POST /functions/v1/attest.
type Attestation struct {
	appliance.Attestation
	Signatures []appliance.MemberSignature `json:"signatures,omitempty"` // of the members, if a quorum signed
}

// NewAttestation returns a record's attestation in its wire form.
func NewAttestation(r appliance.Record) Attestation {
	a := Attestation{Attestation: r.Answer()}
	if r.Quorum != nil {
		a.Signatures = r.Quorum.Signatures
	}
	return a
}

// ReadBack is the answer of GET /functions/v1/attest/{id}: an attestation, its request, and the proof that it is in the
// log.
type ReadBack struct {
	appliance.Attestation
	Signatures []appliance.MemberSignature `json:"signatures,omitempty"` // of the members, if a quorum signed
	appliance.Request
	Scheme string                  `json:"scheme"`
	Domain *appliance.EIP712Domain `json:"domain,omitempty"` // nil unless the scheme is EIP-712
	Time   time.Time               `json:"time"`
	Leaf   []byte                  `json:"leaf"` // the leaf that Proof proves; base64
	// Proof is omitted while the journal can issue no checkpoint.
	Proof journal.InclusionProof `json:"proof,omitzero"`
}

// Attestor is the answer of GET /functions/v1/attestor: the data for verifying attestations and the log.
type Attestor struct {
	SignerAddress appliance.Address       `json:"signerAddress"`
	PublicKey     string                  `json:"publicKey"` // 0x and 65 bytes in hex: SEC 1, uncompressed
	Scheme        appliance.SchemeName    `json:"scheme"`
	Domain        *appliance.EIP712Domain `json:"domain,omitempty"` // nil unless the scheme is EIP-712
	// all attestor keys, including the default key above
	Keys []AttestorKey `json:"keys"`
	Log  Log           `json:"log"`
}

// AttestorKey is a key that signs attestations.
type AttestorKey struct {
	Name          string                  `json:"name,omitempty"` // empty if the appliance has only one, unnamed key
	State         attest.AttestorKeyState `json:"state"`
	Default       bool                    `json:"default"` // signs for API keys without a binding
	SignerAddress appliance.Address       `json:"signerAddress"`
	// PublicKey is in the form of Attestor.PublicKey. It is empty until its token has been opened.
	PublicKey string `json:"publicKey,omitempty"`
}

// Log identifies the transparency log.
type Log struct {
	Origin      string `json:"origin"`
	VerifierKey string `json:"verifierKey"` // C2SP signed-note vkey
}

// Health is the answer of GET /healthz and GET /readyz.
type Health struct {
	Status  string                    `json:"status"`            // ok, unavailable or shutting down
	Failing map[string]appliance.Code `json:"failing,omitempty"` // by part: hsm, journal, stop, replica, chain
}

// Landing is the answer of GET /: a description of the appliance for visitors.
type Landing struct {
	Name            string                    `json:"name"` // the log's origin
	Ready           bool                      `json:"ready"`
	Failing         map[string]appliance.Code `json:"failing,omitempty"` // see Health
	SignerAddress   appliance.Address         `json:"signerAddress"`
	Scheme          appliance.SchemeName      `json:"scheme"`
	Checkpoint      *LandingCheckpoint        `json:"checkpoint"`      // null if no checkpoint can be published
	LastAttestation *LastAttestation          `json:"lastAttestation"` // null if none exists
	Links           LandingLinks              `json:"links"`
}

// LandingCheckpoint is the content of the published checkpoint.
type LandingCheckpoint struct {
	Size     int64  `json:"size"`
	RootHash string `json:"rootHash"` // hex
}

// LastAttestation is the newest attestation that the published checkpoint covers, and the answer of GET /log/proof. It
// contains only hashes.
type LastAttestation struct {
	Index    int64    `json:"index"`
	TreeSize int64    `json:"treeSize"`
	LeafHash string   `json:"leafHash"` // hex: SHA-256(0x00 ‖ leaf)
	RootHash string   `json:"rootHash"` // hex
	Path     []string `json:"path"`     // hex, from the leaf's sibling up (RFC 6962, section 2.1.1)

	Checkpoint string `json:"checkpoint"` // signs the root (C2SP tlog-checkpoint)
	Proof      string `json:"proof"`      // path of GET /log/proof
}

// LandingLinks are the other pages of the appliance. Empty links do not exist.
type LandingLinks struct {
	Playground string `json:"playground,omitempty"`
	Reference  string `json:"reference"`
	OpenAPI    string `json:"openapi"`
	Checkpoint string `json:"checkpoint"`
	Console    string `json:"console,omitempty"`
}
