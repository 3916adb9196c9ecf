package api

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/attestd/attestd/appliance"
)

const (
	// lingerTime and lingerBytes bound what is read and discarded after an answer that was sent before the end of the
	// request. To close a connection with unread data resets it, and a client that writes its whole request before it
	// reads would lose the answer (RFC 9112, section 9.6).
	lingerTime  = 5 * time.Second
	lingerBytes = 256 << 20
)

// conn is an accepted connection below TLS. It can read what the client still sends before it is closed.
type conn struct {
	net.Conn
	set     *connections
	network netip.Addr // what it counts for; not valid where there is no limit for it
	key     string     // the id of the valid API key that was shown last, "" for none; set.mu guards it

	known   atomic.Bool // a valid API key was shown, or it is a trusted peer's: it may stay idle for long
	working atomic.Bool // a request is being answered, and nobody waits for the client
	resting atomic.Bool // the last answer is written, and no byte of the next request has come
	active  atomic.Bool // the client has sent at least one byte
	ended   atomic.Bool // the client has ended its side
	linger  atomic.Bool // Close must drain the connection first
	gone    atomic.Bool // it was closed to make place
	once    sync.Once
}

func (c *conn) Read(p []byte) (int, error) {
	if c.working.CompareAndSwap(true, false) {
		defer c.working.Store(true)
	}
	n, err := c.Conn.Read(p)
	if n > 0 && !c.active.Load() {
		c.active.Store(true)
	}
	if errors.Is(err, io.EOF) {
		c.ended.Store(true)
	}
	return n, err
}

func (c *conn) Write(p []byte) (int, error) {
	if t := c.set.writeTimeout; t > 0 {
		_ = c.SetWriteDeadline(time.Now().Add(t))
	}
	return c.Conn.Write(p)
}

// The methods that set deadlines return no errors, because fasthttp panics outside any handler if they do, and they would
// if shutdown has just closed the connection. The next read or write fails then.

func (c *conn) SetDeadline(t time.Time) error      { _ = c.Conn.SetDeadline(t); return nil }
func (c *conn) SetReadDeadline(t time.Time) error  { _ = c.Conn.SetReadDeadline(t); return nil }
func (c *conn) SetWriteDeadline(t time.Time) error { _ = c.Conn.SetWriteDeadline(t); return nil }

func (c *conn) Close() error {
	c.once.Do(func() {
		if c.linger.Load() {
			c.drain()
		}
		c.set.remove(c)
	})
	return c.Conn.Close()
}

// drain closes the connection for writing and reads to its end, within bounds.
func (c *conn) drain() {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return
	}
	if c.Conn.SetReadDeadline(time.Now().Add(lingerTime)) == nil {
		_, _ = io.CopyN(io.Discard, c.Conn, lingerBytes)
	}
}

// httpConn is a connection as fasthttp reads it: above TLS, where there is any, and with requests that framing let pass. One
// goroutine reads it and answers.
type httpConn struct {
	net.Conn // raw, or TLS over it
	raw      *conn
	framing  framing
	tls      *tls.Config // of the handshake that is still to come; nil means none
	secure   bool        // TLS is spoken
	plain    bool        // plain HTTP came where TLS is spoken

	held    []byte // came, and did not pass yet
	again   bool   // held may be more than the beginning of something
	begun   bool   // the first byte of the next request has passed, to tell fasthttp that one has begun
	ready   []byte // passed, and was not read yet
	refusal error  // why nothing more passes

	deadline time.Time // of reading, as fasthttp wants it
	requests int       // that reached the handler
}

func newHTTPConn(raw *conn, config *tls.Config) *httpConn {
	return &httpConn{Conn: raw, raw: raw, tls: config}
}

// begin reads the first byte of a connection that should speak TLS. Whoever begins with a letter speaks plain HTTP, and is told
// so instead of getting a TLS alert, which few programs can show.
func (c *httpConn) begin() error {
	first := make([]byte, 1)
	if n, err := c.raw.Read(first); n == 0 {
		return err
	}
	c.plain, c.secure = isLetter(first[0]), !isLetter(first[0])
	begun := &begunConn{Conn: c.raw, first: first}
	if c.Conn = begun; c.secure {
		c.Conn = tls.Server(begun, c.tls) // shakes hands in the first Read, within its deadline
	}
	c.tls = nil
	return nil
}

func isLetter(b byte) bool { return b|0x20 >= 'a' && b|0x20 <= 'z' }

// begunConn is a connection of which the first bytes were read before.
type begunConn struct {
	net.Conn
	first []byte
}

