package highwater

import (
	"errors"
	"io/fs"
	"os"
	"sync"
)

// NewestPath is the path of a second file, next to the mark, with the checkpoint of the newest commit. Each commit
// writes it without a sync, so that it survives a kill but not every power cut. A clean stop removes it.
func NewestPath(mark string) string { return mark + ".newest" }

// newestFile writes that file. All methods are safe for concurrent use.
type newestFile struct {
	path string

	mu   sync.Mutex
	file *os.File // nil before the first commit
}

func (n *newestFile) write(signed []byte) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.file == nil {
		f, err := os.OpenFile(n.path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600) // the mark covers the old content
		if err != nil {
			return err
		}
		n.file = f
	}
	_, err := n.file.WriteAt(signed, 0) // a checkpoint is never shorter than its predecessor
	return err
}

// remove removes the file once the mark covers its checkpoint.
func (n *newestFile) remove() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.file != nil {
		_ = n.file.Close()
		n.file = nil
	}
	if err := os.Remove(n.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
