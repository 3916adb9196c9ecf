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
)

// Cursor is a reader's position in a journal.
type Cursor struct {
	Log  string `json:"log"`            // journal.LogName of the journal
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

// Cursors stores the cursors of sinks by the sinks' names.
type Cursors interface {
	// ReadCursor returns ok false if no cursor is stored.
	ReadCursor(ctx context.Context, name string) (c Cursor, ok bool, err error)
	WriteCursor(ctx context.Context, name string, c Cursor) error
}

// Folder stores each cursor as a file in a folder.
type Folder string

// CursorPath returns the path of a sink's cursor file.
func CursorPath(dir, name string) string { return filepath.Join(dir, name+".json") }

// ReadCursor implements Cursors.
func (f Folder) ReadCursor(_ context.Context, name string) (c Cursor, ok bool, err error) {
	path := CursorPath(string(f), name)
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

// WriteCursor implements Cursors.
func (f Folder) WriteCursor(_ context.Context, name string, c Cursor) error {
	text, err := json.Marshal(c)
	if err == nil {
		err = os.MkdirAll(string(f), 0o700)
	}
	if err == nil {
		err = files.Write(CursorPath(string(f), name), append(text, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("cursor: %w", err)
	}
	return nil
}
