package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/attestd/attestd/appliance"
)

// Stopped returns the stop state (see appliance/stop) in the newest head that was read. An append uses the head that it
// has locked.
func (s *Store) Stopped() string {
	if h := s.head.Load(); h != nil {
		return h.stopped
	}
	return ""
}

// ChangeStopped changes the stop state under the head's lock, so that every later append on any appliance sees it.
func (s *Store) ChangeStopped(ctx context.Context, change func(string) (string, error)) error {
	if s.opts.ReadOnly {
		return errReadOnly()
	}
	const doing = "change whether attesting is stopped"
	var changed *head
	err := s.transaction(ctx, func(tx pgx.Tx) error {
		h, err := s.lock(ctx, tx)
		if err != nil && !errors.Is(err, errUnclaimed) {
			return err
		}
		next, err := change(h.stopped)
		if err != nil {
			return err
		}
		h.stopped, h.stops, changed = next, h.stops+1, h
		_, err = tx.Exec(ctx, "UPDATE log_head SET stopped = $1, stopped_version = $2, state_mac = $3 WHERE id = 1",
			h.stopped, h.stops, stateMAC(s.secret, h))
		return err
	})
	if err == nil {
		s.confirmed(changed)
		_, err = s.readHead(ctx)
	}
	if _, ready := errors.AsType[*appliance.Error](err); err == nil || ready {
		return err
	}
	return answer(ctx, doing, err)
}
