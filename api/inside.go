package api

import (
	"context"
	"net"
	"sync"
)

// ByHeader names the caller on a connection inside the process. On other connections it is ignored. See Inside.
const ByHeader = "Attestd-By"

// Inside is a listener for other parts of this process. It connects them without a socket. They name their caller in
// ByHeader, because a user of the console is not a user of this machine.
type Inside struct {
	dialled chan net.Conn
	closed  chan struct{}
	close   func()
}

// NewInside returns a listener, for Admin.Serve.
func NewInside() *Inside {
	l := &Inside{dialled: make(chan net.Conn), closed: make(chan struct{})}
	l.close = sync.OnceFunc(func() { close(l.closed) })
	return l
}

// insideConn marks a connection that came through an Inside.
type insideConn struct{ net.Conn }

// Dial connects to the server.
func (l *Inside) Dial(ctx context.Context) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case l.dialled <- insideConn{theirs}:
		return ours, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Accept implements net.Listener.
func (l *Inside) Accept() (net.Conn, error) {
	select {
	case c := <-l.dialled:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *Inside) Close() error {
	l.close()
	return nil
}

// Addr implements net.Listener.
func (l *Inside) Addr() net.Addr { return insideAddr{} }

type insideAddr struct{}

func (insideAddr) Network() string { return "inside" }
func (insideAddr) String() string  { return "inside" }
