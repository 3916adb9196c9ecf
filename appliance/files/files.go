// Package files writes files atomically and durably, and gives them to the owner of their folder.
package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Write writes a file atomically: a crash leaves the whole new file, or the previous one if there was one. The content
// is synced to disk before Write returns.
func Write(path string, content []byte, mode fs.FileMode) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // fails after the rename, as intended
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

// SyncFolder syncs a folder's entries to disk.
func SyncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// HandOver changes the owner of files in a folder to the folder's owner if this process is root. The daemon runs as
// that owner and must be able to open files that root has made.
func HandOver(dir string, names ...string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	// os.Root prevents a symbolic link by the folder's owner from leading root out of the folder.
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

// Exists reports whether a path exists. A dangling symbolic link exists. A path that cannot be examined counts as
// existing.
func Exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
