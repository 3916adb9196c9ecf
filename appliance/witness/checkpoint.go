package witness

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/appliance"
)

// MaxAhead is by how much a cosignature may be ahead of the clock of who checks it.
const MaxAhead = 5 * time.Minute

// Checkpoint is a signed checkpoint with the cosignatures that were checked.
type Checkpoint struct {
	Tree tlog.Tree
	Log  note.Verifier // whose it is
	// Signed is the C2SP signed note, with every signature that was in it.
	Signed []byte
	// By is who cosigned, in the order of the policy.
	By []Cosignature
	// Time is when the newest quorum was complete: since then a quorum has not seen another history. Zero where none is needed.
	Time time.Time
}

// Cosignature says that a witness had seen no larger tree and no other history at that time.
type Cosignature struct {
	Witness string    `json:"witness"` // its name in the policy
	Time    time.Time `json:"time"`
}

// Names are those of the witnesses that cosigned.
func (c Checkpoint) Names() []string {
	names := make([]string, len(c.By))
	for i, s := range c.By {
		names[i] = s.Witness
	}
	return names
}

// String says what was found, for a person.
func (c Checkpoint) String() string {
	text := fmt.Sprintf("%d records of %s", c.Tree.N, appliance.LogName(c.Log))
	if len(c.By) == 0 {
		return text + ", which no witness has cosigned, nor must any"
	}
	signed := make([]string, len(c.By))
	for i, s := range c.By {
		signed[i] = s.Witness + " at " + s.Time.Format(time.RFC3339)
	}
	return text + ", cosigned by " + strings.Join(signed, ", ")
}

// Open checks a checkpoint offline: one of the policy's logs signed it, and a quorum of its witnesses cosigned it. Cosignatures that are
// further ahead of now than MaxAhead do not count. The error says what is missing.
func (p *Policy) Open(signed []byte, now time.Time) (Checkpoint, error) {
	if len(p.Logs) == 0 {
		return Checkpoint{}, errors.New("the policy names no log: it needs a line such as: log VKEY")
	}
	logs := make([]note.Verifier, len(p.Logs))
	for i, l := range p.Logs {
		logs[i] = l.Verifier
	}
	return p.open(signed, now, logs...)
}

// open is Open of checkpoints of the given logs.
func (p *Policy) open(signed []byte, now time.Time, logs ...note.Verifier) (Checkpoint, error) {
	log := slices.IndexFunc(logs, func(l note.Verifier) bool {
		_, err := appliance.OpenCheckpoint(signed, l)
		return err == nil
	})
	if log < 0 {
		return Checkpoint{}, fmt.Errorf("checkpoint: no log of the policy has signed it: %s", unsigned(signed, logs))
	}
	c := Checkpoint{Log: logs[log], Signed: signed}
	var err error
	if c.Tree, err = appliance.OpenCheckpoint(signed, c.Log); err != nil {
		return Checkpoint{}, err
	}
	text, lines := split(signed)
	var ahead []string
	for _, w := range p.Witnesses {
		l, ok, err := w.Key.find(text, lines)
		switch {
		case err != nil:
			return Checkpoint{}, fmt.Errorf("checkpoint: %w", err)
		case !ok:
		case l.time.Sub(now) > MaxAhead:
			ahead = append(ahead, fmt.Sprintf("%s says %s, which is not yet", w.Name, l.time.Format(time.RFC3339)))
		default:
			c.By = append(c.By, Cosignature{w.Name, l.time})
		}
	}
	if !p.Satisfied(c.Names()...) {
		return c, &QuorumError{Quorum: p.Quorum(), By: c.Names(), Ahead: ahead}
	}
	c.Time = p.completed(c.By)
	return c, nil
}

// unsigned says why no log's signature is good.
func unsigned(signed []byte, logs []note.Verifier) string {
	names := make([]string, len(logs))
	for i, l := range logs {
		names[i] = appliance.LogName(l)
		if _, err := appliance.OpenCheckpoint(signed, l); err != nil && appliance.SignerOf(signed) == names[i] {
			return err.Error()
		}
	}
	signer := appliance.SignerOf(signed)
	if signer == "" {
		return "it has no signature"
	}
	return fmt.Sprintf("it is signed by %s, the policy has %s", signer, strings.Join(names, ", "))
}

// QuorumError says that too few witnesses have cosigned a checkpoint, which is its log's.
type QuorumError struct {
	Quorum string   // who must have
	By     []string // who has
	Ahead  []string // whose cosignatures do not count yet, and why
}

func (e *QuorumError) Error() string {
	by := "nobody"
	if len(e.By) > 0 {
		by = strings.Join(e.By, ", ")
	}
	text := fmt.Sprintf("checkpoint: it has no quorum: %s must have cosigned it, and %s has", e.Quorum, by)
	for _, a := range e.Ahead {
		text += "; " + a
	}
	return text
}

// split returns the text that is signed, with its last newline, and the signature lines, where package note has them.
func split(signed []byte) (text string, lines []byte) {
	i := bytes.LastIndex(signed, []byte("\n\n"))
	if i < 0 {
		return string(signed), nil
	}
	return string(signed[:i+1]), signed[i+2:]
}

// completed is the latest time such that the cosignatures of then and later are a quorum.
func (p *Policy) completed(by []Cosignature) time.Time {
	if p.quorum == nil {
		return time.Time{}
	}
	newest := slices.SortedFunc(slices.Values(by), func(a, b Cosignature) int { return b.Time.Compare(a.Time) })
	var names []string
	for _, s := range newest {
		names = append(names, s.Witness)
		if p.Satisfied(names...) {
			return s.Time
		}
	}
	return time.Time{}
}
