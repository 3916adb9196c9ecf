package wire

import (
	"encoding/json"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/follower"
	"github.com/attestd/attestd/appliance/sinks"
)

// Key is an API key without the hash of its secret.
type Key struct {
	appliance.APIKey
	SecretHash struct{} `json:"secretHash,omitzero"` // shadows the one of APIKey, and is never written
}

// NewKey returns k as it goes over the wire.
func NewKey(k appliance.APIKey) Key { return Key{APIKey: k} }

// CreatedKey is the answer of POST /keys, whose body is an appliance.KeyRequest.
type CreatedKey struct {
	Key   Key    `json:"key"`
	Token string `json:"token"` // cannot be shown again
}

// BindKey is the body of POST /keys/{id}/bind.
type BindKey struct {
	Attestor string `json:"attestor"` // name of the attestor key; empty for the default one
}

// ChangedKey is the answer of POST /keys/{id}/revoke and POST /keys/{id}/bind.
type ChangedKey struct {
	Key Key `json:"key"`
}

// Keys is the answer of GET /keys: the oldest first.
type Keys struct {
	Keys []Key `json:"keys"`
}

// KeyUse is the answer of GET /keys/use: how many attestations API keys have had signed in the past day, since the daemon started.
type KeyUse struct {
	StepSeconds int64               `json:"stepSeconds"`
	Until       time.Time           `json:"until"` // the end of the newest step
	Keys        map[string][]uint32 `json:"keys"`  // by id, the oldest step first; keys that were not used are left out
}

// Entry is an entry of the journal with its leaf, and the answer of GET /log/records/{id}.
type Entry struct {
	appliance.Entry
	Record record `json:"record,omitzero"` // shadows the one of appliance.Entry
	Leaf   []byte `json:"leaf"`            // base64; appliance.Entry leaves it out
}

// record is an appliance.Record of which may be left out what Entry.WithoutAddresses takes away.
type record struct {
	appliance.Record
	UnspendableAddress appliance.Address   `json:"unspendableAddress,omitzero"`
	Beneficiary        appliance.Address   `json:"beneficiary,omitzero"`
	Hash               appliance.Digest    `json:"hash,omitzero"`
	Signature          appliance.Signature `json:"signature,omitzero"`
}

// NewEntry returns e as it goes over the wire.
func NewEntry(e appliance.Entry) Entry {
	return Entry{e, record{e.Record, e.Record.UnspendableAddress, e.Record.Beneficiary, e.Record.Hash, e.Record.Signature}, e.Leaf}
}

// Whole returns the entry as the domain has it, with Leaf.
func (e Entry) Whole() appliance.Entry {
	e.Entry.Record, e.Entry.Leaf = e.Record.Record, e.Leaf
	r := &e.Entry.Record
	r.UnspendableAddress, r.Beneficiary, r.Hash, r.Signature = e.Record.UnspendableAddress, e.Record.Beneficiary, e.Record.Hash, e.Record.Signature
	return e.Entry
}

// Records is the answer of GET /log/records: the newest first.
type Records struct {
	Records []Entry `json:"records"`
}

// ProvenEntry is the answer of GET /log/records/{id}/proof.
type ProvenEntry struct {
	Entry
	Proof appliance.InclusionProof `json:"proof"`
}

// LogKey is the answer of GET /log/key.
type LogKey struct {
	VerifierKey string `json:"verifierKey"` // C2SP signed-note vkey
}

// VerifyLog is the body of POST /log/verify. The answer is lines of Progress[appliance.AuditReport].
type VerifyLog struct {
	Earlier []byte              `json:"earlier,omitempty"` // a checkpoint that the log must be consistent with; empty checks none
	Signers []appliance.Address `json:"signers,omitempty"` // who may have signed; none means the appliance's own keys, and those its events name
}

// Progress is a line of an answer that takes long. The last line has a report or a problem, the others how far it is.
type Progress[Report any] struct {
	Done    int64    `json:"done,omitempty"`
	Total   int64    `json:"total,omitempty"`
	Report  *Report  `json:"report,omitempty"`
	Problem *Problem `json:"problem,omitempty"`
}

// Reloaded is the answer of POST /reload.
type Reloaded struct {
	NeedRestart []string `json:"needRestart"` // settings that changed and take effect with the next start
}

// ReplicaStatus is the answer of GET /replica and POST /replica/sync: what the replica holds, and how far its follower is.
type ReplicaStatus struct {
	index.Status
	Follower *follower.Status `json:"follower,omitempty"` // nil where the replica follows no upstream
}

// Unverified is the answer of GET /replica/unverified: the rows that are kept apart, by kind and key.
type Unverified struct {
	Rows  []follower.Doubt `json:"rows"`
	Total int              `json:"total"` // of them, those beyond the limit included
}

// ReplicaLag is the answer of GET /replica/lag: by how much the replica was behind its upstream in the past hour, since the daemon started.
type ReplicaLag struct {
	StepSeconds int64      `json:"stepSeconds"`
	Until       time.Time  `json:"until,omitzero"` // the newest step
	LagSeconds  []*float64 `json:"lagSeconds"`     // the oldest step first; null where it was not known
}

// VerifyReplica is the body of POST /replica/verify. The answer is lines of Progress[follower.Report].
type VerifyReplica struct {
	Sample int `json:"sample,omitempty"` // rows of each kind; zero means follower.DefaultSample
}

// Position is the answer of GET /replica/position?name=: how far the import of that name has come.
type Position struct {
	Position string `json:"position"`
	Found    bool   `json:"found"`
}

// Batch is the body of POST /replica/batches, whose answer is an index.Written: an index.Batch with its rows in
// JSON, as an export has them.
type Batch struct {
	Rows      []json.RawMessage `json:"rows"`
	Positions map[string]string `json:"positions,omitempty"`
	Index     string            `json:"index,omitempty"` // see index.Batch
}

// Cluster is the answer of GET /cluster: the appliances that share a store, and what they share.
type Cluster struct {
	Members  []Member        `json:"members"` // by name
	Database ClusterDatabase `json:"database"`
	Head     ClusterHead     `json:"head"`
}

// Member is an appliance as it last showed itself.
type Member struct {
	Name          string    `json:"name"`
	Version       string    `json:"version"`
	SignerAddress string    `json:"signerAddress"` // empty where it is not known
	Size          int64     `json:"size"`          // records of the head that it saw last
	LastSeen      time.Time `json:"lastSeen"`      // by the database's clock
}

// ClusterDatabase is where the journal is.
type ClusterDatabase struct {
	Primary     string `json:"primary"`     // host:port, or the folder of its socket
	Synchronous bool   `json:"synchronous"` // a commit waits for a standby
}

// Sinks is the answer of GET /sinks: audit.sinks, in their order.
type Sinks struct {
	Sinks []sinks.Status `json:"sinks"`
}

// ClusterHead is how far the journal goes.
type ClusterHead struct {
	Size     int64  `json:"size"`
	RootHash string `json:"rootHash"` // hex
}

// Pause is the body of POST /pause. The answers of it, of POST /resume and of GET /stop are a stop.State: what is in effect, but for
// POST /resume, which answers with what it ended.
type Pause struct {
	Reason string `json:"reason"`
}
