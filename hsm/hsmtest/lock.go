package hsmtest

import (
	"testing"

	"golang.org/x/sys/unix"
)

// CanLock reports whether this process may lock memory (mlock(2)). The system-call filter of some containers denies it
// even to root.
func CanLock(tb testing.TB) bool {
	tb.Helper()
	page, err := unix.Mmap(-1, 0, unix.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		tb.Fatalf("hsmtest: mmap: %v", err)
	}
	defer func() { _ = unix.Munmap(page) }()
	if err := unix.Mlock(page); err != nil {
		tb.Logf("mlock is denied here: %v", err)
		return false
	}
	return true
}
