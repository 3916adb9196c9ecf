package api

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/events"
)

// Events are the streams of events that a server offers.
type Events struct {
	Hub *events.Hub
	// MostPerClient is how many streams one API key may have, and one client address without a key.
	MostPerClient int
	// Packets is true if streams have transfers and packets. OpenPackets is true if they need no API key.
	Packets, OpenPackets bool
	// Origins are the origins whose pages may read streams, or AnyOrigin. Empty means no page.
	Origins []string

	server *Server // set by New
}

// Subscribe answers a request with a stream of rows. Its limits and its end are those of other streams.
func (e *Events) Subscribe(c *fiber.Ctx, rows events.Rows) error {
	x := exchangeOf(c.Context())
	stream := newEventStream(e.server, c, x)
	stream.scope, stream.rows, stream.charge = appliance.ScopeGraphQL, &rows, x.charge
	return stream.start(c, events.Viewer{Packets: true}, rows.Filter, events.Position{})
}

const (
	eventsPath = "/v1/events"
	// streamShare is the part of MaxConnections that streams may take: a half.
	streamShare = 2
)

// streams are the open streams of a server. It is safe for concurrent use.
type streams struct {
	most, perClient int
	ctx             context.Context // ends when a shutdown begins
	end             context.CancelFunc
	chunks          sync.Pool // of *[]byte; see eventStream.write

	mu   sync.Mutex
	open map[*eventStream]struct{}
	by   map[streamClient]int
}

// streamClient is whom a stream is charged to: an API key, or else a client address.
type streamClient struct {
	key     string
	network netip.Addr
}

func newStreams(most, perClient int) *streams {
	s := &streams{most: most, perClient: perClient, open: make(map[*eventStream]struct{}),
		by: make(map[streamClient]int)}
	s.ctx, s.end = context.WithCancel(context.Background())
	return s
}

// add admits a stream. If there are too many, it first ends the streams whose clients have left, which a stream
// notices only when it writes.
func (s *streams) add(e *eventStream) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.by[e.client] >= s.perClient {
		s.sweep(func(other *eventStream) bool { return other.client == e.client })
	}
	if s.by[e.client] >= s.perClient {
		refused := appliance.Errorf(CodeTooManyStreams, "more than %d streams are open: close one first", s.perClient)
		refused.RetryAfter = events.HeartbeatEvery
		return refused
	}
	if len(s.open) >= s.most {
		s.sweep(func(*eventStream) bool { return true })
	}
	if len(s.open) >= s.most {
		refused := appliance.Errorf(appliance.CodeOverloaded, "too many streams are open")
		refused.RetryAfter = events.HeartbeatEvery
		return refused
	}
	s.open[e] = struct{}{}
	s.by[e.client]++
	return nil
}

// sweep ends the chosen streams whose clients have left. The caller holds s.mu.
func (s *streams) sweep(chosen func(*eventStream) bool) {
	for e := range s.open {
		if chosen(e) && e.conn != nil && e.conn.left() {
			e.cancel()
			s.forget(e)
		}
	}
}

func (s *streams) remove(e *eventStream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(e)
}

// forget no longer counts a stream. The caller holds s.mu.
func (s *streams) forget(e *eventStream) {
	if _, open := s.open[e]; !open {
		return
	}
	delete(s.open, e)
	if s.by[e.client]--; s.by[e.client] == 0 {
		delete(s.by, e.client)
	}
}

