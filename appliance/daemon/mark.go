package daemon

import (
	"fmt"

	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/journal"
)

// successor is the log that continues the journal after another member accepted its loss.
type successor struct {
	key    journal.LogKey
	secret string
}

// goesOn is highwater.Options.Continued.
func (r *running) goesOn(next journal.LogKey, secret string) {
	r.continued <- successor{next, secret}
}

// follows replaces the log key with the new log's key. The daemon ends with the returned error, and the next start uses
// the new log.
func (r *running) follows(next successor) error {
	if err := archive.ReplaceLogKey(r.config.DataDir, r.store.LogKey, next.secret); err != nil {
		return fmt.Errorf("the journal continues as the log %s, but its key cannot be written to data_dir: %w",
			next.key.Verifier.Name(), err)
	}
	return fmt.Errorf(
		"the journal continues as the log %s, and its key is now in data_dir: restart attestd: systemctl restart attestd", next.key.Verifier.Name())
}
