package sinks

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/attestd/attestd/appliance/files"
	"github.com/attestd/attestd/appliance/journal"
)

// Cursor is a reader's position in a journal.
type Cursor struct {
	Log  string `json:"log"`            // appliance.LogName of the journal
	Next int64  `json:"next"`           // index of the first entry that the reader does not have
	Skip *Span  `json:"skip,omitempty"` // entries that the reader got from an older log
}

// Span is a range of indexes.
type Span struct {
	From int64 `json:"from"`
	To   int64 `json:"to"` // exclusive
}

// To returns the cursor of a reader that has the entries below next. It jumps over Skip.
func (c Cursor) To(next int64) Cursor {
	c.Next = next
	if c.Skip != nil && c.Next >= c.Skip.From {
		c.Next, c.Skip = max(c.Next, c.Skip.To), nil
	}
	return c
}

// Left returns how many of size entries the reader does not have.
func (c Cursor) Left(size int64) int64 {
	n := size - c.Next
	if c.Skip != nil {
		n -= c.Skip.To - c.Skip.From
	}
	return max(n, 0)
}

// readCursor reads a cursor's file. ok is false if the file does not exist.
func readCursor(path string) (c Cursor, ok bool, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Cursor{}, false, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	if err == nil && (c.Log == "" || c.Next < 0) {
		err = errors.New("the file does not name a position in a log")
	}
	if err != nil {
		return Cursor{}, false, fmt.Errorf("cursor %s: %w; remove the file to start the sink over", path, err)
	}
	return c, true, nil
}

// write stores the cursor on the disk.
func (c Cursor) write(path string) error {
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
