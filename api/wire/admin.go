package wire

import (
	"crypto/sha256"
	"encoding/json"
	"strings"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/follower"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/sinks"
)

// Key is an API key without the hash of its secret.
type Key struct {
	appliance.APIKey
	SecretHash struct{} `json:"secretHash,omitzero"` // shadows APIKey's field, and is never written
}

// NewKey returns k in its wire form.
func NewKey(k appliance.APIKey) Key { return Key{APIKey: k} }

// CreatedKey is the answer of POST /keys. The body of the request is an appliance.KeyRequest.
type CreatedKey struct {
	Key   Key    `json:"key"`
	Token string `json:"token"` // cannot be retrieved again
}

// BindKey is the body of POST /keys/{id}/bind.
type BindKey struct {
	Attestor string `json:"attestor"` // name of the attestor key; empty for the default key
}

// ChangedKey is the answer of POST /keys/{id}/revoke and POST /keys/{id}/bind.
type ChangedKey struct {
	Key Key `json:"key"`
}

// Keys is the answer of GET /keys, oldest first.
type Keys struct {
	Keys []Key `json:"keys"`
}

// KeyUse is the answer of GET /keys/use: the number of attestations signed for each API key in the past day, since the
// daemon started.
type KeyUse struct {
	StepSeconds int64               `json:"stepSeconds"`
	Until       time.Time           `json:"until"` // end of the newest step
	Keys        map[string][]uint32 `json:"keys"`  // by key id, oldest step first; unused keys are omitted
}

// Entry is an entry of the journal with its leaf, and the answer of GET /log/records/{id}.
type Entry struct {
	journal.Entry
	Record record `json:"record,omitzero"` // shadows journal.Entry's field
	Leaf   []byte `json:"leaf"`            // base64; journal.Entry's JSON omits it
}

// record is an appliance.Record that can omit the fields that Entry.WithoutAddresses removes.
type record struct {
	appliance.Record
	UnspendableAddress appliance.Address   `json:"unspendableAddress,omitzero"`
	Beneficiary        appliance.Address   `json:"beneficiary,omitzero"`
	Hash               appliance.Digest    `json:"hash,omitzero"`
	Signature          appliance.Signature `json:"signature,omitzero"`
}

// NewEntry returns e in its wire form.
func NewEntry(e journal.Entry) Entry {
	return Entry{e,
		record{e.Record, e.Record.UnspendableAddress, e.Record.Beneficiary, e.Record.Hash, e.Record.Signature}, e.Leaf}
}

// Whole returns the journal.Entry, including Leaf.
func (e Entry) Whole() journal.Entry {
	e.Entry.Record, e.Entry.Leaf = e.Record.Record, e.Leaf
	r := &e.Entry.Record
	r.UnspendableAddress, r.Beneficiary, r.Hash, r.Signature = e.Record.UnspendableAddress, e.Record.Beneficiary,
		e.Record.Hash, e.Record.Signature
	return e.Entry
}

// Records is the answer of GET /log/records, newest first.
type Records struct {
	Records []Entry `json:"records"`
}

// ProvenEntry is the answer of GET /log/records/{id}/proof.
type ProvenEntry struct {
	Entry
	Proof journal.InclusionProof `json:"proof"`
}

// LogKey is the answer of GET /log/key.
type LogKey struct {
	VerifierKey string `json:"verifierKey"` // C2SP signed-note vkey
}

// VerifyLog is the body of POST /log/verify. The answer is lines of Progress[audit.Report].
type VerifyLog struct {
	// Earlier is a checkpoint that the log must be consistent with. It may be empty.
	Earlier []byte `json:"earlier,omitempty"`
	// Signers may have signed attestations. Empty means the appliance's own keys, and the keys that its events name.
	Signers []appliance.Address `json:"signers,omitempty"`
}

// MakeReport is the body of POST /log/report. The answer is lines of Progress[report.Signed].
type MakeReport struct {
	From  time.Time `json:"from"`
	Until time.Time `json:"until,omitzero"` // exclusive; omitted: now
}

// Progress is a line of a streamed answer. The last line has a report or a problem, the others show the progress.
type Progress[Report any] struct {
	Done    int64    `json:"done,omitempty"`
	Total   int64    `json:"total,omitempty"`
	Report  *Report  `json:"report,omitempty"`
	Problem *Problem `json:"problem,omitempty"`
}

// Reloaded is the answer of POST /reload.
type Reloaded struct {
	NeedRestart []string `json:"needRestart"` // changed settings that take effect at the next start
}

// ReplicaStatus is the answer of GET /replica and POST /replica/sync: the replica's contents, and its follower's
// progress.
type ReplicaStatus struct {
	index.Status
	Follower *follower.Status `json:"follower,omitempty"` // nil if the replica follows no upstream
}

// Unverified is the answer of GET /replica/unverified: the quarantined rows, by kind and key.
type Unverified struct {
	Rows  []follower.Quarantined `json:"rows"`
	Total int                    `json:"total"` // number of quarantined rows, including those beyond the limit
}

