package sinks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/journal"
)

// cursor is a sink's position in a journal.
type cursor struct {
	Log  string `json:"log"`            // journal.LogName of the journal
	Next int64  `json:"next"`           // index of the first entry that was not shipped
	Skip *span  `json:"skip,omitempty"` // entries that were shipped under an older log
}

// span is a range of indexes.
type span struct {
	From int64 `json:"from"`
	To   int64 `json:"to"` // exclusive
}

// to returns the cursor after shipping the entries below next. It jumps over Skip.
func (c cursor) to(next int64) cursor {
	c.Next = next
	if c.Skip != nil && c.Next >= c.Skip.From {
		c.Next, c.Skip = max(c.Next, c.Skip.To), nil
	}
	return c
}

// left returns how many of size entries are not shipped yet.
func (c cursor) left(size int64) int64 {
	n := size - c.Next
	if c.Skip != nil {
		n -= c.Skip.To - c.Skip.From
	}
	return max(n, 0)
}

// readCursor reads a cursor's file. ok is false if the file does not exist.
func readCursor(path string) (c cursor, ok bool, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return cursor{}, false, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	if err == nil && (c.Log == "" || c.Next < 0) {
		err = errors.New("the file does not name a position in a log")
	}
	if err != nil {
		return cursor{}, false, fmt.Errorf("cursor %s: %w; remove the file to start the sink over", path, err)
	}
	return c, true, nil
}

// write stores the cursor on the disk.
func (c cursor) write(path string) error {
	text, err := json.Marshal(c)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o700)
	}
	if err == nil {
		err = files.Write(path, append(text, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("cursor: %w", err)
	}
	return nil
}

// errEnough ends a read of the journal early.
var errEnough = errors.New("enough")

// carry converts a cursor of an older log for a journal that continues that log. The journal begins with the
// continuation events, newest first, which the sink does not have. The entries that the sink has follow them. ok is
// false if the journal does not continue that log. lost is the number of shipped entries that the journal has lost.
func (c cursor) carry(ctx context.Context, j Journal,
	log string) (carried cursor, lost int64, ok bool, err error) {
	var continued []journal.Continuation
	err = j.Entries(ctx, 0, func(e journal.Entry) error {
		if e.Event == nil {
			return errEnough
		}
		from, isOne := e.Event.Continuation()
		if !isOne {
			return errEnough
		}
		continued = append(continued, from)
		if ok = from.Names(c.Log); ok {
			return errEnough
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return cursor{}, 0, false, err
	}
	if !ok {
		return cursor{}, 0, false, nil
	}
	has := span{To: c.Next}
	if c.Skip != nil {
		has = *c.Skip
	}
	for i := len(continued) - 1; i >= 0; i-- {
		// from that log to this one: each continuation adds one entry at the beginning
		tree, err := continued[i].Tree()
		if err != nil {
			return cursor{}, 0, false, fmt.Errorf("the continued log: %w", err)
		}
		lost += max(0, has.To-tree.N)
		has = span{From: min(has.From, tree.N) + 1, To: min(has.To, tree.N) + 1}
	}
	carried = cursor{Log: log}
	if has.To > has.From {
		carried.Skip = &has
	}
	return carried, lost, true, nil
}
