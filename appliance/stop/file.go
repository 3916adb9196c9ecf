package stop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/files"
)

// FileName is the file's name in data_dir.
const FileName = "stopped.json"

// maxFile exceeds the size of every State that attestd writes, in bytes.
const maxFile = 1 << 20

// File stores the switch of one appliance. It implements Keeper.
type File struct {
	path     string
	changing sync.Mutex
	text     atomic.Pointer[string]
}

// OpenFile reads the file at path. If the file does not exist, attesting is not stopped.
func OpenFile(path string) (*File, error) {
	f := &File{path: path}
	text, err := readFile(path)
	if err != nil {
		return nil, err
	}
	f.text.Store(&text)
	return f, nil
}

func readFile(path string) (string, error) {
	found, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err != nil:
		return "", err
	case !found.Mode().IsRegular():
		return "", fmt.Errorf("%s: is not a file", path)
	case found.Size() > maxFile:
		return tooLong(path, found)
	}
	text, err := os.ReadFile(path)
	return string(text), err
}

// tooLong replaces a text that is too long to read by a halt, which Resume ends. The appliance starts, but does not
// attest.
func tooLong(path string, found fs.FileInfo) (string, error) {
	text, err := json.Marshal(State{Halted: &Halt{
		Reason: fmt.Sprintf("%s has %d bytes, more than attestd writes: the stop state is unknown", path, found.Size()),
		Time:   found.ModTime().UTC().Truncate(time.Second), Redemptions: []string{},
	}})
	return string(text), err
}

// Stopped implements Keeper.
func (f *File) Stopped() string { return *f.text.Load() }

// ChangeStopped implements Keeper.
func (f *File) ChangeStopped(_ context.Context, change func(string) (string, error)) error {
	f.changing.Lock()
	defer f.changing.Unlock()
	next, err := change(f.Stopped())
	if err != nil {
		return err
	}
	err = files.Write(f.path, []byte(next), 0o600)
	if err == nil {
		err = files.HandOver(filepath.Dir(f.path), filepath.Base(f.path))
	}
	if err != nil {
		return appliance.Errorf(appliance.CodeInternal, "the stop state cannot be written").Because(err)
	}
	f.text.Store(&next)
	return nil
}
