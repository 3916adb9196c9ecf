package bolt

import (
	"context"
	"fmt"

	"github.com/attestd/attestd/appliance"
)

// Import appends leaves of another store's journal of the same log as they are, all or none of them. first is the index of the first,
// and must be where the journal ends. It is for a store that nothing else is appended to: see 'attestd store copy'.
func (s *Store) Import(ctx context.Context, first int64, leaves [][]byte) error {
	return s.submit(ctx, &op{Value: change{leaves: leaves, first: first}})
}

// importLeaves adds the leaves to the batch. What is wrong with them is found before anything is put, and is the op's error.
func (b *batch) importLeaves(o *op) error {
	first, at := o.Value.first, b.frontier.Size()
	if first != at {
		o.Err = fmt.Errorf("import: the leaves begin at %d, the journal ends at %d", first, at)
		return nil
	}
	entries := make([]appliance.Entry, len(o.Value.leaves))
	for i, leaf := range o.Value.leaves {
		e, err := appliance.DecodeEntry(first+int64(i), leaf)
		if id := e.ID(); err == nil && b.lookups[bucketIDs].Get(id[:]) != nil {
			err = fmt.Errorf("id %s is taken", id)
		}
		if err != nil {
			o.Err = fmt.Errorf("import record %d: %w", first+int64(i), err)
			return nil
		}
		entries[i] = e
	}
	for _, e := range entries {
		if err := b.put(e); err != nil {
			return err
		}
		b.now = e.Time()
	}
	return nil
}
