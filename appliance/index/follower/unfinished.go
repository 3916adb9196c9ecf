package follower

import (
	"context"
	"errors"
	"time"

	"github.com/attestd/attestd/appliance/index"
)

// errEnough ends an iteration.
var errEnough = errors.New("the limit is reached")

// restore schedules an immediate lookup of a packet that an earlier follower left behind, unless this follower has
// already looked it up. It returns false if memory is full.
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

// loadUnverified watches the packets of quarantined rows. restoreOn adds the unfinished packets later.
func (f *Follower) loadUnverified(ctx context.Context, snap snapshot) error {
	f.watched = watches{by: make(map[string]*watch)}
	f.unfinished, f.due.restore, f.restored = index.Row{}, f.o.Now(), false
	err := snap.Unverified(ctx, func(u index.Unverified) error {
		if !f.restore(packetHashOf(u.Row), func(e *watch) {
			e.quarantined = append(e.quarantined, u.Row.ID())
			if waits(u) {
				f.watched.awaits(e, e.waiting+1)
			}
		}) {
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

// restoreTime bounds one step of restoreOn, because unfinished packets may have to be read from anywhere on the disk.
const restoreTime = time.Second / 10

// restoreDue returns when restoreOn continues. If not every packet fits into memory, restoreOn runs again every
// LookupInterval: by then some packets have ended, or have reached the longest interval and left.
func (f *Follower) restoreDue() time.Time {
	if f.watched.full && f.due.restore.Equal(never) {
		f.due.restore = f.o.Now().Add(f.o.LookupInterval)
	}
	return f.due.restore
}

// restoreOn watches more of the packets that are unfinished in the index, until all are watched or memory is full.
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