func (c *begunConn) Read(p []byte) (int, error) {
	if len(c.first) > 0 {
		n := copy(p, c.first)
		c.first = c.first[n:]
		return n, nil
	}
	return c.Conn.Read(p)
}

// check is framing.pass for a connection that speaks what it should.
func (c *httpConn) check(in []byte) (passed []byte, used int, err error) {
	if c.plain {
		return nil, 0, appliance.Errorf(CodeInvalidRequest, "this port speaks HTTPS, and this request came as plain HTTP: use https://")
	}
	return c.framing.pass(in)
}

func (c *httpConn) SetReadDeadline(t time.Time) error {
	c.deadline = t
	return c.raw.SetReadDeadline(t)
}

func (c *httpConn) Read(p []byte) (int, error) {
	for {
		if len(c.ready) > 0 {
			n := copy(p, c.ready)
			c.ready = c.ready[n:]
			return n, nil
		}
		if c.refusal != nil {
			return 0, c.refusal
		}
		if n, err := c.receive(p); n > 0 || err != nil {
			return n, err
		}
	}
}

// receive puts into p what passes of what was held, or else of what comes next.
func (c *httpConn) receive(p []byte) (int, error) {
	in, own := c.held, len(c.held) > 0
	if !c.again {
		n, err := c.wait(p)
		if n == 0 {
			return 0, c.end(err)
		}
		if in = p[:n]; own {
			in = append(c.held, in...)
		}
	}
	passed, used, err := c.check(in)
	rest := in[used:]
	c.again = err == nil && used > 0 && c.framing.part == atHead && len(rest) > 0
	if c.begun && len(passed) > 0 {
		passed, c.begun = passed[1:], false
	}
	if first := c.first(rest, err); len(passed) == 0 && first != nil {
		passed, c.begun = first, true
	}
	n := 0
	if c.refusal = err; own {
		c.ready, c.held = passed, rest
	} else {
		c.held = append([]byte(nil), rest...)
		n = copy(p, passed)
	}
	if len(rest) == 0 {
		c.held = nil
	}
	return n, nil
}

// first is what tells fasthttp that a request has begun, which is not there whole or is refused: without a byte of it, fasthttp
// would take it for a connection at rest, and not answer it. Nil means that none has.
func (c *httpConn) first(rest []byte, refusal error) []byte {
	switch {
	case c.framing.part != atHead || c.begun || c.again:
		return nil
	case refusal != nil:
		return []byte("?") // fasthttp would answer nothing to a line break
	case len(rest) > 0 && rest[0] != '\r':
		return rest[:1:1]
	}
	return nil
}

// wait reads what comes next. While no request has begun, a stranger has less time.
func (c *httpConn) wait(p []byte) (int, error) {
	idle := c.framing.part == atHead && !c.begun && len(c.held) == 0
	if limit := c.raw.set.limits.AnonymousIdleTimeout; idle && limit > 0 && !c.raw.known.Load() {
		if until := time.Now().Add(limit); c.deadline.IsZero() || until.Before(c.deadline) {
			_ = c.raw.SetReadDeadline(until)
			defer func() { _ = c.raw.SetReadDeadline(c.deadline) }()
		}
	}
	c.raw.resting.Store(idle)
	defer c.raw.resting.Store(false)
	if c.tls != nil {
		if err := c.begin(); err != nil {
			return 0, err
		}
	}
	return c.Conn.Read(p)
}

// end is the error of a read after which nothing comes: fasthttp takes io.EOF for the end of a body.
func (c *httpConn) end(err error) error {
	if errors.Is(err, io.EOF) && (c.framing.part != atHead || c.begun) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// next counts a request that reached the handler. It returns an error if framing saw fewer: then fasthttp found one where
// none is.
func (c *httpConn) next() error {
	if c.requests++; c.requests > c.framing.heads {
		return malformed("it is within another")
	}
	return c.refusal // of a body whose beginning came with its headers
}

// closing reports whether the connection must close after the answer.
func (c *httpConn) closing() bool { return c.framing.chunked || c.framing.close || c.refusal != nil }

// connOf returns the connection that a request came from, nil if it is none of a listener.
func connOf(rctx *fasthttp.RequestCtx) *httpConn {
	c, _ := rctx.Conn().(*httpConn)
	return c
}

// unwrap returns the conn under a connection of the server, nil if there is none.
func unwrap(c net.Conn) *conn {
	if h, ok := c.(*httpConn); ok {
		return h.raw
	}
	return nil
}
