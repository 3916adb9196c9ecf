package main

import (
	"context"
	"io"
)

// journalStore is what the daemon needs of the store of keys and journal, beside appliance.Keys and appliance.Journal.
type journalStore interface {
	// Failed receives once when the store no longer trusts its disk, and refuses all writes from then on. The daemon ends,
	// to be started again.
	Failed() <-chan error
	// Responds returns nil once the part that writes has answered, be it with an error. It returns an error where ctx ended
	// before: a restart may help.
	Responds(ctx context.Context) error
	snapshotter
	io.Closer
}
