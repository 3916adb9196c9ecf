package sinks

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/attestd/attestd/appliance/files"
)

// File appends a line for each entry to a file and syncs the file before the batch counts as shipped. If the file is
// renamed or removed, for example by logrotate, File creates a new one.
type File struct {
	Path string
	file *os.File
}

// others are the permissions that the file must not have. A group may read the file, for example the group of a SIEM
// agent.
const others = fs.FileMode(0o007)

// Send implements Destination.
func (f *File) Send(_ context.Context, batch []Message) error {
	size, err := f.open()
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f.file, 64<<10)
	for _, m := range batch {
		_, _ = w.Write(append(m.Text, '\n')) // Flush returns the error
	}
	if err = w.Flush(); err == nil {
		err = f.file.Sync()
	}
	if err != nil { // such as a full disk: remove the partial line
		err = errors.Join(err, f.file.Truncate(size), f.Close())
	}
	return err
}

// open reopens the file if Path names another file now, and returns its size. A reopened file ends with a whole line.
func (f *File) open() (size int64, err error) {
	if f.file != nil {
		there, err := os.Stat(f.Path)
		here, errHere := f.file.Stat()
		if err == nil && errHere == nil && os.SameFile(there, here) {
			return here.Size(), nil
		}
		_ = f.Close()
	}
	file, err := os.OpenFile(f.Path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return 0, err
	}
	size, err = prepare(file)
	if err == nil {
		err = files.SyncFolder(filepath.Dir(f.Path))
	}
	if err != nil {
		return 0, errors.Join(err, file.Close())
	}
	f.file = file
	return size, nil
}

// prepare refuses a file that is not regular or that others can access. It removes a line that a crash cut off, because
// that entry is shipped again.
func prepare(file *os.File) (size int64, err error) {
	stat, err := file.Stat()
	switch {
	case err != nil:
		return 0, err
	case !stat.Mode().IsRegular():
		return 0, fmt.Errorf("%s is not a regular file", file.Name())
	case stat.Mode().Perm()&others != 0:
		return 0, fmt.Errorf("every user can open %s: chmod o= %s", file.Name(), file.Name())
	}
	whole, err := wholeLines(file, stat.Size())
	if err == nil && whole < stat.Size() {
		err = file.Truncate(whole)
	}
	return whole, err
}

// wholeLines returns the size of a file up to its last newline.
func wholeLines(file io.ReaderAt, size int64) (int64, error) {
	block := make([]byte, 64<<10)
	for end := size; end > 0; {
		part := block[:min(end, int64(len(block)))]
		end -= int64(len(part))
		if _, err := file.ReadAt(part, end); err != nil {
			return 0, err
		}
		if i := bytes.LastIndexByte(part, '\n'); i >= 0 {
			return end + int64(i) + 1, nil
		}
	}
	return 0, nil
}

// Close implements Destination.
func (f *File) Close() error {
	if f.file == nil {
		return nil
	}
	err := f.file.Close()
	f.file = nil
	return err
}

func (f *File) String() string { return f.Path }
