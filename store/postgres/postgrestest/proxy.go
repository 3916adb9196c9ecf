package postgrestest

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5/pgproto3"
)

// Cut is the moment at which a connection is cut around a COMMIT.
type Cut int

// The moments.
const (
	Never        Cut = iota
	BeforeCommit     // the server does not receive the COMMIT and rolls back
	InCommit         // the server has committed, but its answer is lost
	AfterCommit      // the client has received the answer
)

// Faults are the failures of the network between clients and server. The zero value is a healthy network.
type Faults struct {
	Cut         Cut
	CutsLeft    int           // number of COMMITs to cut; 0 means no limit
	Refuse      bool          // existing and new connections are reset
	Silent      bool          // no data arrives in either direction; connections stay open, as with a pulled cable
	CommitDelay time.Duration // delay before each COMMIT reaches the server
	HoldDelay   time.Duration // delay before a client's message inside a transaction reaches the server
}

// Proxy is a network between clients and a server that fails on request.
type Proxy struct {
	listener net.Listener
	server   *Server
	commits  atomic.Int64

	mu     sync.Mutex // protects the fields below
	faults Faults
	change chan struct{} // closed when faults change
	open   map[net.Conn]struct{}
}

// NewProxy starts a proxy to the server until the end of the test.
func NewProxy(tb testing.TB, server *Server) *Proxy {
	tb.Helper()
	l, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	check(tb, err)
	p := &Proxy{listener: l, server: server, change: make(chan struct{}), open: map[net.Conn]struct{}{}}
	go p.serve()
	tb.Cleanup(func() { _ = l.Close(); p.Fail(Faults{Refuse: true}) })
	return p
}

// Address returns the listening address.
func (p *Proxy) Address() string { return p.listener.Addr().String() }

// Server returns the server behind the proxy.
func (p *Proxy) Server() *Server { return p.server }

// URL returns the owner's URL for a database, through the proxy.
func (p *Proxy) URL(database string) string { return p.RoleURL(url.User(Owner), database) }

// RoleURL returns the URL of a role, through the proxy.
func (p *Proxy) RoleURL(role *url.Userinfo, database string) string {
	return (&url.URL{Scheme: "postgres", User: role, Host: p.Address(), Path: "/" + database,
		RawQuery: "sslmode=disable"}).String()
}

// Fail sets the faults from now on.
func (p *Proxy) Fail(f Faults) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = f
	close(p.change)
	p.change = make(chan struct{})
	if f.Refuse {
		for c := range p.open {
			reset(c)
		}
	}
}

// Cut resets the existing connections. New ones are not affected.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.open {
		reset(c)
	}
}

// Commits returns how many COMMITs clients have sent.
func (p *Proxy) Commits() int64 { return p.commits.Load() }

// CutsLeft returns how many COMMITs are still to be cut.
func (p *Proxy) CutsLeft() int { return p.now().CutsLeft }

func reset(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}

func (p *Proxy) serve() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		if p.now().Refuse {
			reset(client)
			continue
		}
		server, err := new(net.Dialer).DialContext(context.Background(), "unix", p.server.socket())
		if err != nil {
			reset(client)
			continue
		}
		p.remember(client)
		c := &connection{proxy: p, client: client, server: server, ended: make(chan struct{})}
		go c.fromClient()
		go c.fromServer()
	}
}

func (p *Proxy) remember(client net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open[client] = struct{}{}
}

func (p *Proxy) forget(client net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, client)
}

func (p *Proxy) now() Faults {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.faults
}

// cut counts a COMMIT, and returns how to cut it.
func (p *Proxy) cut() (cut Cut, delay time.Duration) {
	p.commits.Add(1)
	p.mu.Lock()
	defer p.mu.Unlock()
	cut, delay = p.faults.Cut, p.faults.CommitDelay
	if cut != Never && p.faults.CutsLeft > 0 {
		if p.faults.CutsLeft--; p.faults.CutsLeft == 0 {
			p.faults.Cut = Never
		}
	}
	return cut, delay
}

// silence waits while the network is silent. It returns false if the connection has ended.
func (c *connection) silence() bool {
	for {
		c.proxy.mu.Lock()
		silent, change := c.proxy.faults.Silent, c.proxy.change
		c.proxy.mu.Unlock()
		if !silent {
			return true
		}
		select {
		case <-change:
		case <-c.ended:
			return false
		}
	}
}

// connection is a client's connection and the matching connection to the server.
type connection struct {
	proxy          *Proxy
	client, server net.Conn
	once           sync.Once
	ended          chan struct{} // closed when either connection has ended
	commit         commits       // owned by fromClient
	cutting        atomic.Int32  // the Cut of the COMMIT that awaits its answer
	idle           atomic.Bool   // the server waits for the client inside a transaction
}

