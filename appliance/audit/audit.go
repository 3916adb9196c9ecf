// Package audit verifies a journal: the form, digest and signature of each record, the order, the tree, the signers,
// the API keys and the approvals by people. It needs only the leaves, a checkpoint and the log's public key.
package audit

import (
	"context"
	"fmt"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/approval"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/policy"
	"github.com/google/uuid"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// Options are the auditor's inputs.
type Options struct {
	// Earlier is a signed checkpoint that the auditor kept. The journal must still begin with exactly the entries of
	// that checkpoint. Nil means no earlier checkpoint.
	Earlier []byte
	// Signers are the attestor keys that may have signed. If empty, Own and the keys named by the journal's events may.
	Signers []appliance.Address
	// Own are the attestor keys of the audited appliance.
	Own []appliance.Address
	// AnySigner reports unknown signers without counting them as damage.
	AnySigner bool
	// SkipRecords hashes the records of attestations without decoding them: their form, digests, signatures, order and
	// lookups are not checked, and Report.Signers and Report.Approved miss them. That the leaves are exactly those of the
	// checkpoint is checked, and so are events, API keys and the store itself. A backup is checked like this.
	SkipRecords bool
	// Progress, if not nil, is called from time to time with the number of leaves checked and their total.
	Progress func(done, total int64)
}

// Journal is a journal that can be audited where it is stored.
type Journal interface {
	journal.Journal
	// Verify checks everything in the journal and reports each damage; see Audit. The error is for a failure of the
	// audit itself.
	Verify(ctx context.Context, opts Options) (Report, error)
}

// Damage is one defect of a journal.
type Damage struct {
	Index  int64     `json:"index"` // of the damaged record; -1 if the damage is not in a record
	ID     uuid.UUID `json:"id,omitzero"`
	Part   string    `json:"part"` // record, event, signature, signer, order, tree, checkpoint, lookup, page, api_key
	Detail string    `json:"detail"`
}

// String names the record and its defect.
func (d Damage) String() string {
	switch {
	case d.Index < 0:
		return fmt.Sprintf("%s: %s", d.Part, d.Detail)
	case d.ID == uuid.Nil:
		return fmt.Sprintf("record %d: %s: %s", d.Index, d.Part, d.Detail)
	}
	return fmt.Sprintf("record %d (%s): %s: %s", d.Index, d.ID, d.Part, d.Detail)
}

// Report is the result of an audit.
type Report struct {
	Size    int64            `json:"size"`     // leaves checked
	Events  int64            `json:"events"`   // how many of the leaves are events
	Root    journal.HexBytes `json:"rootHash"` // computed from the leaves
	Damages []Damage         `json:"damages"`  // at most MaxDamages
	More    int64            `json:"more"`     // damages beyond those listed

	Signers []Signer `json:"signers"` // in the order of their first records

	// Approved counts the attestations that name an approval by people. Approvers are enrolled at the end of the
	// journal, and ApprovalRules are the changes of the rules, of which the operator's events tell.
	Approved      int64               `json:"approved,omitempty"`
	Approvers     []approval.Approver `json:"approvers,omitempty"`
	ApprovalRules []Rules             `json:"approvalRules,omitempty"`

	// Contradictions are by witnesses of this log. They do not count as damage, because a lying witness could cause
	// them.
	Contradictions []Contradiction `json:"contradictions,omitempty"` // at most MaxDamages
}

// Contradiction is an event of an audited log: a witness has cosigned another history of the same log.
type Contradiction struct {
	Index   int64     `json:"index"` // of the event
	ID      uuid.UUID `json:"id"`
	Time    time.Time `json:"time"`
	Witness string    `json:"witness"` // its name in the appliance's policy
	Key     string    `json:"key"`     // the journal.LogName of its key
	Reason  string    `json:"reason"`
}

// Rules are the rules of approvals from a policy's event on. Empty means that no rule demands an approval.
type Rules struct {
	Index int64                 `json:"index"` // of the event
	Time  time.Time             `json:"time"`
	Rules []policy.ApprovalRule `json:"rules"`
}

// MaxDamages bounds the lists of an Report: a journal that is damaged throughout needs no longer list.
const MaxDamages = 1000

// OK reports whether no damage was found.
func (r Report) OK() bool { return len(r.Damages) == 0 }

// Audit checks a journal block by block, in order, independent of the source of the leaves: Check verifies each
// record's form, digest and signature on all processors, and Add the order in time and the tree of the leaf hashes.
// Audit keeps only the tree's right edge. It is not safe for concurrent use.
type Audit struct {
	verifier note.Verifier
	earlier  *tlog.Tree // nil without an earlier checkpoint, or if that is of an old log
	foreign  []byte     // an earlier checkpoint of another log, until a leaf is found that continues that log
	report   Report
	frontier journal.Frontier
	last     time.Time
	old      []oldLog // logs that this one continues, newest first
	signers  signers
	keys     auditedKeys
	people   *approval.History
	tables   tables

	completed []tlog.Hash // scratch for the result of Add
}

// New begins an audit of the verifier's log. If earlier is a signed checkpoint of this log, or of a log that this
// one continues, the leaves must begin with that checkpoint's tree. If earlier is not a checkpoint, the error is
// CodeInvalidField.
func New(verifier note.Verifier, earlier []byte) (*Audit, error) {
	a := &Audit{verifier: verifier, keys: auditedKeys{byID: make(map[string]auditedKey)},
		people: approval.NewHistory(verifier.Name())}
	if earlier != nil {
		tree, err := journal.OpenCheckpoint(earlier, verifier)
		switch other := journal.SignerOf(earlier); {
		case err == nil:
			a.earlier = &tree
		case other != "" && other != journal.LogName(verifier):
			a.foreign = earlier
		default:
			return nil, appliance.Errorf(appliance.CodeInvalidField, "%s", err).In("earlier")
		}
	}
	return a, nil
}

// Expect sets which signers are allowed, and whether records are checked, from the options. Without Expect, the signers
// that the journal's events name are allowed.
func (a *Audit) Expect(opts Options) { a.signers.opts = opts }

// oldLog is a log that a journal.EventLogContinued continues. Its leaves follow that event.
type oldLog struct {
	tree     tlog.Tree        // from the event
	frontier journal.Frontier // of its leaves seen so far
	earlier  tlog.Tree        // from an earlier checkpoint of it, or zero
}

// Add adds the next checked leaf. It returns the hashes of the subtrees that the leaf completes, from its own hash up
// (see Frontier.Add). They are valid until the next call.
func (a *Audit) Add(c Leaf) []tlog.Hash {
	index := a.report.Size
	if c.fault != nil {
		a.Report(Damage{Index: index, ID: c.ID(), Part: c.part, Detail: c.fault.Error()})
	}
	if c.Event != nil {
		a.report.Events++
	}
	if c.fault == nil {
		a.keys.add(c.Event)
	}
	if c.fault == nil && !c.Skipped {
		if a.signers.add(index, c.Entry) == tableAfter {
			a.tables.add(c.Record.Attestation)
		}
		a.contradicted(index, c.Event)
		a.approved(index, c.Entry)
	}
	a.order(index, c)
	a.continued(index, c)
	a.completed = a.frontier.Add(a.completed[:0], c.Hash)
	a.report.Size++
	if a.earlier != nil && a.report.Size == a.earlier.N && a.frontier.Tree() != *a.earlier {
		a.Report(Damage{Index: -1, Part: "checkpoint", Detail: fmt.Sprintf("the first %d records differ from the "+
			"earlier checkpoint", a.earlier.N)})
	}
	return a.completed
}

// contradicted collects the contradictions about this log. It ignores contradictions about a log that this one
// continues, because that log has ended.
func (a *Audit) contradicted(index int64, e *journal.Event) {
	if e == nil || e.Kind != journal.EventContradiction || len(a.report.Contradictions) == MaxDamages ||
		journal.SignerOf([]byte(e.Details[journal.DetailCheckpoint])) != journal.LogName(a.verifier) {
		return
	}
	a.report.Contradictions = append(a.report.Contradictions, Contradiction{
		Index: index, ID: e.ID, Time: e.Time, Witness: e.Details[journal.DetailWitness],
		Key: e.Details[journal.DetailWitnessKey], Reason: e.Details[journal.DetailReason],
	})
}

// approved checks the approvals of people. It notes each change of the rules, because an operator may change them
// alone.
func (a *Audit) approved(index int64, e journal.Entry) {
	e.Index = index
	before := a.people.Changed
	if fault := a.people.Add(e); fault != nil {
		a.Report(Damage{Index: index, ID: e.ID(), Part: "approval", Detail: fault.Error()})
	}
	if e.Event == nil {
		if e.Record.Approval != nil {
			a.report.Approved++
		}
		return
	}
	if a.people.Changed > before && len(a.report.ApprovalRules) < MaxDamages {
		a.report.ApprovalRules = append(a.report.ApprovalRules, Rules{index, e.Event.Time, a.people.Rules()})
	}
}

// order checks that times never decrease. It skips a journal.EventLogContinued, which is newer than the leaves
// that follow it.
func (a *Audit) order(index int64, c Leaf) {
	switch {
	case c.Time().IsZero(): // skipped, or unreadable and reported as such
	case c.Event != nil && c.Event.Kind == journal.EventLogContinued:
	case c.Time().Before(a.last):
		a.Report(Damage{Index: index, ID: c.ID(), Part: "order", Detail: "is earlier than the record before it"})
	default:
		a.last = c.Time()
	}
}

// continued checks that the leaves after a journal.EventLogContinued are the leaves of the old log. A log that was
// continued several times begins with one such event for each time.
func (a *Audit) continued(index int64, c Leaf) {
	for i := range a.old {
		o := &a.old[i]
		if o.frontier.Size() == o.tree.N {
			continue
		}
		o.frontier.Add(nil, c.Hash)
		if o.frontier.Size() == o.tree.N && o.frontier.Tree() != o.tree {
			a.Report(Damage{Index: int64(i), Part: "tree", Detail: fmt.Sprintf("the %d records after it differ from "+
				"the old log's checkpoint in it", o.tree.N)})
		}
		if o.frontier.Size() == o.earlier.N && o.frontier.Tree() != o.earlier {
			a.Report(Damage{Index: -1, Part: "checkpoint", Detail: fmt.Sprintf("the first %d records of the old log "+
				"differ from the earlier checkpoint", o.earlier.N)})
		}
	}
	if c.Event == nil || c.Event.Kind != journal.EventLogContinued {
		return
	}
	if index != int64(len(a.old)) {
		a.Report(Damage{Index: index, ID: c.ID(), Part: "event",
			Detail: "only a log's first leaf can continue another log"})
		return
	}
	old, _ := c.Event.Continuation()
	tree, _ := old.Tree() // a leaf with an error here was reported by Check
	a.old = append(a.old, oldLog{tree: tree, earlier: a.earlierOf(old, tree)})
}

// earlierOf returns the tree of the earlier checkpoint if that is a checkpoint of the old log, and the zero tree
// otherwise.
func (a *Audit) earlierOf(old journal.Continuation, kept tlog.Tree) tlog.Tree {
	verifier, err := note.NewVerifier(old.Log)
	if a.foreign == nil || err != nil {
		return tlog.Tree{}
	}
	tree, err := journal.OpenCheckpoint(a.foreign, verifier)
	if err != nil {
		return tlog.Tree{}
	}
	a.foreign = nil
	if tree.N > kept.N {
		a.Report(Damage{Index: -1, Part: "checkpoint", Detail: fmt.Sprintf("the earlier checkpoint has %d records of "+
			"%s, but this log continues only %d of them: %s",
			tree.N, journal.LogName(verifier), kept.N, old.Reason)})
	}
	return tree
}

// Report adds damage that was found outside the leaves.
func (a *Audit) Report(d Damage) {
	if len(a.report.Damages) == MaxDamages {
		a.report.More++
		return
	}
	a.report.Damages = append(a.report.Damages, d)
}

// Finish checks the newest checkpoint against all leaves and returns the report.
func (a *Audit) Finish(checkpoint []byte) Report {
	root := a.frontier.Tree().Hash
	a.report.Root = root[:]
	all, unknown := a.signers.finish()
	a.report.Signers = all
	a.report.Approvers = a.people.Approvers()
	for _, d := range unknown {
		a.Report(d)
	}
	if a.foreign != nil {
		a.Report(Damage{Index: -1, Part: "checkpoint", Detail: fmt.Sprintf("the earlier checkpoint belongs to "+
			"another log, %s, and this log does not continue that one", journal.SignerOf(a.foreign))})
	}
	for i, o := range a.old {
		if o.frontier.Size() < o.tree.N {
			a.Report(Damage{Index: int64(i), Part: "tree", Detail: fmt.Sprintf("it continues a log of %d records, "+
				"but only %d come after it", o.tree.N, o.frontier.Size())})
		}
	}
	if a.earlier != nil && a.earlier.N > a.report.Size {
		a.Report(Damage{Index: -1, Part: "checkpoint", Detail: fmt.Sprintf(
			"the earlier checkpoint has %d records, the journal only %d", a.earlier.N, a.report.Size)})
	}
	tree, err := journal.OpenCheckpoint(checkpoint, a.verifier)
	switch {
	case err != nil:
		a.Report(Damage{Index: -1, Part: "checkpoint", Detail: err.Error()})
	case tree.N != a.report.Size:
		a.Report(Damage{Index: -1, Part: "checkpoint",
			Detail: fmt.Sprintf("covers %d records, the journal has %d", tree.N, a.report.Size)})
	case tree.Hash != root:
		a.Report(Damage{Index: -1, Part: "checkpoint", Detail: "its root hash differs from the records' root hash"})
	}
	return a.report
}
