package appliance

import (
	"encoding/hex"
	"fmt"
	"time"

	"github.com/google/uuid"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// VerifyOptions are what an auditor brings along.
type VerifyOptions struct {
	// Earlier is a signed checkpoint that the auditor kept. The journal must still begin with exactly the
	// entries it had then. Nil means none.
	Earlier []byte
	// Signers are the attestor keys that may have signed. None means Own, and those that the journal's own events name.
	Signers []Address
	// Own are the attestor keys of the appliance that is asked.
	Own []Address
	// AnySigner reports signers that nobody knows, and takes them for no damage.
	AnySigner bool
	// Progress, if not nil, is called now and then with the number of leaves checked and their total.
	Progress func(done, total int64)
}

// Damage is one thing that is wrong with a journal.
type Damage struct {
	Index  int64     `json:"index"` // of the record at fault; -1 where it is not a record's
	ID     uuid.UUID `json:"id,omitzero"`
	Part   string    `json:"part"` // record, event, signature, signer, order, tree, checkpoint, lookup, page, api_key
	Detail string    `json:"detail"`
}

// String names the record and what is wrong with it.
func (d Damage) String() string {
	switch {
	case d.Index < 0:
		return fmt.Sprintf("%s: %s", d.Part, d.Detail)
	case d.ID == uuid.Nil:
		return fmt.Sprintf("record %d: %s: %s", d.Index, d.Part, d.Detail)
	}
	return fmt.Sprintf("record %d (%s): %s: %s", d.Index, d.ID, d.Part, d.Detail)
}

// HexBytes are bytes such as a hash of the tree, in JSON as hex digits.
type HexBytes []byte

// MarshalText returns the hex digits.
func (h HexBytes) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, h), nil }

// UnmarshalText reads hex digits.
func (h *HexBytes) UnmarshalText(text []byte) (err error) {
	*h, err = hex.AppendDecode(nil, text)
	return err
}

// AuditReport is what an audit found.
type AuditReport struct {
	Size    int64    `json:"size"`     // leaves checked
	Events  int64    `json:"events"`   // of them, those that are no attestations
	Root    HexBytes `json:"rootHash"` // as computed from them
	Damages []Damage `json:"damages"`  // at most MaxDamages
	More    int64    `json:"more"`     // damages beyond those listed

	Signers []AuditedSigner `json:"signers"` // in the order of their first records

	// Contradictions are by witnesses of this log. They are no damages: a witness that lies could cause them.
	Contradictions []Contradiction `json:"contradictions,omitempty"` // at most MaxDamages
}

// Contradiction is an event of an audited log: a witness has cosigned another history of the same log.
type Contradiction struct {
	Index   int64     `json:"index"` // of the event
	ID      uuid.UUID `json:"id"`
	Time    time.Time `json:"time"`
	Witness string    `json:"witness"` // its name in the appliance's policy
	Key     string    `json:"key"`     // the LogName of its key
	Reason  string    `json:"reason"`
}

// MaxDamages bounds an AuditReport: a journal that is rubbish throughout needs no longer list.
const MaxDamages = 1000

// OK says whether nothing is wrong.
func (r AuditReport) OK() bool { return len(r.Damages) == 0 }

// Audit checks a journal leaf by leaf, in order, wherever the leaves come from: each record's form, digest and
// signature, their order in time, and the tree that their hashes make. It keeps only the tree's right edge.
// It is not safe for concurrent use.
type Audit struct {
	verifier note.Verifier
	earlier  *tlog.Tree // nil where there is none, or it is an old log's
	foreign  []byte     // an earlier checkpoint of another log, until the leaf is found that continues that
	report   AuditReport
	frontier Frontier
	last     time.Time
	old      []oldLog // from which this one goes on, newest first
	signers  signers
	keys     auditedKeys

	completed []tlog.Hash // by the last Add
}

// NewAudit begins an audit of the verifier's log. With earlier, a signed checkpoint of it or of a log that it continues, the leaves of
// that log must also begin with that checkpoint's tree; the error, CodeInvalidField, says that earlier is no checkpoint.
func NewAudit(verifier note.Verifier, earlier []byte) (*Audit, error) {
	a := &Audit{verifier: verifier, keys: auditedKeys{byID: make(map[string]auditedKey)}}
	if earlier != nil {
		tree, err := OpenCheckpoint(earlier, verifier)
		switch other := SignerOf(earlier); {
		case err == nil:
			a.earlier = &tree
		case other != "" && other != LogName(verifier):
			a.foreign = earlier
		default:
			return nil, Errorf(CodeInvalidField, "%s", err).In("earlier")
		}
	}
	return a, nil
}

