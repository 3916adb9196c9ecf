package bolt

import (
	"context"
	"fmt"

	"github.com/attestd/attestd/appliance/journal"
	"github.com/google/uuid"
)

// Import appends leaves of another store of the same log, unchanged and atomically. first is the index of the first
// leaf and must equal the size of the journal. No other caller may append to the store: see attestd store copy.
func (s *Store) Import(ctx context.Context, first int64, leaves [][]byte) error {
	return s.submit(ctx, &op{Value: change{leaves: leaves, first: first}})
}

// appendLeaves adds all leaves to the batch, or none and returns an error.
func (b *batch) appendLeaves(o *op) error {
	first, at := o.Value.first, b.frontier.Size()
	if first != at {
		return fmt.Errorf("import: the first leaf has index %d, the next index of the journal is %d", first, at)
	}
	entries := make([]journal.Entry, len(o.Value.leaves))
	for i, leaf := range o.Value.leaves {
		e, err := journal.DecodeEntry(first+int64(i), leaf)
		if err == nil {
			err = b.checkID(e.ID())
		}
		if err != nil {
			return fmt.Errorf("import record %d: %w", first+int64(i), err)
		}
		entries[i] = e
	}
	for i := range entries {
		e := &entries[i]
		b.next.add(&b.frontier, e)
		b.now = e.Time()
	}
	return nil
}

// checkID returns an error if an ID exists.
func (b *batch) checkID(id uuid.UUID) error {
	taken, err := b.find(lookup{bucketIDs, id[:]})
	if err == nil && taken != nil {
		err = fmt.Errorf("id %s exists already", id)
	}
	return err
}
