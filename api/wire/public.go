// Package wire has the JSON bodies of the public API and of the admin socket, for the server (package api) and the client
// (package api/client). What package appliance defines, such as an attestation, goes over the wire as it is.
package wire

import (
	"time"

	"github.com/attestd/attestd/appliance"
)

// Problem is the body of every error (RFC 9457). Type is about:blank, so Title is the phrase of the status. Clients
// branch on Code.
type Problem struct {
	Type      string         `json:"type"`
	Title     string         `json:"title"`
	Status    int            `json:"status"`
	Detail    string         `json:"detail,omitempty"`
	Message   string         `json:"message,omitempty"` // Detail again, for clients of the hosted service
	Code      appliance.Code `json:"code"`
	Field     string         `json:"field,omitempty"` // the member of the request that is at fault
	RequestID string         `json:"requestId,omitempty"`
}

// ReadBack is the answer of GET /functions/v1/attest/{id}: an attestation, what it was made from, and the proof that it
// is in the log.
type ReadBack struct {
	appliance.Attestation
	appliance.Request
	Scheme string                   `json:"scheme"`
	Domain *appliance.EIP712Domain  `json:"domain,omitempty"` // nil unless the scheme is EIP-712
	Time   time.Time                `json:"time"`
	Leaf   []byte                   `json:"leaf"`           // what Proof proves; base64
	Proof  appliance.InclusionProof `json:"proof,omitzero"` // none while no checkpoint may be given out
}

// Attestor is the answer of GET /functions/v1/attestor: what it takes to check attestations and the log.
type Attestor struct {
	SignerAddress appliance.Address       `json:"signerAddress"`
	PublicKey     string                  `json:"publicKey"` // 0x and 65 bytes in hex: SEC 1, uncompressed
	Scheme        appliance.SchemeName    `json:"scheme"`
	Domain        *appliance.EIP712Domain `json:"domain,omitempty"` // nil unless the scheme is EIP-712
	Keys          []AttestorKey           `json:"keys"`             // all that sign, of which one is the one above
	Log           Log                     `json:"log"`
}

// AttestorKey is a key that signs attestations.
type AttestorKey struct {
	Name          string                     `json:"name,omitempty"` // empty where the appliance has one key, which has no name
	State         appliance.AttestorKeyState `json:"state"`
	Default       bool                       `json:"default"` // it signs for API keys that are bound to none
	SignerAddress appliance.Address          `json:"signerAddress"`
	PublicKey     string                     `json:"publicKey,omitempty"` // as Attestor's; empty while its token has not been opened
}

// Log identifies the transparency log.
type Log struct {
	Origin      string `json:"origin"`
	VerifierKey string `json:"verifierKey"` // C2SP signed-note
}

// Health is the answer of GET /healthz and GET /readyz.
type Health struct {
	Status  string                    `json:"status"`            // ok, unavailable or shutting down
	Failing map[string]appliance.Code `json:"failing,omitempty"` // by part: hsm, journal, stop, replica
}

// Landing is the answer of GET /: what an appliance is, for who comes to its address.
type Landing struct {
	Name            string                    `json:"name"` // the log's
	Ready           bool                      `json:"ready"`
	Failing         map[string]appliance.Code `json:"failing,omitempty"` // as Health has it
	SignerAddress   appliance.Address         `json:"signerAddress"`
	Scheme          appliance.SchemeName      `json:"scheme"`
	Checkpoint      *LandingCheckpoint        `json:"checkpoint"`      // null while none can be given out
	LastAttestation *LastAttestation          `json:"lastAttestation"` // null where there is none
	Links           LandingLinks              `json:"links"`
}

// LandingCheckpoint is what the published checkpoint says.
type LandingCheckpoint struct {
	Size     int64  `json:"size"`
	RootHash string `json:"rootHash"` // hex
}

// LastAttestation is the newest attestation that the published checkpoint covers, and the answer of GET /log/proof: the hashes alone.
type LastAttestation struct {
	Index    int64    `json:"index"`
	TreeSize int64    `json:"treeSize"`
	LeafHash string   `json:"leafHash"` // hex: SHA-256(0x00 ‖ leaf)
	RootHash string   `json:"rootHash"` // hex
	Path     []string `json:"path"`     // hex, from the leaf's sibling up (RFC 6962, section 2.1.1)

	Checkpoint string `json:"checkpoint"` // that has signed the root (C2SP tlog-checkpoint)
	Proof      string `json:"proof"`      // path of GET /log/proof
}

// LandingLinks are where else to go. Those that are empty are not there.
type LandingLinks struct {
	Playground string `json:"playground,omitempty"`
	Reference  string `json:"reference"`
	OpenAPI    string `json:"openapi"`
	Checkpoint string `json:"checkpoint"`
	Console    string `json:"console,omitempty"`
}
