package main

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// forbidDumps keeps this process's memory to itself: no core dump is written of it, and no other process of the same user may
// read it or trace it (prctl(2), PR_SET_DUMPABLE; root may). With SoftHSM the key itself is in it. What a process reads of its
// own in /proc it still may; a program that it starts is as any other.
func forbidDumps() error {
	var limit syscall.Rlimit
	err := syscall.Getrlimit(syscall.RLIMIT_CORE, &limit)
	if err == nil && limit.Cur != 0 { // the service's unit has set it, and lets nobody set limits
		err = syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{Cur: 0, Max: limit.Max})
	}
	if err := errors.Join(err, unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)); err != nil {
		return fmt.Errorf("forbid core dumps: %w", err)
	}
	return nil
}