func (c *connection) end() {
	c.once.Do(func() {
		close(c.ended)
		c.proxy.forget(c.client)
		reset(c.client)
		_ = c.server.Close()
	})
}

// fromClient forwards the client's messages. The first messages have only a length; later messages also have a type.
func (c *connection) fromClient() {
	defer c.end()
	for started := false; ; {
		frame, err := readFrame(c.client, started)
		if err != nil || !c.silence() {
			return
		}
		// The proxy refuses encryption itself. The server's answer would be a single byte without a length.
		if !started && (isRequest(frame, 80877103) || isRequest(frame, 80877104)) {
			if _, err := c.client.Write([]byte("N")); err != nil {
				return
			}
			continue
		}
		if c.idle.Swap(false) && !c.wait(c.proxy.now().HoldDelay) {
			return
		}
		if started && c.commit.sent(frame) && !c.beforeCommit() {
			return
		}
		started = started || !isRequest(frame, 80877102) // a CancelRequest is the last message
		if _, err := c.server.Write(frame); err != nil {
			return
		}
	}
}

// beforeCommit returns false if the COMMIT must not be forwarded.
func (c *connection) beforeCommit() bool {
	cut, delay := c.proxy.cut()
	if !c.wait(delay) {
		return false
	}
	c.cutting.Store(int32(cut))
	return cut != BeforeCommit
}

// wait simulates a slow network. It returns false if the connection has ended.
func (c *connection) wait(delay time.Duration) bool {
	select {
	case <-time.After(delay):
		return true
	case <-c.ended:
		return false
	}
}

// fromServer forwards the server's answers.
func (c *connection) fromServer() {
	defer c.end()
	for {
		frame, err := readFrame(c.server, true)
		if err != nil || !c.silence() {
			return
		}
		if frame[0] == 'Z' { // ReadyForQuery
			c.idle.Store(frame[5] == 'T')
		}
		cut := Cut(c.cutting.Load())
		if cut == InCommit && ended(frame) {
			return
		}
		if _, err := c.client.Write(frame); err != nil {
			return
		}
		if cut == AfterCommit && frame[0] == 'Z' {
			return
		}
	}
}

// ended reports whether a message is the answer to a COMMIT.
func ended(frame []byte) bool {
	var m pgproto3.CommandComplete
	if frame[0] != 'C' || m.Decode(frame[5:]) != nil {
		return false
	}
	return string(m.CommandTag) == "COMMIT" || string(m.CommandTag) == "ROLLBACK"
}

// commits detects a COMMIT in a client's messages: a simple query, or the execution of a prepared statement.
type commits struct {
	statements, portals map[string]bool
}

func (c *commits) sent(frame []byte) bool {
	if c.statements == nil {
		c.statements, c.portals = map[string]bool{}, map[string]bool{}
	}
	body := frame[5:]
	switch frame[0] {
	case 'Q':
		var m pgproto3.Query
		return m.Decode(body) == nil && isCommit(m.String)
	case 'P':
		var m pgproto3.Parse
		if m.Decode(body) == nil {
			c.statements[m.Name] = isCommit(m.Query)
		}
	case 'B':
		var m pgproto3.Bind
		if m.Decode(body) == nil {
			c.portals[m.DestinationPortal] = c.statements[m.PreparedStatement]
		}
	case 'E':
		var m pgproto3.Execute
		return m.Decode(body) == nil && c.portals[m.Portal]
	}
	return false
}

// isCommit reports whether a statement is COMMIT, or a batch of statements that ends with it.
func isCommit(sql string) bool {
	words := strings.FieldsFunc(strings.ToLower(sql), func(r rune) bool { return unicode.IsSpace(r) || r == ';' })
	return len(words) > 0 && words[len(words)-1] == "commit"
}

func isRequest(frame []byte, code uint32) bool {
	return len(frame) >= 8 && binary.BigEndian.Uint32(frame[4:]) == code
}

// readFrame reads a message: a type if typed, a length that counts itself, and a body.
func readFrame(r io.Reader, typed bool) ([]byte, error) {
	before := 0
	if typed {
		before = 1
	}
	frame := make([]byte, before+4)
	if _, err := io.ReadFull(r, frame); err != nil {
		return nil, err
	}
	length := int(binary.BigEndian.Uint32(frame[before:]))
	if length < 4 || length > 1<<30 {
		return nil, errors.New("not a message of the PostgreSQL protocol")
	}
	frame = append(frame, make([]byte, length-4)...)
	_, err := io.ReadFull(r, frame[before+4:])
	return frame, err
}
