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

// Cut is when a connection is cut around a COMMIT.
type Cut int

// The cuts.
const (
	Never        Cut = iota
	BeforeCommit     // the server never gets the COMMIT: the transaction is rolled back
	InCommit         // the server has committed, and its answer is lost
	AfterCommit      // the client has the answer
)

// Faults are how the network between the clients and a server fails; the zero value is a network that is well.
type Faults struct {
	Cut         Cut
	CutsLeft    int           // so many COMMITs are cut, then no more; 0 is without end
	Refuse      bool          // connections, those that are made and new ones, are reset
	Silent      bool          // nothing arrives in either direction; connections stay, as when a cable is pulled
	CommitDelay time.Duration // before each COMMIT reaches the server
	HoldDelay   time.Duration // before what a client sends inside a transaction reaches the server
}

// Proxy is a network between clients and a server, which fails when it is told to.
type Proxy struct {
	listener net.Listener
	server   *Server
	commits  atomic.Int64

	mu     sync.Mutex // protects all below
	faults Faults
	change chan struct{} // closed when faults change
	open   map[net.Conn]struct{}
}

// NewProxy makes a network to the server for as long as the test runs.
func NewProxy(tb testing.TB, server *Server) *Proxy {
	tb.Helper()
	l, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	check(tb, err)
	p := &Proxy{listener: l, server: server, change: make(chan struct{}), open: map[net.Conn]struct{}{}}
	go p.serve()
	tb.Cleanup(func() { _ = l.Close(); p.Fail(Faults{Refuse: true}) })
	return p
}

// Address is where it listens.
func (p *Proxy) Address() string { return p.listener.Addr().String() }

// Server is the server that it leads to.
func (p *Proxy) Server() *Server { return p.server }

// URL is the owner's for a database, through the proxy.
func (p *Proxy) URL(database string) string { return p.RoleURL(url.User(Owner), database) }

// RoleURL is the URL of a role, through the proxy.
func (p *Proxy) RoleURL(role *url.Userinfo, database string) string {
	return (&url.URL{Scheme: "postgres", User: role, Host: p.Address(), Path: "/" + database, RawQuery: "sslmode=disable"}).String()
}

// Fail makes the network fail from now on.
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

// Cut resets the connections that there are. New ones are well.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.open {
		reset(c)
	}
}

// Commits is how many COMMITs clients have sent.
func (p *Proxy) Commits() int64 { return p.commits.Load() }

// CutsLeft is how many COMMITs are still to be cut.
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

// cut returns how a COMMIT that is sent now is cut.
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

// silence waits while nothing arrives. It reports whether the connection is still there.
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

// connection is one client's, and the one to the server that belongs to it.
type connection struct {
	proxy          *Proxy
	client, server net.Conn
	once           sync.Once
	ended          chan struct{} // closed when either has ended
	commit         commits       // owned by fromClient
	cutting        atomic.Int32  // the Cut of the COMMIT whose answer is awaited
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

// fromClient passes on what the client sends: first messages that have a length only, then messages with a type.
func (c *connection) fromClient() {
	defer c.end()
	for started := false; ; {
		frame, err := readFrame(c.client, started)
		if err != nil || !c.silence() {
			return
		}
		// A request for encryption comes before the startup message. Its answer has no length, and no frame of ours is to be taken for it.
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

// beforeCommit reports whether the COMMIT is passed on.
func (c *connection) beforeCommit() bool {
	cut, delay := c.proxy.cut()
	if !c.wait(delay) {
		return false
	}
	c.cutting.Store(int32(cut))
	return cut != BeforeCommit
}

// wait waits as a slow network does. It reports whether the connection is still there.
func (c *connection) wait(delay time.Duration) bool {
	select {
	case <-time.After(delay):
		return true
	case <-c.ended:
		return false
	}
}

// fromServer passes on what the server answers.
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

// ended knows the answer to a COMMIT.
func ended(frame []byte) bool {
	var m pgproto3.CommandComplete
	if frame[0] != 'C' || m.Decode(frame[5:]) != nil {
		return false
	}
	return string(m.CommandTag) == "COMMIT" || string(m.CommandTag) == "ROLLBACK"
}

// commits knows a COMMIT in what a client sends: by itself, or as a statement that was prepared.
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

// isCommit knows a statement that is COMMIT, or a batch of statements that ends with it.
func isCommit(sql string) bool {
	words := strings.FieldsFunc(strings.ToLower(sql), func(r rune) bool { return unicode.IsSpace(r) || r == ';' })
	return len(words) > 0 && words[len(words)-1] == "commit"
}

func isRequest(frame []byte, code uint32) bool {
	return len(frame) >= 8 && binary.BigEndian.Uint32(frame[4:]) == code
}

// readFrame reads a message: a type, unless it is one of the first, a length that counts itself, and a body.
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
		return nil, errors.New("no message of PostgreSQL's protocol")
	}
	frame = append(frame, make([]byte, length-4)...)
	_, err := io.ReadFull(r, frame[before+4:])
	return frame, err
}
