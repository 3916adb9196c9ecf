package daemon

import (
	"fmt"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/archive"
)

// successor is the log that continues the journal after another member accepted its loss.
type successor struct {
	key    appliance.LogKey
	secret string
}

// goesOn is highwater.Options.Continued.
func (r *running) goesOn(next appliance.LogKey, secret string) {
	r.continued <- successor{next, secret}
}

// follows replaces the log key with the new log's key. The daemon ends with the returned error, and the next start uses the new log.
func (r *running) follows(next successor) error {
	if err := archive.ReplaceLogKey(r.config.DataDir, r.store.LogKey, next.secret); err != nil {
		return fmt.Errorf("the journal goes on as another log, %s, whose key could not be put in place: %w", next.key.Verifier.Name(), err)
	}
	return fmt.Errorf("the journal goes on as another log, %s, whose key is in place now: attestd must be started again", next.key.Verifier.Name())
}
