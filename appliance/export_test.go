package appliance

import (
	"context"
	"time"
)

// Sign is the part of Attest that waits for the signer.
func (a *Attestor) Sign(ctx context.Context, keyID string) error {
	_, err := a.sign(ctx, a.now().standard, keyID, Digest{})
	return err
}

// Decide asks a policy about a record of an API key that was issued nothing before.
func Decide(p *Policy, r Record) error {
	q := p.asks(r)
	_, err := p.decide(r, Past{Counts: make([]int64, len(q.Since))})
	return err
}

// Around is Period.around.
func Around(p Period, local time.Time) (begin, end time.Time) { return p.around(local) }
