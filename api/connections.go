package api

import (
	"container/list"
	"context"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"
)

// connectionLimits bound what clients can hold by being connected.
type connectionLimits struct {
	Most           int // of all
	MostPerAddress int // of one client: an IPv4 address or an IPv6 /64
	// AnonymousIdleTimeout is the idle timeout of connections that never showed a valid API key. Zero means that of all others.
	AnonymousIdleTimeout time.Duration
	// Trusted peers are proxies, whose connections are everybody's: they have no limit per address, and the idle timeout of
	// connections with a key.
	Trusted []netip.Prefix
}

// thisMachine is trusted as a proxy: a stranger is not on it.
var thisMachine = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}

// connections are the open connections of a server, from all its listeners. It is safe for concurrent use.
type connections struct {
	limits       connectionLimits
	writeTimeout time.Duration // of each write; zero leaves the deadline to the server
	metrics      *metrics
	logger       *slog.Logger
	now          func() time.Time

	mu   sync.Mutex
	open map[*conn]*list.Element // the element is its place in strangers, nil if it has none
	from map[netip.Addr]int      // how many are open from each network
	// strangers are the connections that never showed a valid API key, least recently used first: by the time of the last answer,
	// or of accepting where there was none.
	strangers *list.List
	said      map[string]*notice // by reason
}

// notice counts events of a kind that is logged once a minute at most.
type notice struct {
	last  time.Time
	since int // events since then
}

// Why a connection is refused, or closed for another one.
const (
	refusedAll       = "all"
	refusedAddress   = "address"
	closedForAnother = "closed_for_another"
)

func newConnections(limits connectionLimits, writeTimeout time.Duration, m *metrics, logger *slog.Logger, now func() time.Time) *connections {
	return &connections{
		limits: limits, writeTimeout: writeTimeout, metrics: m, logger: logger, now: now,
		open: map[*conn]*list.Element{}, from: map[netip.Addr]int{}, strangers: list.New(), said: map[string]*notice{},
	}
}

// add counts an accepted connection. If there are too many, it closes it and returns nil.
func (s *connections) add(accepted net.Conn) *conn {
	c := &conn{Conn: accepted, set: s}
	peer := peerOf(accepted)
	s.mu.Lock()
	defer s.mu.Unlock()
	trusted := !peer.IsValid() || contains(s.limits.Trusted, peer)
	c.known.Store(trusted)
	if !trusted {
		c.network = network(peer)
		if s.from[c.network] >= s.limits.MostPerAddress {
			s.refuse(accepted, refusedAddress, slog.String("address", peer.String()), slog.Int("limit", s.limits.MostPerAddress))
			return nil
		}
	}
	if len(s.open) >= s.limits.Most && s.displace() {
		s.notice(slog.LevelWarn, closedForAnother, "idle connections without an API key are closed for new ones: too many are open",
			slog.Int("limit", s.limits.Most))
	}
	if len(s.open) >= s.limits.Most {
		s.refuse(accepted, refusedAll, slog.Int("limit", s.limits.Most))
		return nil
	}
	if c.network.IsValid() {
		s.from[c.network]++
	}
	s.open[c] = s.strangers.PushBack(c)
	s.metrics.connections(len(s.open))
	return c
}

// refuse closes a connection by a reset, which leaves nothing behind here.
func (s *connections) refuse(c net.Conn, reason string, attrs ...slog.Attr) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
	s.metrics.connectionRefused(reason)
	s.notice(slog.LevelWarn, reason, "connections are refused: too many are open", append(attrs, slog.String("reason", reason))...)
}

// displace closes the least recently used connection without an API key, except those with a request under way, and reports whether
// there was one. The lock must be held.
func (s *connections) displace() bool {
	for e := s.strangers.Front(); e != nil; e = e.Next() {
		c := e.Value.(*conn)
		if c.working.Load() {
			continue
		}
		s.forget(c)
		c.gone.Store(true)
		_ = c.Conn.Close() // whoever reads or writes it sees that
		s.metrics.connectionRefused(closedForAnother)
		return true
	}
	return false
}

// displaceOne is displace for callers without the lock; it frees a file descriptor.
func (s *connections) displaceOne() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.displace()
}

// notice logs an event, once a minute at most, with the number of events since the last time. The lock must be held.
func (s *connections) notice(level slog.Level, reason, text string, attrs ...slog.Attr) {
	n := s.said[reason]
	if n == nil {
		n = &notice{}
		s.said[reason] = n
	}
	n.since++
	now := s.now()
	if now.Sub(n.last) < time.Minute {
		return
	}
	s.logger.LogAttrs(context.Background(), level, text, append(attrs, slog.Int("times", n.since))...)
	*n = notice{last: now}
}

// answered notes the end of a request: the connection is now the most recently used. keyed means that the request showed a valid API
// key, and takes the connection from the strangers for good.
func (s *connections) answered(c *conn, keyed bool) {
	c.working.Store(false)
	s.mu.Lock()
	defer s.mu.Unlock()
	place := s.open[c]
	switch {
	case place == nil:
	case keyed:
		c.known.Store(true)
		s.strangers.Remove(place)
		s.open[c] = nil
	default:
		s.strangers.MoveToBack(place)
	}
}

func (s *connections) remove(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(c)
}

// forget removes a connection from the counts. The lock must be held.
func (s *connections) forget(c *conn) {
	place, open := s.open[c]
	if !open {
		return
	}
	delete(s.open, c)
	if place != nil {
		s.strangers.Remove(place)
	}
	if c.network.IsValid() {
		if s.from[c.network]--; s.from[c.network] == 0 {
			delete(s.from, c.network)
		}
	}
	s.metrics.connections(len(s.open))
}

// abort closes connections at once: all of them, or only those on which no byte has come yet.
func (s *connections) abort(all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.open {
		if all || !c.active.Load() {
			_ = c.Conn.Close()
		}
	}
}

// peerOf returns the client's address, the zero Addr on a Unix socket.
func peerOf(c net.Conn) netip.Addr {
	if tcp, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}