// ReplicaLag is the answer of GET /replica/lag: the replica's lag behind its upstream in the past hour, since the
// daemon started.
type ReplicaLag struct {
	StepSeconds int64      `json:"stepSeconds"`
	Until       time.Time  `json:"until,omitzero"` // time of the newest step
	LagSeconds  []*float64 `json:"lagSeconds"`     // oldest step first; null if unknown
}

// VerifyReplica is the body of POST /replica/verify. The answer is lines of Progress[follower.Report].
type VerifyReplica struct {
	Sample int `json:"sample,omitempty"` // rows of each kind; zero means follower.DefaultSample
}

// Position is the answer of GET /replica/position?name=: the progress of the import with that name.
type Position struct {
	Position string `json:"position"`
	Found    bool   `json:"found"`
}

// Batch is the body of POST /replica/batches: an index.Batch with its rows in the JSON of an export. The answer is an
// index.Written.
type Batch struct {
	Rows      []json.RawMessage `json:"rows"`
	Positions map[string]string `json:"positions,omitempty"`
	Index     string            `json:"index,omitempty"` // see index.Batch
}

// Cluster is the answer of GET /cluster: the appliances that share a store, and the state of that store.
type Cluster struct {
	Members     []Member          `json:"members"`     // by name
	Differences []Difference      `json:"differences"` // between members that were seen in the last 10 s
	Database    ClusterDatabase   `json:"database"`
	Head        ClusterHead       `json:"head"`
	Failing     map[string]string `json:"failing,omitempty"` // why this appliance attests nothing: hsm, journal, stop
}

// Values of Difference.Of.
const (
	DifferentPolicy        = "policy"         // attestation.policy
	DifferentScreeningList = "screening_list" // attestation.screening_list
	DifferentScheme        = "scheme"         // attestation.scheme, attestation.eip712
	DifferentSigner        = "signer"         // the attestor key
	SharedName             = "name"           // two processes have the same cluster.name
)

// Difference is a setting that must be the same on all members and is not.
type Difference struct {
	Of     string           `json:"of"`
	Values []DifferentValue `json:"values"`
}

// Remedy returns what the operator does about the difference.
func (d Difference) Remedy() string {
	return map[string]string{
		DifferentPolicy:        "put the same attestation.policy on each appliance, then on each: attestd reload",
		DifferentScreeningList: "put the same attestation.screening_list on each appliance, then on each: attestd reload",
		DifferentScheme:        "set the same attestation.scheme and attestation.eip712 on each appliance, then on each: systemctl restart attestd",
		DifferentSigner:        "use the same attestor key in each appliance's HSM, and set the same hsm.address on each",
		SharedName:             "set a different cluster.name on each appliance, or stop the second attestd serve",
	}[d.Of]
}

// String says which members have which value.
func (d Difference) String() string {
	if d.Of == SharedName {
		return "name: two processes use " + d.Values[0].Value
	}
	var texts []string
	for _, v := range d.Values {
		value := v.Value
		if len(value) == 2*sha256.Size { // in hex
			value = value[:12] + "…"
		}
		texts = append(texts, value+" ("+strings.Join(v.Members, ", ")+")")
	}
	return d.Of + ": " + strings.Join(texts, ", ")
}

// DifferentValue is one value of a setting, and the names of the members that have it.
type DifferentValue struct {
	Value   string   `json:"value"`
	Members []string `json:"members"`
}

// Member is the last heartbeat of an appliance.
type Member struct {
	Name          string    `json:"name"`
	Version       string    `json:"version"`
	Instance      string    `json:"instance"`      // random, of the process
	SignerAddress string    `json:"signerAddress"` // empty if unknown
	Scheme        string    `json:"scheme"`        // digest scheme, with its EIP-712 domain
	Policy        string    `json:"policy"`        // SHA-256 of attestation.policy in effect; empty without
	ScreeningList string    `json:"screeningList"` // SHA-256 of attestation.screening_list in effect; empty without
	Size          int64     `json:"size"`          // records of the newest head that it has seen
	LastSeen      time.Time `json:"lastSeen"`      // by the database's clock
}

// ClusterDatabase is the database that holds the journal.
type ClusterDatabase struct {
	Primary     string `json:"primary"`     // host:port, or the directory of its socket
	Synchronous bool   `json:"synchronous"` // a commit waits for a standby, which may be away: see Cluster.Failing
}

// Sinks is the answer of GET /sinks: audit.sinks, in their order.
type Sinks struct {
	Sinks []sinks.Status `json:"sinks"`
}

// ClusterHead is the head of the journal.
type ClusterHead struct {
	Size     int64  `json:"size"`
	RootHash string `json:"rootHash"` // hex
}

// Pause is the body of POST /pause. POST /pause and GET /stop answer with the stop.State in effect. POST /resume
// answers with the stop.State that it ended.
type Pause struct {
	Reason string `json:"reason"`
}
