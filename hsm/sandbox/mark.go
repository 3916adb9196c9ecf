package sandbox

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// The mark is a hard limit of 0 for RLIMIT_LOCKS. Linux has not used this limit since version 2.4.25, and no system
// sets it. Every child inherits it, even over execve. Without CAP_SYS_RESOURCE no process can raise a hard limit again
// (getrlimit(2)).
const markResource = 10 // RLIMIT_LOCKS, which package unix does not define

func mark() error {
	if err := unix.Prlimit(0, markResource, &unix.Rlimit{}, nil); err != nil {
		return fmt.Errorf("mark the HSM library's process: %w", err)
	}
	return nil
}

// Marked reports whether a process or one of its ancestors has called Enter. It returns false for a process of another
// user, because the library cannot change its user. An error means that the process has ended.
func Marked(pid int) (bool, error) {
	var limit unix.Rlimit
	err := unix.Prlimit(pid, markResource, nil, &limit)
	if errors.Is(err, unix.EPERM) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("prlimit of process %d: %w", pid, err)
	}
	return limit.Max == 0, nil
}
