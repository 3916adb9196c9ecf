package webhooks

import (
	"context"
	"fmt"
)

// Stored is a webhook as a Store has it.
type Stored struct {
	Name              string
	Definition, State []byte
}

// Read returns all webhooks of a store.
func Read(ctx context.Context, from Store) (all []Stored, err error) {
	err = from.Webhooks(ctx, func(name string, definition, state []byte) error {
		all = append(all, Stored{name, definition, state})
		return nil
	})
	return all, err
}

// Replace replaces all webhooks of a store, with their states. No appliance may use the store. If Replace fails, it can
// be repeated.
func Replace(ctx context.Context, to Store, all []Stored) error {
	old, err := Read(ctx, to)
	if err != nil {
		return err
	}
	for _, w := range old {
		if err := to.DeleteWebhook(ctx, w.Name); err != nil {
			return fmt.Errorf("webhook %s: %w", w.Name, err)
		}
	}
	for _, w := range all {
		if err := to.CreateWebhook(ctx, w.Name, w.Definition, w.State); err != nil {
			return fmt.Errorf("webhook %s: %w", w.Name, err)
		}
	}
	return nil
}