// Expect says who may have signed: of the options, those about signers. Without it, those may that the journal's events name.
func (a *Audit) Expect(opts VerifyOptions) { a.signers.opts = opts }

// Leaf checks the next leaf.
func (a *Audit) Leaf(leaf []byte) { a.Add(CheckLeaf(leaf)) }

// oldLog is a log whose leaves follow an EventLogContinued.
type oldLog struct {
	tree     tlog.Tree // as the event has it
	frontier Frontier  // of its leaves so far
	earlier  tlog.Tree // what an earlier checkpoint of it says; zero where there is none
}

// CheckedLeaf is a leaf whose own claims were checked. It is apart from Audit.Add because it takes nearly all of
// an audit's time and can be done for many leaves at once. Its Entry has no Index, and is zero where the leaf cannot be read.
type CheckedLeaf struct {
	Hash tlog.Hash
	Entry
	part  string
	fault error
}

// CheckLeaf checks what a leaf claims by itself.
func CheckLeaf(leaf []byte) CheckedLeaf {
	c := CheckedLeaf{Hash: tlog.RecordHash(leaf), part: "record"}
	if c.Entry, c.fault = DecodeEntry(0, leaf); c.fault != nil {
		return c
	}
	if c.Event != nil {
		c.part, c.fault = "event", c.Event.Verify()
		return c
	}
	c.part, c.fault = "signature", c.Record.Verify()
	return c
}

// LostLeaf stands for a leaf that cannot be read, so that an audit can go on after it: hash is what the tree has in
// its place, why is reported.
func LostLeaf(hash tlog.Hash, part string, why error) CheckedLeaf {
	return CheckedLeaf{Hash: hash, part: part, fault: why}
}

// Add puts the next leaf, checked already, into its place and returns the hashes of the subtrees that it completes,
// from its own up (see Frontier.Add). They are valid until the next call.
func (a *Audit) Add(c CheckedLeaf) []tlog.Hash {
	index := a.report.Size
	if c.fault != nil {
		a.Report(Damage{Index: index, ID: c.ID(), Part: c.part, Detail: c.fault.Error()})
	}
	if c.Event != nil {
		a.report.Events++
	}
	if c.fault == nil {
		a.signers.add(index, c.Entry)
		a.keys.add(c.Event)
		a.contradicted(index, c.Event)
	}
	a.order(index, c)
	a.continued(index, c)
	a.completed = a.frontier.Add(a.completed[:0], c.Hash)
	a.report.Size++
	if a.earlier != nil && a.report.Size == a.earlier.N && a.frontier.Tree() != *a.earlier {
		a.Report(Damage{Index: -1, Part: "checkpoint", Detail: fmt.Sprintf("the first %d records are not those of the earlier checkpoint", a.earlier.N)})
	}
	return a.completed
}

// contradicted collects the contradictions of this log. Those of a log that it continues are settled: the log has ended.
func (a *Audit) contradicted(index int64, e *Event) {
	if e == nil || e.Kind != EventContradiction || len(a.report.Contradictions) == MaxDamages ||
		SignerOf([]byte(e.Details[DetailCheckpoint])) != LogName(a.verifier) {
		return
	}
	a.report.Contradictions = append(a.report.Contradictions, Contradiction{
		Index: index, ID: e.ID, Time: e.Time, Witness: e.Details[DetailWitness],
		Key: e.Details[DetailWitnessKey], Reason: e.Details[DetailReason],
	})
}

// order checks that times never decrease. That of an EventLogContinued stands before the leaves that were there when it was made.
func (a *Audit) order(index int64, c CheckedLeaf) {
	switch {
	case c.Time().IsZero(): // not readable, and reported as such
	case c.Event != nil && c.Event.Kind == EventLogContinued:
	case c.Time().Before(a.last):
		a.Report(Damage{Index: index, ID: c.ID(), Part: "order", Detail: "is earlier than the record before it"})
	default:
		a.last = c.Time()
	}
}

