package api

import (
	"errors"
	"fmt"
	"net"
	"os/user"
	"strconv"
	"strings"
	"time"

	"github.com/gofiber/fiber/v2"
	"golang.org/x/sys/unix"
)

// lookupTimeout bounds the lookup of a user's name, which a directory server may answer.
const lookupTimeout = time.Second

// callerOf names the caller of a request. On the admin socket it is the peer's user according to the kernel
// (SO_PEERCRED, unix(7)), such as "alice (uid 1000)". On a connection inside the process it is the value of ByHeader.
// On any other connection it is "".
func callerOf(c *fiber.Ctx) string {
	raw := unwrap(c.Context().Conn())
	if raw == nil {
		return ""
	}
	if _, ours := raw.Conn.(insideConn); ours {
		return strings.Clone(c.Get(ByHeader))
	}
	socket, ok := raw.Conn.(*net.UnixConn)
	if !ok {
		return ""
	}
	file, err := socket.SyscallConn()
	if err != nil {
		return ""
	}
	var peer *unix.Ucred
	if controlErr := file.Control(func(fd uintptr) {
		peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); controlErr != nil || err != nil {
		return ""
	}
	return nameUser(peer.Uid)
}

// peerProcess checks the process that has connected to a Unix socket (SO_PEERCRED). The process must not end while
// check examines its pid, because the kernel could reuse the pid. SO_PEERPIDFD (Linux 6.5 and later) detects that;
// older kernels skip this check.
func peerProcess(c *net.UnixConn, check func(pid int) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var peer *unix.Ucred
	var credErr, fdErr error
	process := -1
	err = raw.Control(func(fd uintptr) {
		process, fdErr = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD)
		peer, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err := errors.Join(err, credErr); err != nil {
		return err
	}
	if errors.Is(fdErr, unix.ENOPROTOOPT) {
		return check(int(peer.Pid))
	}
	if fdErr != nil {
		return fmt.Errorf("identify the connected process: %w", fdErr)
	}
	defer func() { _ = unix.Close(process) }()
	if err := check(int(peer.Pid)); err != nil {
		return err
	}
	ended, err := unix.Poll([]unix.PollFd{{Fd: int32(process), Events: unix.POLLIN}}, 0)
	if ended != 0 || err != nil {
		return fmt.Errorf("the connected process, %d, has ended: %w", peer.Pid, err)
	}
	return nil
}

// nameUser returns a user's name and uid, or only the uid if it has no name.
func nameUser(uid uint32) string {
	found := make(chan string, 1)
	go func() {
		if u, err := user.LookupId(strconv.FormatUint(uint64(uid), 10)); err == nil {
			found <- fmt.Sprintf("%s (uid %d)", u.Username, uid)
			return
		}
		found <- fmt.Sprintf("uid %d", uid)
	}()
	select {
	case name := <-found:
		return name
	case <-time.After(lookupTimeout):
		return fmt.Sprintf("uid %d", uid)
	}
}
