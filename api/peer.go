package api

import (
	"fmt"
	"net"
	"os/user"
	"strconv"
	"strings"
	"time"

	"github.com/gofiber/fiber/v2"
	"golang.org/x/sys/unix"
)

// lookupTimeout bounds the question for a user's name, which a directory server may answer.
const lookupTimeout = time.Second

// callerOf is who has made a request on the admin socket, as the kernel says (SO_PEERCRED, unix(7)): "alice (uid 1000)". Inside the process it
// is who ByHeader names, and "" on any other connection.
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
	if controlErr := file.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); controlErr != nil || err != nil {
		return ""
	}
	return nameUser(peer.Uid)
}

// nameUser is a user's name and number; the number alone where there is no name for it.
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
