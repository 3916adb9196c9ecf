package appliance

import (
	"context"
	"time"
)

// Sign runs the part of Attest that waits for the signer.
func (a *Attestor) Sign(ctx context.Context, keyID string) error {
	_, err := a.sign(ctx, a.now().standard, keyID, Digest{})
	return err
}

// Decide applies a policy to a record of an API key without earlier attestations.
func Decide(p *Policy, r Record) error {
	q := p.asks(r)
	_, err := p.decide(r, Past{Counts: make([]int64, len(q.Since))})
	return err
}

// Around calls Period.around.
func Around(p Period, local time.Time) (begin, end time.Time) { return p.around(local) }

// TableAfter is the number of records after which an audit makes a table for their signer.
const TableAfter = tableAfter

// Leaf checks the next leaf.
func (a *Audit) Leaf(leaf []byte) { a.Add(a.Check([][]byte{leaf})[0]) }

// Tables returns for how many signers the audit has a table.
func (a *Audit) Tables() int { return len(a.tables.all()) }
