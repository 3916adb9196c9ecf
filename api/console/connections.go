package console

import (
	"container/list"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"sync"
)

const (
	maxConnections           = 256 // open at once
	maxConnectionsPerAddress = 128 // open at once from one client: an IPv4 address or an IPv6 /64
)

// listener accepts connections and never waits for one to end. At a limit, it closes the least recently used connection
// for a new one. It prefers connections without a session, and never closes one with a request in progress.
type listener struct {
	net.Listener

	mu   sync.Mutex
	open *list.List // of *connection, least recently used first
	from map[netip.Addr]int
}

// connection is an accepted connection below TLS. The listener's lock guards the fields after set.
type connection struct {
	net.Conn
	network netip.Addr
	set     *listener
	place   *list.Element // nil once the connection is closed
	busy    int           // requests in progress
	known   bool          // its last request had a session
}

func newListener(l net.Listener) *listener {
	return &listener{Listener: l, open: list.New(), from: make(map[netip.Addr]int)}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		accepted, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c := l.add(accepted); c != nil {
			return c, nil
		}
	}
}

// add registers a connection. If no room can be made, add closes the connection and returns nil.
func (l *listener) add(accepted net.Conn) *connection {
	c := &connection{Conn: accepted, network: networkOf(accepted.RemoteAddr()), set: l}
	ofNetwork := func(other *connection) bool { return other.network == c.network }
	anyOf := func(*connection) bool { return true }
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.from[c.network] >= maxConnectionsPerAddress && !l.displace(ofNetwork) || l.open.Len() >= maxConnections &&
		!l.displace(anyOf) {
		_ = accepted.Close()
		return nil
	}
	l.from[c.network]++
	c.place = l.open.PushBack(c)
	return c
}

// displace closes a connection for which may returns true, and reports whether it found one. The caller must hold the
// lock.
func (l *listener) displace(may func(*connection) bool) bool {
	for _, known := range []bool{false, true} {
		for e := l.open.Front(); e != nil; e = e.Next() {
			if c := e.Value.(*connection); c.known == known && c.busy == 0 && may(c) {
				l.forget(c)
				_ = c.Conn.Close()
				return true
			}
		}
	}
	return false
}

// forget removes a connection from the counts. The caller must hold the lock.
func (l *listener) forget(c *connection) {
	if c.place == nil {
		return
	}
	l.open.Remove(c.place)
	c.place = nil
	if l.from[c.network]--; l.from[c.network] == 0 {
		delete(l.from, c.network)
	}
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.set.mu.Lock()
	c.set.forget(c)
	c.set.mu.Unlock()
	return c.Conn.Close()
}

// begin records the start of a request, and whether it has a session.
func (c *connection) begin(known bool) {
	c.set.mu.Lock()
	defer c.set.mu.Unlock()
	c.busy++
	c.known = known
	c.touch()
}

func (c *connection) end() {
	c.set.mu.Lock()
	defer c.set.mu.Unlock()
	c.busy--
	c.touch()
}

// touch marks the connection as most recently used. The caller must hold the lock.
func (c *connection) touch() {
	if c.place != nil {
		c.set.open.MoveToBack(c.place)
	}
}

type connectionKey struct{}

// withConnection is http.Server.ConnContext.
func withConnection(ctx context.Context, c net.Conn) context.Context {
	if secured, ok := c.(*tls.Conn); ok {
		c = secured.NetConn()
	}
	own, _ := c.(*connection)
	return context.WithValue(ctx, connectionKey{}, own)
}

// connectionOf returns the connection of a request, or nil if it did not come through a listener.
func connectionOf(ctx context.Context) *connection {
	c, _ := ctx.Value(connectionKey{}).(*connection)
	return c
}

// counted tracks which connections have a request in progress.
func (c *Console) counted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if own := connectionOf(r.Context()); own != nil {
			own.begin(c.session(r) != nil)
			defer own.end()
		}
		next.ServeHTTP(w, r)
	})
}

// networkOf returns the network of a TCP address: the IPv4 address or the IPv6 /64. For other addresses it returns the
// zero Addr.
func networkOf(a net.Addr) netip.Addr {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	ip := tcp.AddrPort().Addr().Unmap()
	if !ip.Is6() {
		return ip
	}
	prefix, err := ip.WithZone("").Prefix(64)
	if err != nil {
		return ip
	}
	return prefix.Addr()
}
