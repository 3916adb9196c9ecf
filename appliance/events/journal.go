package events

import (
	"context"

	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/sinks"
)

// source is an ordered log of events that keeps them, so that a reader can continue after a restart.
type source interface {
	// end returns the cursor after the newest event.
	end(ctx context.Context) (sinks.Cursor, error)
	// read calls yield with the events that a reader at from does not have, in order, each with the cursor after it. It
	// ends at the cursor to, or when yield returns sinks.ErrEnough. The returned cursor is after the last yielded event;
	// it equals from only if the reader has all.
	read(ctx context.Context, from, to sinks.Cursor,
		yield func(Event, sinks.Cursor) error) (sinks.Cursor, error)
	// resume returns the cursor from which a reader at p continues, which may have read another log. gap means that
	// events in between are lost.
	resume(ctx context.Context, p Position) (from sinks.Cursor, gap bool, err error)
	// place sets the source's part of a position.
	place(p *Position, at sinks.Cursor, last Event)
}

// leaves is the source of the leaves. It has only leaves that a published checkpoint covers, and that the high-water
// mark includes.
type leaves struct {
	tail   sinks.Tail
	origin string
}

func (j leaves) end(ctx context.Context) (sinks.Cursor, error) {
	size, err := j.tail.Size(ctx)
	return sinks.Cursor{Log: j.tail.Log(), Next: size}, err
}

func (j leaves) read(ctx context.Context, from, to sinks.Cursor,
	yield func(Event, sinks.Cursor) error) (sinks.Cursor, error) {
	at := from
	err := j.tail.Read(ctx, from, to.Next, func(e journal.Entry) error {
		event, err := FromEntry(j.origin, at.Log, e)
		if err != nil {
			return err
		}
		next := at.To(e.Index + 1)
		if err := yield(event, next); err != nil {
			return err
		}
		at = next
		return nil
	})
	return at, err
}

func (j leaves) resume(ctx context.Context, p Position) (from sinks.Cursor, gap bool, err error) {
	end, err := j.end(ctx)
	switch at := p.Journal; {
	case err != nil || at.Log == "":
		return end, false, err
	case at.Log == end.Log && at.Next <= end.Next && within(at.Skip, end.Next):
		return at, false, nil
	case at.Log == end.Log: // a journal that lost records, or a forged id
		return end, true, nil
	}
	from, lost, continued, err := j.tail.Carry(ctx, p.Journal)
	if err != nil || continued {
		return from, lost > 0, err
	}
	return end, true, nil
}

// within reports whether a span has entries of a log of that size only.
func within(s *sinks.Span, size int64) bool { return s == nil || s.From < s.To && s.To <= size }

func (j leaves) place(p *Position, at sinks.Cursor, _ Event) { p.Journal = at }
