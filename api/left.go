package api

import (
	"context"
	"syscall"
	"time"

	"github.com/gofiber/fiber/v2"
	"golang.org/x/sys/unix"
)

const (
	// leftAfter is how long a request runs before the server first checks whether its client is still connected.
	// leftEvery is the interval of further checks. Most requests are answered sooner.
	leftAfter = 20 * time.Millisecond
	leftEvery = 50 * time.Millisecond
)

// whileThere sets the user context of c to one that is cancelled when the client disconnects or when shutdown cuts
// requests off. The caller must call stop when the request is done.
func (s *Server) whileThere(c *fiber.Ctx) (stop func()) {
	ctx, cancel := context.WithCancel(s.base)
	c.SetUserContext(ctx)
	client := unwrap(c.Context().Conn())
	if client == nil {
		return cancel
	}
	var ask *time.Timer
	started := make(chan struct{})
	ask = time.AfterFunc(leftAfter, func() {
		<-started
		switch {
		case ctx.Err() != nil:
		case client.left():
			cancel()
		default:
			ask.Reset(leftEvery)
		}
	})
	close(started)
	return func() {
		cancel()
		ask.Stop()
	}
}

// left reports whether the client has closed or reset the connection. A client that has only shut down its sending side
// looks the same, even if it still waits for the answer.
func (c *conn) left() bool {
	raw, ok := c.Conn.(syscall.Conn)
	if !ok {
		return false
	}
	control, err := raw.SyscallConn()
	if err != nil {
		return true // already closed
	}
	var events int16
	err = control.Control(func(fd uintptr) {
		// poll consumes no bytes: the client may have sent more requests, and TLS sends an alert before the end.
		asked := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		if _, err := unix.Poll(asked, 0); err == nil {
			events = asked[0].Revents
		}
	})
	return err != nil || events != 0
}