// count returns the number of open streams.
func (s *streams) count() float64 {
	if s == nil {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return float64(len(s.open))
}

// offer adds the route of streams, if there are any.
func (s *Server) offer(e *Events) {
	if e == nil {
		return
	}
	e.server = s
	s.streams = newStreams(max(1, s.opts.MaxConnections/streamShare), e.MostPerClient)
	s.routes = append(s.routes, Route{Method: fiber.MethodGet, Path: eventsPath, AnyScope: !e.OpenPackets,
		Origins: e.Origins, Read: true, Handler: s.events})
}

// events answers GET /v1/events.
func (s *Server) events(c *fiber.Ctx) error {
	x := exchangeOf(c.Context())
	offered := s.opts.Events
	viewer := events.Viewer{Packets: offered.Packets && offered.OpenPackets}
	if x.key.ID != "" {
		if x.key.Authorize(appliance.ScopeAttest, x.ip, s.now()) == nil {
			viewer.KeyID = x.key.ID
		}
		viewer.Packets = offered.Packets && x.key.Authorize(appliance.ScopeGraphQL, x.ip, s.now()) == nil
	}
	filter, from, err := parseStream(c)
	if err != nil {
		return err
	}
	return newEventStream(s, c, x).start(c, viewer, filter, from)
}

// parseStream returns which events a request asks for, and the position after which they begin.
func parseStream(c *fiber.Ctx) (filter events.Filter, from events.Position, err error) {
	query := func(name string) string { return strings.Clone(c.Query(name)) } // the filter outlives the request
	filter, err = events.ParseFilter(query("types"), query("addresses"), query("chains"), query("subjects"))
	if err == nil {
		from, err = events.ParsePosition(cmp.Or(strings.Clone(c.Get("Last-Event-ID")), query("last_event_id")))
	}
	return filter, from, err
}

func newEventStream(s *Server, c *fiber.Ctx, x *exchange) *eventStream {
	client := streamClient{key: x.key.ID}
	if x.key.ID == "" {
		client.network = network(x.ip)
	}
	return &eventStream{server: s, key: x.key, ip: x.ip, client: client, out: c.Context().Conn(),
		conn: unwrap(c.Context().Conn())}
}

// eventStream is the body of an answer. fasthttp reads it, and closes it after the end, or when a write has failed.
type eventStream struct {
	server  *Server
	key     appliance.APIKey
	scope   appliance.Scope // that the key needs; may be empty
	ip      netip.Addr
	client  streamClient
	conn    *conn
	out     net.Conn // the connection above TLS, if any
	begun   bool     // fasthttp has read the first bytes, and sends them with the header
	ctx     context.Context
	cancel  context.CancelFunc
	stream  *events.Stream
	rows    *events.Rows // nil for a stream of events
	charge  charge       // pays for the messages of rows
	listed  bool         // the first message of rows was read
	packets []string     // have changed, and their messages were not made yet
	done    []func()     // of the messages in buf
	buf     []byte       // not yet read
	once    sync.Once
}

func (e *eventStream) start(c *fiber.Ctx, v events.Viewer, f events.Filter, from events.Position) (err error) {
	streams := e.server.streams
	e.ctx, e.cancel = context.WithCancel(streams.ctx)
	if err := streams.add(e); err != nil {
		e.cancel()
		return err
	}
	opening, done := context.WithTimeout(e.ctx, e.server.opts.RequestTimeout)
	defer done()
	if e.stream, err = e.server.opts.Events.Hub.Open(opening, v, f, from); err != nil {
		e.cancel()
		streams.remove(e)
		return err
	}
	if e.rows == nil {
		e.buf = e.stream.Begin(nil)
	}
	h := &c.Context().Response.Header
	h.SetContentType("text/event-stream")
	h.Set(fiber.HeaderCacheControl, "no-store")
	h.Set("X-Accel-Buffering", "no") // nginx would hold events back
	if e.conn != nil {
		e.conn.eachWrite.Store(int64(e.server.opts.WriteTimeout)) // a stream is cut if its client does not read
	}
	c.Context().Response.SetBodyStream(e, -1)
	return nil
}

// Read waits for the next events. It ends the body when the server shuts down, or the client's API key has ended.
func (e *eventStream) Read(p []byte) (int, error) {
	if len(e.buf) == 0 {
		e.release()
		n, ok := e.next()
		if !ok || !e.allowed() { // no event is sent after the end of the key
			return 0, io.EOF // the client resumes here, or at another appliance
		}
		e.server.metrics.streamed(n)
	}
	if e.begun && len(e.buf) > len(p) {
		return 0, e.write()
	}
	e.begun = true
	n := copy(p, e.buf)
	e.buf = e.buf[n:]
	return n, nil
}

// write sends buf as one chunk (RFC 9112, section 7.1). fasthttp would make two system calls for each 4 KiB. It has
// flushed its own buffer when it calls Read again.
func (e *eventStream) write() error {
	chunk, _ := e.server.streams.chunks.Get().(*[]byte)
	if chunk == nil {
		chunk = new([]byte)
	}
	defer e.server.streams.chunks.Put(chunk)
	*chunk = fmt.Appendf((*chunk)[:0], "%x\r\n", len(e.buf))
	*chunk = append(append(*chunk, e.buf...), "\r\n"...)
	e.buf = nil
	_, err := e.out.Write(*chunk)
	return err
}

// next sets buf to the next events or messages, and returns their number. ok is false if the stream has ended.
func (e *eventStream) next() (n int, ok bool) {
	if e.rows == nil {
		e.buf, n, ok = e.stream.Next(e.ctx)
		return n, ok
	}
	return e.nextRows()
}

// nextRows charges each message as the query that makes it. The first one was charged with the request. If the client
// may make no more queries, the rows wait, and a message has them as they are afterwards.
func (e *eventStream) nextRows() (n int, ok bool) {
	if !e.listed {
		e.listed = true
		e.append(e.rows.First(e.ctx))
		return 1, e.ctx.Err() == nil
	}
	if ok = true; len(e.packets) == 0 {
		e.packets, ok = e.stream.NextSubjects(e.ctx)
	}
	for len(e.packets) > 0 && e.pay(n == 0) {
		if m := e.rows.Changed(e.ctx, e.packets[0]); len(m.Text) > 0 {
			e.append(m)
			n++
		}
		e.packets = e.packets[1:]
	}
	if n == 0 {
		e.buf = append(e.buf, ":\n\n"...)
	}
	return n, ok && e.ctx.Err() == nil
}

// pay charges one query to the client. If wait is set, it waits for it up to HeartbeatEvery.
func (e *eventStream) pay(wait bool) bool {
	if e.charge.account == nil {
		return true
	}
	end := e.server.now().Add(events.HeartbeatEvery)
	for {
		now := e.server.now()
		short := e.charge.account.withdraw(now, e.charge.rate)
		switch {
		case short == 0:
			return true
		case !wait || e.ctx.Err() != nil || !now.Before(end):
			return false
		}
		select {
		case <-time.After(min(short, end.Sub(now))):
		case <-e.ctx.Done():
		}
	}
}

func (e *eventStream) append(m events.Message) {
	e.buf = append(e.buf, m.Text...)
	e.done = append(e.done, m.Done)
	if e.charge.account != nil && m.Extra > 0 {
		e.charge.account.charge(e.server.now(), e.charge.rate, m.Extra)
	}
}

// release lets go of the messages that were sent.
func (e *eventStream) release() {
	if e.rows != nil {
		e.buf = nil
	}
	for _, done := range e.done {
		done()
	}
	e.done = nil
}

// allowed reports whether the client's API key is still valid.
func (e *eventStream) allowed() bool {
	if e.key.ID == "" {
		return true
	}
	ctx, cancel := context.WithTimeout(e.ctx, e.server.opts.RequestTimeout)
	defer cancel()
	key, err := e.server.attestor.Keys.Key(ctx, e.key.ID)
	return err == nil && key.Authorize(e.scope, e.ip, e.server.now()) == nil
}

// Close implements io.Closer.
func (e *eventStream) Close() error {
	e.once.Do(func() {
		e.cancel()
		e.release()
		e.stream.Close()
		if e.conn != nil {
			e.conn.eachWrite.Store(0)
		}
		e.server.streams.remove(e)
	})
	return nil
}
