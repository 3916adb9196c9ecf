package follower

import (
	"context"
	"errors"
	"time"

	"github.com/attestd/attestd/appliance/index"
)

// errEnough ends an iteration.
var errEnough = errors.New("no more is wanted")

// restore has looked up at once what an earlier follower has left, unless it is watched already. False means that there is no room.
func (f *Follower) restore(hash string, change func(*watch)) bool {
	e := f.watched.by[hash]
	if e == nil {
		e = &watch{hash: hash, interval: f.clampLookup(0)}
	}
	if !e.looked.IsZero() {
		return true
	}
	change(e)
	return f.watched.set(e, f.o.Now())
}

// loadUnverified has watched what is kept apart. The unfinished packets follow, in turns with what else is due.
func (f *Follower) loadUnverified(ctx context.Context, snap snapshot) error {
	f.watched = watches{by: make(map[string]*watch)}
	f.unfinished, f.due.restore, f.restored = index.Row{}, f.o.Now(), false
	err := snap.Unverified(ctx, func(u index.Unverified) error {
		if !f.restore(packetHashOf(u.Row), func(e *watch) { e.apart = append(e.apart, u.Row.ID()) }) {
			return errEnough
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	if err != nil {
		f.watched = watches{}
	}
	return err
}

// restoreTime is for how long unfinished packets are read at once: they lie anywhere in a file that may have to come from the disk.
const restoreTime = time.Second / 10

// restoreDue is when restoreOn goes on. Where there is no room for all it goes on with the others now and then: some have ended by
// then, or have been looked up as rarely as any.
func (f *Follower) restoreDue() time.Time {
	if f.watched.full && f.due.restore.Equal(never) {
		f.due.restore = f.o.Now().Add(f.o.LookupInterval)
	}
	return f.due.restore
}

// restoreOn has watched some more of the packets that an earlier follower has left unfinished, or that there was no room for: all, or as
// many as there is room for.
func (f *Follower) restoreOn(ctx context.Context) error {
	if f.unfinished.IsZero() {
		f.watched.full = false
	}
	began, full := f.o.Now(), false
	err := view(ctx, f.o.Index, func(snap snapshot) error {
		last := f.unfinished
		defer func() { f.unfinished = last.Clone() }()
		return snap.Unfinished(ctx, f.unfinished, func(packet index.Row) error {
			if full = !f.restore(packet.Key(), func(e *watch) { e.plain = isPlain(packet) }); full {
				return errEnough
			}
			if last = packet; f.o.Now().Sub(began) >= restoreTime {
				return errEnough
			}
			return nil
		})
	})
	switch {
	case err != nil && !errors.Is(err, errEnough):
		return err
	case full:
		f.due.restore, f.restored = never, true
	case err == nil:
		f.unfinished, f.due.restore, f.restored = index.Row{}, never, true
	default:
		f.due.restore = f.o.Now()
	}
	return nil
}
