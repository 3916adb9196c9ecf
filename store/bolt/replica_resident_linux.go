package bolt

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
	"unsafe"
)

// residentFiles returns how many bytes of mapped files are resident in this process, 0 where that is not known.
func residentFiles() int64 {
	text, err := os.ReadFile("/proc/self/statm") // proc_pid_statm(5): the third is resident shared pages
	if err != nil {
		return 0
	}
	fields := bytes.Fields(text)
	if len(fields) < 3 {
		return 0
	}
	pages, err := strconv.ParseInt(string(fields[2]), 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}

// giveBack tells the kernel that a read-only mapping of a file is not needed for now. Reads of it stay valid: the mapping is
// shared, so they find the same pages again (madvise(2), MADV_DONTNEED).
func giveBack(start uintptr, size int64) {
	if start == 0 || size <= 0 {
		return
	}
	// The mapping is not Go's memory, so its address cannot move. An error would change nothing.
	_ = syscall.Madvise(unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&start))), size), syscall.MADV_DONTNEED)
}
