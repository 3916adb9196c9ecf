// Package disk reports how much free space there is for a store's files.
package disk

import (
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Room is the free space of a file system, and whether it can be written.
type Room struct {
	Free     int64 // bytes that a user other than root can write
	ReadOnly bool  // mounted read-only, or made so by the kernel after a fault
}

// FreeSpace returns the Room of the file system with the folder of path. The file itself need not exist.
func FreeSpace(path string) (Room, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(path), &fs); err != nil {
		return Room{}, fmt.Errorf("read the free space: %w", err)
	}
	return Room{Free: int64(fs.Bavail) * int64(fs.Bsize), ReadOnly: fs.Flags&unix.ST_RDONLY != 0}, nil
}
