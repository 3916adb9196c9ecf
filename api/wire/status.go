package wire

import (
	"time"

	"github.com/attestd/attestd/appliance"
)

// Status is the answer of GET /status: all of the daemon at a glance. It costs the HSM nothing.
type Status struct {
	Version       string               `json:"version"`
	Started       time.Time            `json:"started"`
	UptimeSeconds int64                `json:"uptimeSeconds"`
	SignerAddress appliance.Address    `json:"signerAddress"` // of the default key
	Keys          []AttestorKey        `json:"keys"`
	Scheme        appliance.SchemeName `json:"scheme"`
	TreeSize      int64                `json:"treeSize"`
	Ready         bool                 `json:"ready"`             // as GET /readyz has it: reads, too, can be relied on
	Failing       map[string]string    `json:"failing,omitempty"` // the error of each part that fails: hsm, journal, stop, replica, chain; and of each other key, which Ready does not depend on: key NAME

	Signing Signing       `json:"signing"`
	Journal JournalStatus `json:"journal"`
	Reads   ReadsStatus   `json:"reads"`
	Surroundings
}

// Signing says whether an attestation can be had.
type Signing struct {
	State  SigningState `json:"state"`
	Why    string       `json:"why,omitempty"`    // not while it is ready
	Remedy string       `json:"remedy,omitempty"` // the command to type next; not while it is ready
}

// SigningState is whether attestations are signed.
type SigningState string

// The states of signing.
const (
	SigningReady   SigningState = "ready"
	SigningPaused  SigningState = "paused"  // by an operator
	SigningHalted  SigningState = "halted"  // by the watchtower
	SigningFailing SigningState = "failing" // the HSM or the journal fails

	// SigningNotRunning is what the command has where there is no daemon to ask.
	SigningNotRunning SigningState = "not_running"
)

// JournalStatus is how far the journal goes.
type JournalStatus struct {
	Records   int64     `json:"records"`            // of the newest checkpoint
	RootHash  string    `json:"rootHash,omitempty"` // of the same, hex; empty while none can be had
	Newest    time.Time `json:"newest,omitzero"`    // of the newest record
	LastAudit *Audit    `json:"lastAudit"`          // the last one that the daemon has made; null since its start
}

// Audit is how an audit of the whole journal ended.
type Audit struct {
	Time     time.Time `json:"time"` // of its end
	Records  int64     `json:"records"`
	RootHash string    `json:"rootHash"` // hex
	Damages  int64     `json:"damages"`  // 0: it is whole
}

// ReadsStatus is what answers queries.
type ReadsStatus struct {
	Source   string         `json:"source"`             // replica, proxy or off, as graphql.source
	Upstream string         `json:"upstream,omitempty"` // without what may be secret; empty where there is none
	Replica  *ReplicaStatus `json:"replica,omitempty"`  // nil where there is none, or none can be read
}

// Surroundings are what a daemon knows of itself beyond its admin socket. Parts that are nil are not known.
type Surroundings struct {
	API     string   `json:"api,omitempty"`     // its address, as a URL
	Console string   `json:"console,omitempty"` // likewise; empty where there is none
	HSM     *HSMUse  `json:"hsm,omitempty"`
	Machine *Machine `json:"machine,omitempty"`
}

// HSMUse is how the default key's HSM is used.
type HSMUse struct {
	Ready           bool   `json:"ready"` // no fault is known
	SessionsInUse   int    `json:"sessionsInUse"`
	Sessions        int    `json:"sessions"`     // that are open
	MostSessions    int    `json:"mostSessions"` // that are ever opened
	Signatures      uint64 `json:"signatures"`   // since the start
	WrongSignatures uint64 `json:"wrongSignatures"`
	Waiting         int    `json:"waiting"` // attestations that wait for their turn
}

// Machine is what the daemon runs on.
type Machine struct {
	Disk        *Disk        `json:"disk,omitempty"`
	Clock       Clock        `json:"clock"`
	Certificate *Certificate `json:"certificate,omitempty"` // nil where the API is plain HTTP
}

// Disk is the one that data_dir is on, in bytes.
type Disk struct {
	Path  string `json:"path"`
	Free  int64  `json:"freeBytes"`
	Total int64  `json:"totalBytes"`
	Least int64  `json:"leastBytes"` // below which nothing is signed: journal.min_free
}

// Clock is the machine's.
type Clock struct {
	Time         time.Time `json:"time"`
	Synchronised *bool     `json:"synchronised"` // null where the kernel does not say
}

// Certificate is that of the API.
type Certificate struct {
	Ends time.Time `json:"ends"`
	Days int       `json:"days"` // until then; negative where it has ended
}

// Sample is what happened within a second.
type Sample struct {
	Time         time.Time                `json:"time"` // when the second ended
	Attestations int64                    `json:"attestations"`
	P50Seconds   *float64                 `json:"p50Seconds"` // of requests for attestations, refused ones too; null where there was none
	P99Seconds   *float64                 `json:"p99Seconds"`
	Errors       map[appliance.Code]int64 `json:"errors,omitempty"` // problems answered, on all routes
	Reads        int64                    `json:"reads"`            // GraphQL requests
	InUse        int                      `json:"sessionsInUse"`    // sessions of the HSM inside a call
	Keys         map[string]int64         `json:"keys,omitempty"`   // attestations by API key: of those that had most
}
