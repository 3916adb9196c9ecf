package policy

import (
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
	"time"
)

// Apply applies a policy to a record of an API key without earlier attestations.
func (p *Policy) Apply(r appliance.Record) error {
	q := p.Asks(r)
	_, err := p.Decide(r, journal.Past{Counts: make([]int64, len(q.Since))})
	return err
}

// Around calls Period.around.
func Around(p Period, local time.Time) (begin, end time.Time) { return p.around(local) }
