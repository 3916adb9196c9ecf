package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance/journal"
)

// followInterval is the interval between two polls of --follow.
const followInterval = time.Second

// tail follows a running daemon's journal. If the daemon stops, tail waits until it is back, with the same log.
type tail struct {
	*app
	backend backend
	seen    []byte // checkpoint of the last records that were written
}

// newTail begins after the present end of the journal. It returns an error if no daemon runs.
func (a *app) newTail(ctx context.Context, o backend) (*tail, error) {
	if _, running := o.(*client.Admin); !running {
		return nil, errors.New("--follow needs the daemon: systemctl start attestd")
	}
	checkpoint, err := o.Checkpoint(ctx)
	return &tail{a, o, checkpoint}, err
}

// follow calls write whenever the journal has grown. It returns when ctx ends, or when write returns an unwritten
// error.
func (t *tail) follow(ctx context.Context, write func() error) error {
	tick := time.NewTicker(followInterval)
	defer tick.Stop()
	away := false
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		checkpoint, err := t.backend.Checkpoint(ctx)
		if err == nil && !bytes.Equal(checkpoint, t.seen) {
			if log := journal.SignerOf(checkpoint); log != journal.SignerOf(t.seen) {
				return fmt.Errorf(
					"the journal continues as a new log, %s, where the records have other indexes: start again without --from", log)
			}
			if err = write(); err == nil {
				t.seen = checkpoint
			}
		}
		if failed := (unwritten{}); errors.As(err, &failed) {
			return err
		}
		if err != nil && !away && ctx.Err() == nil {
			t.say("Waiting for the daemon, which does not answer: %v", err)
		}
		away = err != nil
	}
}

// unwritten is an error of this command itself, not of the daemon.
type unwritten struct{ error }

func (u unwritten) Unwrap() error { return u.error }
