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

// snapshotter copies a store for a backup, while attestations go on.
type snapshotter interface {
	// SnapshotTo calls begin with the copy's size in bytes and its newest signed checkpoint, and writes the copy to what
	// begin returns.
	SnapshotTo(begin func(size int64, checkpoint []byte) (io.Writer, error)) error
}
