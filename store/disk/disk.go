// Package disk tells how much room there is for a store's files.
package disk

import (
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Room is what a disk can take.
type Room struct {
	Free     int64 // bytes, for who is not root
	ReadOnly bool  // mounted so, or made so by the kernel after a fault
}

// Look asks the disk that has a file.
func Look(path string) (Room, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(path), &fs); err != nil {
		return Room{}, fmt.Errorf("ask for the free space: %w", err)
	}
	return Room{Free: int64(fs.Bavail) * int64(fs.Bsize), ReadOnly: fs.Flags&unix.ST_RDONLY != 0}, nil
}
