package stop

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/files"
)

// FileName is the file's name in data_dir.
const FileName = "stopped.json"

// maxFile is far more than years of redemptions fill.
const maxFile = 16 << 20

// File keeps the switch of one appliance.
type File struct {
	path     string
	changing sync.Mutex
	text     atomic.Pointer[string]
}

// OpenFile reads the file at path. Where there is none, nothing is stopped.
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
	case !found.Mode().IsRegular() || found.Size() > maxFile:
		return "", fmt.Errorf("%s: is no file of at most %d bytes", path, maxFile)
	}
	text, err := os.ReadFile(path)
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
		return appliance.Errorf(appliance.CodeInternal, "whether attesting is stopped could not be written").Because(err)
	}
	f.text.Store(&next)
	return nil
}
