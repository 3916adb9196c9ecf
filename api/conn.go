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
	// lingerTime and lingerBytes bound what is read and thrown away after an answer that came before the end of
	// the request. A client that does not read before it has written everything needs that: closing with unread
	// data in the socket resets the connection, and the answer is lost with it (RFC 9112, section 9.6).
	lingerTime  = 5 * time.Second
	lingerBytes = 256 << 20
)

// listener hands out conns and knows all that are open.
type listener struct {
	net.Listener
	writeTimeout time.Duration // for each write; zero leaves deadlines to the server
	close        func() error

	mu   sync.Mutex
	open map[*conn]struct{}
}

func newListener(ln net.Listener, writeTimeout time.Duration) *listener {
	return &listener{
		Listener: ln, writeTimeout: writeTimeout,
		// Once, because fasthttp gives a shutdown up when a listener is closed already.
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

// abort closes connections without ceremony: all, or those that have not sent a byte yet.
func (l *listener) abort(all bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.open {
		if all || !c.spoken.Load() {
			_ = c.Conn.Close()
		}
	}
}

// conn is a connection that can linger when it is closed.
type conn struct {
	net.Conn
	listener *listener
	spoken   atomic.Bool // the client has sent something
	ended    atomic.Bool // the client has ended its side
	linger   atomic.Bool // Close must first read what the client still sends
	once     sync.Once
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 && !c.spoken.Load() {
		c.spoken.Store(true)
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

// The setters of deadlines never fail: fasthttp panics, outside any handler, when one does, and one does when shutdown
// has just closed the connection. The next read or write tells it all the same.

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

// drain ends our side and reads the client's to its end, within bounds.
func (c *conn) drain() {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return
	}
	if c.Conn.SetReadDeadline(time.Now().Add(lingerTime)) == nil {
		_, _ = io.CopyN(io.Discard, c.Conn, lingerBytes)
	}
}

// unwrap returns our conn under the server's, nil where there is none.
func unwrap(c net.Conn) *conn {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	wrapped, _ := c.(*conn)
	return wrapped
}
