package api

import (
	"context"
	"syscall"
	"time"

	"github.com/gofiber/fiber/v2"
	"golang.org/x/sys/unix"
)

const (
	// leftAfter is for how long a request is worked on before it is asked whether its client is still there, and leftEvery how
	// long until it is asked again. Most are answered before.
	leftAfter = 20 * time.Millisecond
	leftEvery = 50 * time.Millisecond
)

// whileThere sets the user context of c, which ends when the client has left, and when shutdown cuts requests off. stop must be
// called when the request was worked on.
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

// left reports whether the client has closed or reset the connection. Who ends only its own side, and waits for the answer, cannot be
// told from who has closed.
func (c *conn) left() bool {
	raw, ok := c.Conn.(syscall.Conn)
	if !ok {
		return false
	}
	control, err := raw.SyscallConn()
	if err != nil {
		return true // it is closed already
	}
	var events int16
	err = control.Control(func(fd uintptr) {
		// No byte is taken, whatever the client has sent behind the request, or TLS in front of the end.
		asked := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		if _, err := unix.Poll(asked, 0); err == nil {
			events = asked[0].Revents
		}
	})
	return err != nil || events != 0
}
