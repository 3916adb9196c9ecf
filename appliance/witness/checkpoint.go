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

	"github.com/attestd/attestd/appliance/journal"
)

// MaxAhead is how far the time of a cosignature may be ahead of the verifier's clock.
const MaxAhead = 5 * time.Minute

// Checkpoint is a signed checkpoint with its verified cosignatures.
type Checkpoint struct {
	Tree tlog.Tree
	Log  note.Verifier // the log that signed it
	// Signed is the C2SP signed note with all of its signatures.
	Signed []byte
	// By has the cosignatures, in the order of the policy.
	By []Cosignature
	// Time is the time at which the newest quorum was complete. Zero if the policy needs no quorum.
	Time time.Time
}

// Cosignature states that, at its time, a witness had seen neither a larger tree nor another history.
type Cosignature struct {
	Witness string    `json:"witness"` // its name in the policy
	Time    time.Time `json:"time"`
}

// Names returns the names of the witnesses that cosigned.
func (c Checkpoint) Names() []string {
	names := make([]string, len(c.By))
	for i, s := range c.By {
		names[i] = s.Witness
	}
	return names
}

// String describes the checkpoint for people.
func (c Checkpoint) String() string {
	text := fmt.Sprintf("%d records of %s", c.Tree.N, journal.LogName(c.Log))
	if len(c.By) == 0 {
		return text + ", without cosignatures (none are required)"
	}
	signed := make([]string, len(c.By))
	for i, s := range c.By {
		signed[i] = s.Witness + " at " + s.Time.Format(time.RFC3339)
	}
	return text + ", cosigned by " + strings.Join(signed, ", ")
}

// Open verifies a checkpoint offline: a log of the policy signed it, and a quorum of witnesses cosigned it. A
// cosignature that is more than MaxAhead ahead of now does not count. The error names what is missing.
func (p *Policy) Open(signed []byte, now time.Time) (Checkpoint, error) {
	if len(p.Logs) == 0 {
		return Checkpoint{}, errors.New("the policy lacks a log: add a line such as: log VKEY")
	}
	logs := make([]note.Verifier, len(p.Logs))
	for i, l := range p.Logs {
		logs[i] = l.Verifier
	}
	return p.open(signed, now, logs...)
}

// open is Open for checkpoints of the given logs.
func (p *Policy) open(signed []byte, now time.Time, logs ...note.Verifier) (Checkpoint, error) {
	log := slices.IndexFunc(logs, func(l note.Verifier) bool {
		_, err := journal.OpenCheckpoint(signed, l)
		return err == nil
	})
	if log < 0 {
		return Checkpoint{}, fmt.Errorf("checkpoint: not signed by a log of the policy: %s", unsigned(signed, logs))
	}
	c := Checkpoint{Log: logs[log], Signed: signed}
	var err error
	if c.Tree, err = journal.OpenCheckpoint(signed, c.Log); err != nil {
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
			ahead = append(ahead,
				fmt.Sprintf("%s cosigned at %s, which is in the future", w.Name, l.time.Format(time.RFC3339)))
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

// unsigned returns why no log's signature is valid.
func unsigned(signed []byte, logs []note.Verifier) string {
	names := make([]string, len(logs))
	for i, l := range logs {
		names[i] = journal.LogName(l)
		if _, err := journal.OpenCheckpoint(signed, l); err != nil && journal.SignerOf(signed) == names[i] {
			return err.Error()
		}
	}
	signer := journal.SignerOf(signed)
	if signer == "" {
		return "the signature is missing"
	}
	return fmt.Sprintf("%s signed it, the policy has %s", signer, strings.Join(names, ", "))
}

// QuorumError is returned for a checkpoint of the log that too few witnesses have cosigned.
type QuorumError struct {
	Quorum string   // the required cosignatures
	By     []string // the witnesses that cosigned
	Ahead  []string // witnesses with a cosignature ahead of the clock, with the reason
}

func (e *QuorumError) Error() string {
	by := "none"
	if len(e.By) > 0 {
		by = strings.Join(e.By, ", ")
	}
	text := fmt.Sprintf("checkpoint: no quorum: required cosignatures: %s; present: %s", e.Quorum, by)
	for _, a := range e.Ahead {
		text += "; " + a
	}
	return text
}

// split splits a note into the signed text, with its last newline, and the signature lines.
func split(signed []byte) (text string, lines []byte) {
	i := bytes.LastIndex(signed, []byte("\n\n"))
	if i < 0 {
		return string(signed), nil
	}
	return string(signed[:i+1]), signed[i+2:]
}

// completed returns the latest time such that the cosignatures from then on are a quorum.
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
