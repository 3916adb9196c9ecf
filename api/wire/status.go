package wire

import (
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/health"
	"github.com/attestd/attestd/appliance/history"
)

// Status is the answer of GET /status: a summary of the daemon. It puts no load on the HSM.
type Status struct {
	Version       string               `json:"version"`
	Started       time.Time            `json:"started"`
	UptimeSeconds int64                `json:"uptimeSeconds"`
	SignerAddress appliance.Address    `json:"signerAddress"` // of the default key
	Keys          []AttestorKey        `json:"keys"`
	Scheme        appliance.SchemeName `json:"scheme"`
	TreeSize      int64                `json:"treeSize"`
	Ready         bool                 `json:"ready"` // like GET /readyz: includes the reliability of reads
	// Failing has the error of each failing part: hsm, journal, stop, replica, chain. It also has the errors of the
	// other attestor keys ("key NAME"), which Ready does not depend on.
	Failing map[string]string `json:"failing,omitempty"`
	// Checks rates each part that the daemon watches. attestd doctor, the console and the metric attestd_check_state
	// show the same findings.
	Checks []health.Finding `json:"checks,omitempty"`

	Signing Signing       `json:"signing"`
	Journal JournalStatus `json:"journal"`
	Reads   ReadsStatus   `json:"reads"`
	Surroundings
}

// Signing reports whether the appliance can attest.
type Signing struct {
	State  SigningState `json:"state"`
	Why    string       `json:"why,omitempty"`    // empty while ready
	Remedy string       `json:"remedy,omitempty"` // the operator's next command; empty while ready
}

// SigningState is whether attestations are signed.
type SigningState string

// The states of signing.
const (
	SigningReady   SigningState = "ready"
	SigningPaused  SigningState = "paused"  // by an operator
	SigningHalted  SigningState = "halted"  // by the watchtower
	SigningFailing SigningState = "failing" // the HSM or the journal fails

	// SigningNotRunning is the state that the command reports if no daemon runs.
	SigningNotRunning SigningState = "not_running"
)

// JournalStatus is the state of the journal.
type JournalStatus struct {
	Records   int64     `json:"records"`            // of the newest checkpoint
	RootHash  string    `json:"rootHash,omitempty"` // of the newest checkpoint, hex; empty if it cannot be read
	Newest    time.Time `json:"newest,omitzero"`    // time of the newest record
	LastAudit *Audit    `json:"lastAudit"`          // the daemon's last audit; null if none since its start
}

// Audit is the result of an audit of the whole journal.
type Audit struct {
	Time     time.Time `json:"time"` // end of the audit
	Records  int64     `json:"records"`
	RootHash string    `json:"rootHash"` // hex
	Damages  int64     `json:"damages"`  // 0 means that the journal is intact
}

// ReadsStatus describes the source of query answers.
type ReadsStatus struct {
	Source   string         `json:"source"`             // replica, proxy or off, like graphql.source
	Upstream string         `json:"upstream,omitempty"` // without secret parts; empty without an upstream
	Replica  *ReplicaStatus `json:"replica,omitempty"`  // nil without a replica, or if it cannot be read
}

// Surroundings describe the daemon's environment. Nil parts are unknown.
type Surroundings struct {
	API     string   `json:"api,omitempty"`     // URL of the API
	Console string   `json:"console,omitempty"` // URL of the console; empty without a console
	Store   string   `json:"store,omitempty"`   // database in use, without its password; or bolt:DATA_DIR
	HSM     *HSMUse  `json:"hsm,omitempty"`
	Machine *Machine `json:"machine,omitempty"`
}

// HSMUse is the use of the default key's HSM.
type HSMUse struct {
	Ready           bool   `json:"ready"` // no fault is known
	SessionsInUse   int    `json:"sessionsInUse"`
	Sessions        int    `json:"sessions"`     // open sessions
	MostSessions    int    `json:"mostSessions"` // maximum of open sessions
	Signatures      uint64 `json:"signatures"`   // since the start
	WrongSignatures uint64 `json:"wrongSignatures"`
	Waiting         int    `json:"waiting"` // queued attestations
}

// Machine describes the daemon's machine.
type Machine struct {
	Disk        *Disk        `json:"disk,omitempty"`
	Clock       Clock        `json:"clock"`
	Certificate *Certificate `json:"certificate,omitempty"` // nil if the API is plain HTTP
}

// Disk is the disk that holds data_dir, in bytes.
type Disk struct {
	Path  string `json:"path"`
	Free  int64  `json:"freeBytes"`
	Total int64  `json:"totalBytes"`
	Least int64  `json:"leastBytes"` // signing stops below this: journal.min_free
}

// Clock is the machine's clock.
type Clock struct {
	Time         time.Time `json:"time"`
	Synchronised *bool     `json:"synchronised"` // null if the kernel does not report it
}

// Certificate is the API's TLS certificate.
type Certificate struct {
	Ends time.Time `json:"ends"`
	Days int       `json:"days"` // days left; negative after expiry
}

// Sample is the activity within one second.
type Sample struct {
	Time         time.Time `json:"time"` // end of the second
	Attestations int64     `json:"attestations"`
	// P50Seconds and P99Seconds cover attestation requests, including refused ones. They are null without requests.
	P50Seconds *float64                 `json:"p50Seconds"`
	P99Seconds *float64                 `json:"p99Seconds"`
	Errors     map[appliance.Code]int64 `json:"errors,omitempty"` // answered problems, on all routes
	Refusals   int64                    `json:"refusals"`         // of the Errors, those with a status below 500
	Reads      int64                    `json:"reads"`            // GraphQL requests
	InUse      int                      `json:"sessionsInUse"`    // HSM sessions inside a call
	HSMSeconds *float64                 `json:"hsmSeconds"`       // mean latency of the HSM's signatures; null without any
	Keys       map[string]int64         `json:"keys,omitempty"`   // attestations by API key id, for the busiest keys
}

// History is the answer of GET /history: the work since From, in steps of a length.
type History struct {
	From        time.Time      `json:"from"`
	Until       time.Time      `json:"until"` // now
	StepSeconds int64          `json:"stepSeconds"`
	Steps       []history.Step `json:"steps"` // oldest first; without those in which attestd did not run
}
