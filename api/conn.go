package api

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// lingerTime and lingerBytes bound what is read and discarded after an answer that was sent before the end of the
	// request. To close a connection with unread data resets it, and a client that writes its whole request before it
	// reads would lose the answer (RFC 9112, section 9.6).
	lingerTime  = 5 * time.Second
	lingerBytes = 256 << 20
)

// listener returns conns from Accept and keeps track of those that are open.
type listener struct {
	net.Listener
	writeTimeout time.Duration // of each write; zero leaves the deadline to the server
	close        func() error

	mu   sync.Mutex
	open map[*conn]struct{}
}

func newListener(ln net.Listener, writeTimeout time.Duration) *listener {
	return &listener{
		Listener: ln, writeTimeout: writeTimeout,
		// Once: fasthttp stops a shutdown if its listener is already closed.
		close: sync.OnceValue(ln.Close),
		open:  make(map[*conn]struct{}),
	}
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	wrapped := &conn{Conn: c, listener: l}
	l.mu.Lock()
	l.open[wrapped] = struct{}{}
	l.mu.Unlock()
	return wrapped, nil
}

func (l *listener) Close() error { return l.close() }

// abort closes all connections, or those that have not sent a byte yet, without waiting for what they may still send.
func (l *listener) abort(all bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.open {
		if all || !c.active.Load() {
			_ = c.Conn.Close()
		}
	}
}

// conn is a connection that can read what the client still sends before it is closed.
type conn struct {
	net.Conn
	listener *listener
	active   atomic.Bool // the client has sent at least one byte
	ended    atomic.Bool // the client has ended its side
	linger   atomic.Bool // Close must drain the connection first
	once     sync.Once
}

func (c *conn) Read(p []byte) (int, error) {
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
	if t := c.listener.writeTimeout; t > 0 {
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
		c.listener.mu.Lock()
		delete(c.listener.open, c)
		c.listener.mu.Unlock()
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

// unwrap returns the conn under a connection of the server, nil if there is none.
func unwrap(c net.Conn) *conn {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	wrapped, _ := c.(*conn)
	return wrapped
}