// continued checks that the leaves behind an EventLogContinued are those of the old log. There may be several, one for each time
// that a log went on from another, before all else.
func (a *Audit) continued(index int64, c CheckedLeaf) {
	for i := range a.old {
		o := &a.old[i]
		if o.frontier.Size() == o.tree.N {
			continue
		}
		o.frontier.Add(nil, c.Hash)
		if o.frontier.Size() == o.tree.N && o.frontier.Tree() != o.tree {
			a.Report(Damage{Index: int64(i), Part: "tree", Detail: fmt.Sprintf("the %d records behind it are not those of the old log's checkpoint that it has", o.tree.N)})
		}
		if o.frontier.Size() == o.earlier.N && o.frontier.Tree() != o.earlier {
			a.Report(Damage{Index: -1, Part: "checkpoint", Detail: fmt.Sprintf("the first %d records of the old log are not those of the earlier checkpoint", o.earlier.N)})
		}
	}
	if c.Event == nil || c.Event.Kind != EventLogContinued {
		return
	}
	if index != int64(len(a.old)) {
		a.Report(Damage{Index: index, ID: c.ID(), Part: "event", Detail: "only a log's first leaf can continue another log"})
		return
	}
	old, _ := c.Event.Continuation()
	tree, _ := old.Tree() // an error is the leaf's fault, which is reported
	a.old = append(a.old, oldLog{tree: tree, earlier: a.earlierOf(old, tree)})
}

// earlierOf is the tree of the earlier checkpoint where that is the old log's.
func (a *Audit) earlierOf(old Continuation, kept tlog.Tree) tlog.Tree {
	verifier, err := note.NewVerifier(old.Log)
	if a.foreign == nil || err != nil {
		return tlog.Tree{}
	}
	tree, err := OpenCheckpoint(a.foreign, verifier)
	if err != nil {
		return tlog.Tree{}
	}
	a.foreign = nil
	if tree.N > kept.N {
		a.Report(Damage{Index: -1, Part: "checkpoint", Detail: fmt.Sprintf("the earlier checkpoint has %d records of %s, of which %d were left when this log went on from there: %s",
			tree.N, LogName(verifier), kept.N, old.Reason)})
	}
	return tree
}

// Report adds a damage that was found outside the leaves.
func (a *Audit) Report(d Damage) {
	if len(a.report.Damages) == MaxDamages {
		a.report.More++
		return
	}
	a.report.Damages = append(a.report.Damages, d)
}

// Finish checks the newest checkpoint against all leaves and returns the report.
func (a *Audit) Finish(checkpoint []byte) AuditReport {
	root := a.frontier.Tree().Hash
	a.report.Root = root[:]
	all, unknown := a.signers.finish()
	a.report.Signers = all
	for _, d := range unknown {
		a.Report(d)
	}
	if a.foreign != nil {
		a.Report(Damage{Index: -1, Part: "checkpoint", Detail: fmt.Sprintf("the earlier checkpoint is of another log, %s, which this one does not continue", SignerOf(a.foreign))})
	}
	for i, o := range a.old {
		if o.frontier.Size() < o.tree.N {
			a.Report(Damage{Index: int64(i), Part: "tree", Detail: fmt.Sprintf("it continues a log of %d records, and %d are behind it", o.tree.N, o.frontier.Size())})
		}
	}
	if a.earlier != nil && a.earlier.N > a.report.Size {
		a.Report(Damage{Index: -1, Part: "checkpoint", Detail: fmt.Sprintf("the earlier checkpoint has %d records, the journal only %d", a.earlier.N, a.report.Size)})
	}
	tree, err := OpenCheckpoint(checkpoint, a.verifier)
	switch {
	case err != nil:
		a.Report(Damage{Index: -1, Part: "checkpoint", Detail: err.Error()})
	case tree.N != a.report.Size:
		a.Report(Damage{Index: -1, Part: "checkpoint", Detail: fmt.Sprintf("is of %d records, the journal has %d", tree.N, a.report.Size)})
	case tree.Hash != root:
		a.Report(Damage{Index: -1, Part: "checkpoint", Detail: "its root hash is not that of the records"})
	}
	return a.report
}
