package daemon

import (
	"fmt"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/archive"
)

// successor is the log as which the journal goes on since its loss was accepted at another appliance.
type successor struct {
	key    appliance.LogKey
	secret string
}

// goesOn is told by the guard.
func (r *running) goesOn(next appliance.LogKey, secret string) {
	r.continued <- successor{next, secret}
}

// follows puts the new log's key in the place of the old one. The daemon ends with what it returns: with the next start, all of it
// works for the new log.
func (r *running) follows(next successor) error {
	if err := archive.ReplaceLogKey(r.config.DataDir, r.store.LogKey, next.secret); err != nil {
		return fmt.Errorf("the journal goes on as another log, %s, whose key could not be put in place: %w", next.key.Verifier.Name(), err)
	}
	return fmt.Errorf("the journal goes on as another log, %s, whose key is in place now: attestd must be started again", next.key.Verifier.Name())
}
