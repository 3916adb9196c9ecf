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

// connectionLimits bound the number and the idle time of client connections.
type connectionLimits struct {
	Most           int // of all clients
	MostPerAddress int // of one client: an IPv4 address or an IPv6 /64
	MostPerKey     int // of one API key, except from trusted peers; zero means no limit
	// AnonymousIdleTimeout is the idle timeout of connections that never showed a valid API key. Zero means the same
	// timeout as for other connections.
	AnonymousIdleTimeout time.Duration
	// Trusted peers are proxies, which carry many clients' requests. They have no limit per address, and the idle
	// timeout of connections with an API key.
	Trusted []netip.Prefix
}

// thisMachine is trusted like a proxy: a local client is not anonymous.
var thisMachine = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}

// connections holds the open connections of all listeners of a server. It is safe for concurrent use.
type connections struct {
	limits       connectionLimits
	writeTimeout time.Duration // of each write; zero leaves the deadline to the server
	metrics      *metrics
	logger       *slog.Logger
	now          func() time.Time

	mu   sync.Mutex
	open map[*conn]*list.Element // the element is in strangers or in keyed
	from map[netip.Addr]int      // number of open connections by network
	of   map[string]int          // number of open connections by API key id; see MostPerKey
	// strangers lists the connections that never showed a valid API key, keyed lists the others. Both are ordered by
	// the time of the last answer (or, without an answer, of accepting), least recently used first.
	strangers, keyed *list.List
	said             map[string]*notice // by reason
}

// notice counts events of one kind that is logged at most once per minute.
type notice struct {
	last  time.Time
	since int // events since then
}

// Reasons for refusing a connection, or for closing it in favour of another.
const (
	refusedAll       = "all"
	refusedAddress   = "address"
	closedForKey     = "key"
	closedForAnother = "closed_for_another"
)

func newConnections(limits connectionLimits, writeTimeout time.Duration, m *metrics, logger *slog.Logger,
	now func() time.Time) *connections {
	return &connections{
		limits: limits, writeTimeout: writeTimeout, metrics: m, logger: logger, now: now,
		open: map[*conn]*list.Element{}, from: map[netip.Addr]int{}, of: map[string]int{}, strangers: list.New(),
		keyed: list.New(),
		said:  map[string]*notice{},
	}
}

// add registers an accepted connection. If too many are open, add closes the connection and returns nil.
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
			s.refuse(accepted, refusedAddress, slog.String("address", peer.String()),
				slog.Int("limit", s.limits.MostPerAddress))
			return nil
		}
	}
	if len(s.open) >= s.limits.Most && s.displace() {
		s.notice(slog.LevelWarn, closedForAnother, "too many connections are open: idle ones are closed for new "+
			"ones, those without an API key first",
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

// refuse closes a connection with a TCP reset, so that no socket stays behind in TIME_WAIT.
func (s *connections) refuse(c net.Conn, reason string, attrs ...slog.Attr) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
	s.metrics.connectionRefused(reason)
	s.notice(slog.LevelWarn, reason, "too many connections are open: new ones are refused",
		append(attrs, slog.String("reason", reason))...)
}

// displace closes the least recently used connection without an API key that has no request in progress. If it finds
// none, it closes the longest idle connection with an API key. It reports whether it closed a connection. The caller
// must hold the lock.
func (s *connections) displace() bool {
	for e := s.strangers.Front(); e != nil; e = e.Next() {
		if c := e.Value.(*conn); !c.working.Load() {
			s.drop(c, closedForAnother)
			return true
		}
	}
	return s.displaceKeyed(closedForAnother, func(*conn) bool { return true })
}

// displaceKeyed closes the longest idle connection with an API key for which may returns true. The caller must hold the
// lock.
func (s *connections) displaceKeyed(reason string, may func(*conn) bool) bool {
	for e := s.keyed.Front(); e != nil; e = e.Next() {
		if c := e.Value.(*conn); c.resting.Load() && may(c) {
			s.drop(c, reason)
			return true
		}
	}
	return false
}

// drop closes an open connection in favour of another. A goroutine that reads or writes it gets an error. The caller
// must hold the lock.
func (s *connections) drop(c *conn, reason string) {
	s.forget(c)
	c.gone.Store(true)
	_ = c.Conn.Close()
	s.metrics.connectionRefused(reason)
}

// displaceOne is displace for callers without the lock. It frees a file descriptor.
func (s *connections) displaceOne() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.displace()
}

// notice logs an event at most once per minute, with the number of events since the last line. The caller must hold the
// lock.
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

// answered records the end of a request: the connection becomes the most recently used. key is the id of the request's
// valid API key, or "". A key moves the connection to keyed for good. If the key has too many connections, answered
// closes an idle one of them. If none is idle, it returns true, and the caller must close this connection after its
// answer.
func (s *connections) answered(c *conn, key string) (tooMany bool) {
	c.working.Store(false)
	s.mu.Lock()
	defer s.mu.Unlock()
	place, open := s.open[c]
	if !open {
		return false
	}
	if c.key == "" && key != "" {
		c.known.Store(true)
		s.strangers.Remove(place)
		s.open[c] = s.keyed.PushBack(c)
	} else {
		s.strangers.MoveToBack(place)
		s.keyed.MoveToBack(place)
	}
	if key == "" {
		return false
	}
	s.setKey(c, key)
	if s.limits.MostPerKey == 0 || s.of[key] <= s.limits.MostPerKey {
		return false
	}
	s.notice(slog.LevelWarn, closedForKey, "an API key has too many connections: some are closed",
		slog.String("key", key),
		slog.Int("limit", s.limits.MostPerKey))
	if s.displaceKeyed(closedForKey, func(other *conn) bool { return other.key == key }) {
		return false
	}
	s.metrics.connectionRefused(closedForKey)
	s.setKey(c, "") // no longer counted for the key
	return true
}

// setKey counts a connection for an API key, or for none if key is "". The caller must hold the lock.
func (s *connections) setKey(c *conn, key string) {
	if c.network.IsValid() && c.key != "" {
		if s.of[c.key]--; s.of[c.key] == 0 {
			delete(s.of, c.key)
		}
	}
	if c.key = key; c.network.IsValid() && key != "" {
		s.of[key]++
	}
}

func (s *connections) remove(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(c)
}

// forget removes a connection from the counts. The caller must hold the lock.
func (s *connections) forget(c *conn) {
	place, open := s.open[c]
	if !open {
		return
	}
	delete(s.open, c)
	s.strangers.Remove(place)
	s.keyed.Remove(place)
	s.setKey(c, "")
	if c.network.IsValid() {
		if s.from[c.network]--; s.from[c.network] == 0 {
			delete(s.from, c.network)
		}
	}
	s.metrics.connections(len(s.open))
}

// abort closes all connections at once, or only those that have not received a byte yet.
func (s *connections) abort(all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.open {
		if all || !c.active.Load() {
			_ = c.Conn.Close()
		}
	}
}

// peerOf returns the client's address, or the zero Addr for a Unix socket.
func peerOf(c net.Conn) netip.Addr {
	if tcp, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}
