// Package files writes files that are whole on disk or not there at all, and gives them to those who must open them.
package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Write makes a file that is whole on disk or not there at all.
func Write(path string, content []byte, mode fs.FileMode) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // in vain once it is renamed
	_, err = f.Write(content)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return SyncFolder(dir)
}

// SyncFolder brings a folder's new names to the disk.
func SyncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// HandOver gives files in a folder to the folder's owner, where root has made them: the daemon runs as the owner and
// must be able to open them.
func HandOver(dir string, names ...string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	// Within the folder, whatever its owner may have put there: no link leads root out of it.
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	folder, err := root.Stat(".")
	if err != nil {
		return err
	}
	owner := folder.Sys().(*syscall.Stat_t)
	for _, name := range names {
		if err := root.Lchown(name, int(owner.Uid), int(owner.Gid)); err != nil {
			return fmt.Errorf("%s: %w", filepath.Join(dir, name), err)
		}
	}
	return nil
}

// Exists reports whether a path is there, be it a link that leads nowhere. What cannot be looked at is taken to be there.
func Exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
