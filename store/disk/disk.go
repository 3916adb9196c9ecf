// Package disk tells how much room there is for a store's files.
package disk

import (
	"fmt"
	"path/filepath"
	"syscall"
)

// Free returns how many bytes are free on the disk that has a file.
func Free(path string) (int64, error) {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(filepath.Dir(path), &fs); err != nil {
		return 0, fmt.Errorf("ask for the free space: %w", err)
	}
	return int64(fs.Bavail) * int64(fs.Bsize), nil
}
