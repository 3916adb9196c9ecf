package sandbox

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Offsets in struct seccomp_data (linux/seccomp.h). All architectures that attestd is built for are little-endian.
const (
	offsetCall         = 0
	offsetArchitecture = 4
	offsetDomain       = 16 // the low half of the first argument
)

// x32Calls is the first number of the x32 ABI. amd64 kernels accept its calls under the same architecture.
const x32Calls = 0x40000000

// refusal is the filter's result for a denied call.
func refusal(errno unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(errno) }

// restrictSockets prevents all threads of this process, and all processes that it starts, from making sockets that n
// does not allow. It works on every kernel, unlike Landlock, which knows TCP and, in newer kernels, UDP and Unix
// sockets.
func restrictSockets(n Network) error {
	if n == Any {
		return nil
	}
	architecture, known := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64,
		"arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]
	if !known {
		return fmt.Errorf("hsm.worker_network: %s is not available on %s; set any", n, runtime.GOARCH)
	}
	program := socketFilter(n, architecture)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("confine the HSM's library: no_new_privs: %w", err)
	}
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	thread, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&filter)))
	runtime.KeepAlive(program)
	switch {
	case errno != 0:
		return fmt.Errorf("confine the HSM's library to sockets %q: seccomp: %w; allow that system call in the "+
			"service manager (SystemCallFilter=seccomp), or set hsm.worker_network: any", n, errno)
	case thread != 0:
		return fmt.Errorf("confine the HSM's library to sockets %q: seccomp: thread %d has another filter", n, thread)
	}
	return nil
}

// socketFilter returns a classic BPF program. io_uring can also make sockets, so the filter denies it, as well as the
// ABIs of other architectures.
func socketFilter(n Network, architecture uint32) []unix.SockFilter {
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	answer := func(with uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: with} }
	// where runs the next instruction only if the comparison holds.
	where := func(compare uint16, value uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | compare | unix.BPF_K, Jt: 0, Jf: 1, K: value}
	}
	program := []unix.SockFilter{
		load(offsetArchitecture),
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 1, Jf: 0, K: architecture},
		answer(refusal(unix.ENOSYS)),
		load(offsetCall),
		where(unix.BPF_JGE, x32Calls), answer(refusal(unix.ENOSYS)),
		where(unix.BPF_JEQ, unix.SYS_IO_URING_SETUP), answer(refusal(unix.ENOSYS)),
	}
	if n == None {
		// A pair of datagram sockets could be connected elsewhere afterwards.
		return append(program, where(unix.BPF_JEQ, unix.SYS_SOCKETPAIR), answer(refusal(unix.EACCES)),
			where(unix.BPF_JEQ, unix.SYS_SOCKET), answer(refusal(unix.EACCES)), answer(unix.SECCOMP_RET_ALLOW))
	}
	return append(program,
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 1, Jf: 0, K: unix.SYS_SOCKET},
		answer(unix.SECCOMP_RET_ALLOW),
		load(offsetDomain), where(unix.BPF_JEQ, unix.AF_UNIX), answer(unix.SECCOMP_RET_ALLOW),
		answer(refusal(unix.EACCES)))
}
