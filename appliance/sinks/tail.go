package sinks

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/attestd/attestd/appliance/journal"
)

// ErrEnough ends a read of the journal early.
var ErrEnough = errors.New("enough")

// Tail reads the entries of a journal that a published checkpoint covers. Sinks and streams of events read with it.
type Tail struct {
	Journal  Journal
	Verifier note.Verifier // verifies the journal's checkpoints
}

// Log returns the journal.LogName of the journal.
func (t Tail) Log() string { return journal.LogName(t.Verifier) }

// Size returns how many entries the newest checkpoint covers.
func (t Tail) Size(ctx context.Context) (int64, error) {
	_, tree, err := t.Checkpoint(ctx)
	return tree.N, err
}

// Checkpoint returns the newest checkpoint, and its tree.
func (t Tail) Checkpoint(ctx context.Context) (signed []byte, tree tlog.Tree, err error) {
	if signed, err = t.Journal.Checkpoint(ctx); err == nil {
		tree, err = journal.OpenCheckpoint(signed, t.Verifier)
	}
	return signed, tree, err
}

// Read calls yield with the entries below size that a reader at the cursor does not have, in order. It ends without an
// error after the last one, at Cursor.Skip, or when yield returns ErrEnough.
func (t Tail) Read(ctx context.Context, at Cursor, size int64, yield func(journal.Entry) error) error {
	end := size
	if at.Skip != nil {
		end = min(end, at.Skip.From)
	}
	if at.Next >= end {
		return nil
	}
	err := t.Journal.Entries(ctx, at.Next, func(e journal.Entry) error {
		if e.Index >= end {
			return ErrEnough
		}
		return yield(e)
	})
	if errors.Is(err, ErrEnough) {
		return nil
	}
	return err
}

// Carry converts a cursor of an older log for a journal that continues that log. The journal begins with the
// continuation events, newest first, which the reader does not have. The entries that the reader has follow them. ok is
// false if the journal does not continue that log. lost is the number of the reader's entries that the journal has lost.
func (t Tail) Carry(ctx context.Context, c Cursor) (carried Cursor, lost int64, ok bool, err error) {
	var continued []journal.Continuation
	err = t.Journal.Entries(ctx, 0, func(e journal.Entry) error {
		if e.Event == nil {
			return ErrEnough
		}
		from, isOne := e.Event.Continuation()
		if !isOne {
			return ErrEnough
		}
		continued = append(continued, from)
		if ok = from.Names(c.Log); ok {
			return ErrEnough
		}
		return nil
	})
	if err != nil && !errors.Is(err, ErrEnough) {
		return Cursor{}, 0, false, err
	}
	if !ok {
		return Cursor{}, 0, false, nil
	}
	has := Span{To: c.Next}
	if c.Skip != nil {
		has = *c.Skip
	}
	for i := len(continued) - 1; i >= 0; i-- {
		// from that log to this one: each continuation adds one entry at the beginning
		tree, err := continued[i].Tree()
		if err != nil {
			return Cursor{}, 0, false, fmt.Errorf("the continued log: %w", err)
		}
		lost += max(0, has.To-tree.N)
		has = Span{From: min(has.From, tree.N) + 1, To: min(has.To, tree.N) + 1}
	}
	carried = Cursor{Log: t.Log()}
	if has.To > has.From {
		carried.Skip = &has
	}
	return carried, lost, true, nil
}
