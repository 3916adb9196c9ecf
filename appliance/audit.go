package appliance

import (
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
	// Progress, if not nil, is called now and then with the number of leaves checked and their total.
	Progress func(done, total int64)
}

// Damage is one thing that is wrong with a journal.
type Damage struct {
	Index  int64     `json:"index"` // of the record at fault; -1 where it is not a record's
	ID     uuid.UUID `json:"id,omitzero"`
	Part   string    `json:"part"` // record, signature, order, tree, checkpoint, lookup, page
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

// AuditReport is what an audit found.
type AuditReport struct {
	Size    int64    `json:"size"`     // leaves checked
	Root    []byte   `json:"rootHash"` // as computed from them
	Damages []Damage `json:"damages"`  // at most MaxDamages
	More    int64    `json:"more"`     // damages beyond those listed
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
	earlier  *tlog.Tree
	report   AuditReport
	frontier Frontier
	last     time.Time

	completed []tlog.Hash // by the last Add
}

// NewAudit begins an audit of the verifier's log. With earlier, a signed checkpoint, the leaves must also begin
// with that checkpoint's tree; the error says that earlier is not a checkpoint of this log.
func NewAudit(verifier note.Verifier, earlier []byte) (*Audit, error) {
	a := &Audit{verifier: verifier}
	if earlier != nil {
		tree, err := OpenCheckpoint(earlier, verifier)
		if err != nil {
			return nil, fmt.Errorf("earlier %w", err)
		}
		a.earlier = &tree
	}
	return a, nil
}

// Leaf checks the next leaf.
func (a *Audit) Leaf(leaf []byte) { a.Add(CheckLeaf(leaf)) }

// CheckedLeaf is a leaf whose own claims were checked. It is apart from Audit.Add because it takes nearly all of
// an audit's time and can be done for many leaves at once.
type CheckedLeaf struct {
	Hash   tlog.Hash
	Record Record
	part   string
	fault  error
}

// CheckLeaf checks what a leaf claims by itself.
func CheckLeaf(leaf []byte) CheckedLeaf {
	c := CheckedLeaf{Hash: tlog.RecordHash(leaf), part: "record"}
	if c.Record, c.fault = DecodeLeaf(leaf); c.fault != nil {
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
		a.Report(Damage{Index: index, ID: c.Record.ID, Part: c.part, Detail: c.fault.Error()})
	}
	switch {
	case c.Record.Time.IsZero(): // not readable, and reported as such
	case c.Record.Time.Before(a.last):
		a.Report(Damage{Index: index, ID: c.Record.ID, Part: "order", Detail: "is earlier than the record before it"})
	default:
		a.last = c.Record.Time
	}
	a.completed = a.frontier.Add(a.completed[:0], c.Hash)
	a.report.Size++
	if a.earlier != nil && a.report.Size == a.earlier.N && a.frontier.Tree() != *a.earlier {
		a.Report(Damage{Index: -1, Part: "checkpoint", Detail: fmt.Sprintf("the first %d records are not those of the earlier checkpoint", a.earlier.N)})
	}
	return a.completed
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
