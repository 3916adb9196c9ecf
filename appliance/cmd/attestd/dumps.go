package main

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// forbidDumps disables core dumps of this process, and keeps other processes of the same user from reading or tracing
// it (prctl(2), PR_SET_DUMPABLE). Root still can. With SoftHSM, the key itself is in this process's memory. The process
// can still read its own /proc entries, and a program that it starts is not restricted.
func forbidDumps() error {
	var limit syscall.Rlimit
	err := syscall.Getrlimit(syscall.RLIMIT_CORE, &limit)
	if err == nil && limit.Cur != 0 { // the service's unit has set the limit to 0 already, and forbids setrlimit
		err = syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{Cur: 0, Max: limit.Max})
	}
	if err := errors.Join(err, unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)); err != nil {
		return fmt.Errorf("forbid core dumps: %w", err)
	}
	return nil
}
