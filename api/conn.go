package api

import (
	"cmp"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/attestd/attestd/appliance"
)

const (
	// lingerTime and lingerBytes bound the input that is read and discarded after an answer that was sent before the
	// end of the request. Closing a connection with unread data resets it. A client that writes its whole request
	// before it reads would then lose the answer (RFC 9112, section 9.6).
	lingerTime  = 5 * time.Second
	lingerBytes = 256 << 20
)

// conn is an accepted connection below TLS. Before it closes, it can drain the input that the client still sends.
type conn struct {
	net.Conn
	set     *connections
	network netip.Addr // counted against MostPerAddress; invalid for trusted peers, which have no such limit
	key     string     // id of the last valid API key, "" for none; guarded by set.mu

	known   atomic.Bool // had a valid API key, or is a trusted peer: it may idle for IdleTimeout
	working atomic.Bool // a request is being answered and the server is not reading
	resting atomic.Bool // the last answer is written, and the next request has not begun
	active  atomic.Bool // the client has sent at least one byte
	ended   atomic.Bool // the client has closed its sending side
	linger  atomic.Bool // Close must drain the connection first
	gone    atomic.Bool // closed to make room for another connection

	eachWrite atomic.Int64 // time.Duration of each write of a stream; zero without a stream
	once      sync.Once
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
	stream := time.Duration(c.eachWrite.Load())
	if t := cmp.Or(stream, c.set.writeTimeout); t > 0 {
		_ = c.SetWriteDeadline(time.Now().Add(t))
	}
	n, err := c.Conn.Write(p)
	if stream > 0 && errors.Is(err, os.ErrDeadlineExceeded) {
		c.set.metrics.streamCut()
	}
	return n, err
}

// The deadline setters never return errors. They would fail if shutdown has just closed the connection, and fasthttp
// would then panic outside any handler. The next read or write fails instead.

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

// drain closes the connection for writing and reads to its end, within lingerTime and lingerBytes.
func (c *conn) drain() {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return
	}
	if c.Conn.SetReadDeadline(time.Now().Add(lingerTime)) == nil {
		_, _ = io.CopyN(io.Discard, c.Conn, lingerBytes)
	}
}

// httpConn is a connection as fasthttp sees it: above TLS, if any, and with only the requests that framing accepts. One
// goroutine reads it and answers.
type httpConn struct {
	net.Conn // raw, or TLS over it
	raw      *conn
	framing  framing
	tls      *tls.Config // set until the handshake begins; nil for plain HTTP
	secure   bool        // the connection is TLS
	plain    bool        // the client sent plain HTTP to a TLS port

	held    []byte // received, but not yet accepted by framing
	again   bool   // held may contain a complete request
	begun   bool   // fasthttp already has the first byte of the next request
	ready   []byte // accepted by framing, but not yet read by fasthttp
	refusal error  // returned by Read after the accepted bytes

	deadline time.Time // read deadline, as set by fasthttp
	requests int       // requests that reached the handler
}

func newHTTPConn(raw *conn, config *tls.Config) *httpConn {
	return &httpConn{Conn: raw, raw: raw, tls: config}
}

// begin reads the first byte of a connection that should speak TLS. If the byte is a letter, the client speaks plain
// HTTP. It then gets a readable problem instead of a TLS alert, which few programs can show.
func (c *httpConn) begin() error {
	first := make([]byte, 1)
	if n, err := c.raw.Read(first); n == 0 {
		return err
	}
	c.plain, c.secure = isLetter(first[0]), !isLetter(first[0])
	begun := &begunConn{Conn: c.raw, first: first}
	if c.Conn = begun; c.secure {
		c.Conn = tls.Server(begun, c.tls) // handshakes in the first Read, within its deadline
	}
	c.tls = nil
	return nil
}

func isLetter(b byte) bool { return b|0x20 >= 'a' && b|0x20 <= 'z' }

// begunConn is a connection that replays bytes that were read before.
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

// check calls framing.pass, unless the client spoke plain HTTP to a TLS port.
func (c *httpConn) check(in []byte) (passed []byte, used int, err error) {
	if c.plain {
		return nil, 0, appliance.Errorf(CodeInvalidRequest, "this port requires HTTPS, but the request is plain "+
			"HTTP: use https://")
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

// receive copies accepted bytes into p. It checks the held bytes first if they may contain a complete request, and
// otherwise reads more.
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

// first returns a byte that makes fasthttp see the start of a request that is incomplete or refused. Without it,
// fasthttp would take the connection for idle and would not answer. first returns nil if no request has begun.
func (c *httpConn) first(rest []byte, refusal error) []byte {
	switch {
	case c.framing.part != atHead || c.begun || c.again:
		return nil
	case refusal != nil:
		return []byte("?") // fasthttp sends no answer after a line break
	case len(rest) > 0 && rest[0] != '\r':
		return rest[:1:1]
	}
	return nil
}

// wait reads more bytes. A client without a valid API key has only AnonymousIdleTimeout to begin a request.
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

// end maps the error of a read that returned no bytes. Inside a request, io.EOF becomes io.ErrUnexpectedEOF, because
// fasthttp takes io.EOF for the end of a body.
func (c *httpConn) end(err error) error {
	if errors.Is(err, io.EOF) && (c.framing.part != atHead || c.begun) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// next counts a request that reached the handler. It returns an error if framing saw fewer requests: fasthttp then
// parsed a request out of another one.
func (c *httpConn) next() error {
	if c.requests++; c.requests > c.framing.requests {
		return malformed("it is within another")
	}
	return c.refusal // of a body that began together with its headers
}

// closing reports whether the connection must close after the answer.
func (c *httpConn) closing() bool { return c.framing.chunked || c.framing.close || c.refusal != nil }

// connOf returns the connection of a request, or nil if it did not come through a listener.
func connOf(rctx *fasthttp.RequestCtx) *httpConn {
	c, _ := rctx.Conn().(*httpConn)
	return c
}

// unwrap returns the conn under a connection of the server, or nil for any other connection.
func unwrap(c net.Conn) *conn {
	if h, ok := c.(*httpConn); ok {
		return h.raw
	}
	return nil
}
