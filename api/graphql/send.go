package graphql

import (
	"io"
	"net/http"

	"github.com/gofiber/fiber/v2"
)

// unheldBytes is the maximum size of an answer that is sent without a share of the budget, such as an error.
const unheldBytes = 16 << 10

// sendBody sends the body of a response, and releases it once it is sent.
func (e *Endpoint) sendBody(c *fiber.Ctx, r response) error {
	r, err := e.coded(c, r)
	if err != nil {
		if r.held != nil {
			e.reuse(r)
		}
		return refuseOverloaded(c)
	}
	if r.held == nil {
		if r.body.size() <= unheldBytes {
			c.Response().SetBodyRaw(r.body.whole())
			return nil
		}
		r.held = &share{budget: e.budget}
		if !r.held.grow(r.body.size()) {
			return refuseOverloaded(c)
		}
		send(c, r.body, r.held.release) // other requests may send this body, too
		return nil
	}
	send(c, r.body, func() { e.reuse(r) })
	return nil
}

// refuseOverloaded refuses an answer that exists but cannot be sent.
func refuseOverloaded(c *fiber.Ctx) error {
	setRetryAfter(c, 0)
	return refuse(c, http.StatusServiceUnavailable, overloaded())
}

// send makes the server write a body without copying it. sent is called once the body is written or writing has failed.
func send(c *fiber.Ctx, body pieces, sent func()) {
	s := &sending{rest: body, sent: sent}
	if len(body) == 1 { // without a stream, headers and body are written together
		c.Response().SetBodyRaw(body[0])
		c.Context().SetUserValue(sendingKey{}, s)
		return
	}
	c.Response().SetBodyStream(s, body.size())
}

// sendingKey is the key of a user value that fasthttp closes once the answer is written or the connection has failed.
type sendingKey struct{}

// sending is a body that is being sent. For a stream, fasthttp calls WriteTo and then Close.
type sending struct {
	piece []byte // the unsent rest of the current piece
	rest  pieces
	sent  func()
}

// next moves on to the next piece once the current one is sent, and reports whether any bytes are left.
func (s *sending) next() bool {
	for len(s.piece) == 0 && len(s.rest) > 0 {
		s.piece, s.rest = s.rest[0], s.rest[1:]
	}
	return len(s.piece) > 0
}

func (s *sending) WriteTo(w io.Writer) (written int64, err error) {
	for err == nil && s.next() {
		var n int
		n, err = w.Write(s.piece)
		written += int64(n)
		s.piece = s.piece[n:]
	}
	return written, err
}

func (s *sending) Read(p []byte) (int, error) {
	if !s.next() {
		return 0, io.EOF
	}
	n := copy(p, s.piece)
	s.piece = s.piece[n:]
	return n, nil
}

func (s *sending) Close() error {
	s.sent()
	return nil
}
