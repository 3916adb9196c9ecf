// Package followertest tests followers. It has an upstream that keeps changing, a proxy in front of it that fails, lies
// and is unplugged, and comparisons of the results. Everything uses real sockets and real files.
package followertest

import (
	"bytes"
	"compress/gzip"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Proxy is a server in front of another, on a separate socket, with injected faults. Its methods are safe for
// concurrent use.
type Proxy struct {
	tb        testing.TB
	target    *url.URL
	transport *http.Transport
	address   string // the same for each Plug
	traffic   traffic
	zippers   sync.Pool // of *gzip.Writer

	mu        sync.Mutex
	rng       *rand.Rand
	faults    []Fault
	lie       func([]byte) []byte
	lacks     []string
	plain     bool
	server    *http.Server // nil while unplugged
	listener  net.Listener
	exchanges []*Exchange
}

// Exchange is a request to a Proxy and its outcome.
type Exchange struct {
	Began  time.Time
	Ended  time.Time // when its answer began to be sent; zero: not yet
	GaveUp bool      // the client disconnected before the answer
	Fault  string    // the name of the fault; empty if there was no fault
	Gzip   bool      // the client accepts gzip
	// NotBefore is when the answer's Retry-After allows the next request; zero without Retry-After.
	NotBefore time.Time
}

// Counts are the totals of a Proxy.
type Counts struct {
	Requests    int
	MostAtOnce  int // concurrent unanswered requests, without those of disconnected clients
	Gzip        int // requests that accept gzip
	Connections int // far fewer than requests if connections are kept alive
	BytesIn     int64
	BytesOut    int64
}

// NewProxy plugs in a proxy of the server at an http URL and keeps the URL's path. The proxy closes when the test ends.
func NewProxy(tb testing.TB, target string) *Proxy {
	tb.Helper()
	u, err := url.Parse(target)
	if err != nil {
		tb.Fatal(err)
	}
	p := &Proxy{
		tb: tb, target: u, address: anyPort, rng: rand.New(rand.NewPCG(1, 0)),
		transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 16},
		zippers:   sync.Pool{New: newZipper},
	}
	p.Plug()
	tb.Cleanup(func() {
		p.Unplug()
		p.transport.CloseIdleConnections()
	})
	return p
}

// URL returns the proxy's URL, with the target's path.
func (p *Proxy) URL() string { return "http://" + p.address + p.target.Path }

// Fail sets the faults. Each request gets each of them with its probability, in order, until one has ended the request.
// Fail replaces the previous faults; without arguments it removes them.
func (p *Proxy) Fail(faults ...Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = faults
}

// Heal removes all faults, lies and missing fields, and plugs the proxy in.
func (p *Proxy) Heal() {
	p.Fail()
	p.Lie(nil)
	p.Older()
	p.Plug()
}

// Seed seeds the proxy's random choices.
func (p *Proxy) Seed(seed uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rng = rand.New(rand.NewPCG(seed, 0))
}

// Lie makes change alter the body of each answer with status 200, before it is compressed. nil removes the lie.
func (p *Proxy) Lie(change func(body []byte) []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lie = change
}

// Older makes the target an older version without these fields, given as type.field. Introspection does not show them,
// and a query with a field of such a name is rejected. Without arguments the target has all fields.
func (p *Proxy) Older(fields ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lacks = fields
}

// Compress sets whether answers are compressed for clients that accept gzip. The default is true.
func (p *Proxy) Compress(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.plain = !on
}

// Unplug closes all connections and refuses new ones, until Plug.
func (p *Proxy) Unplug() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server != nil {
		_, _ = p.listener.Close(), p.server.Close() // they are closed even after an error
		p.server = nil
	}
}

// Plug listens again, at the same address.
func (p *Proxy) Plug() {
	p.tb.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server != nil {
		return
	}
	var err error
	for range 100 { // a connection of another test may have got the port
		if p.listener, err = new(net.ListenConfig).Listen(p.tb.Context(), "tcp", p.address); err == nil {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if err != nil {
		p.tb.Fatalf("plug the proxy in: %v", err)
	}
	if p.address == anyPort {
		p.address = p.listener.Addr().String()
	}
	server, listener := &http.Server{Handler: p, ReadHeaderTimeout: time.Minute}, &meter{p.listener, &p.traffic}
	go func() { _ = server.Serve(listener) }() // until it is closed
	p.server = server
}

const anyPort = "127.0.0.1:0"

// Counts returns the totals so far.
func (p *Proxy) Counts() Counts {
	exchanges := p.Exchanges()
	c := Counts{
		Requests: len(exchanges), MostAtOnce: mostAtOnce(exchanges), Connections: int(p.traffic.connections.Load()),
		BytesIn: p.traffic.in.Load(), BytesOut: p.traffic.out.Load(),
	}
	for _, x := range exchanges {
		if x.Gzip {
			c.Gzip++
		}
	}
	return c
}

// Exchanges returns all requests so far, in the order of arrival.
func (p *Proxy) Exchanges() []Exchange {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]Exchange, len(p.exchanges))
	for i, x := range p.exchanges {
		all[i] = *x
	}
	return all
}

// Idle reports whether every request has been answered.
func (p *Proxy) Idle() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !slices.ContainsFunc(p.exchanges, func(x *Exchange) bool { return x.Ended.IsZero() })
}

// Faults counts the requests with a fault so far.
func (p *Proxy) Faults() (n int) {
	for _, x := range p.Exchanges() {
		if x.Fault != "" {
			n++
		}
	}
	return n
}

// CheckManners fails the test if a client sent two requests concurrently, sent one before a Retry-After allowed it, or
// did not accept gzip.
func (p *Proxy) CheckManners(tb testing.TB) {
	tb.Helper()
	exchanges := p.Exchanges()
	if n := mostAtOnce(exchanges); n > 1 {
		tb.Errorf("%d requests at once", n)
	}
	var notBefore time.Time
	for i, x := range exchanges {
		if x.Began.Before(notBefore) {
			tb.Errorf("request %d came %v before Retry-After allows it", i, notBefore.Sub(x.Began))
		}
		if !x.Gzip {
			tb.Errorf("request %d does not take gzip", i)
		}
		if x.NotBefore.After(notBefore) {
			notBefore = x.NotBefore
		}
	}
}

func mostAtOnce(exchanges []Exchange) (most int) {
	var ends []time.Time // of the earlier requests still open
	for _, x := range exchanges {
		if x.GaveUp {
			continue
		}
		ends = slices.DeleteFunc(ends, func(end time.Time) bool { return !end.IsZero() && !end.After(x.Began) })
		ends = append(ends, x.Ended)
		most = max(most, len(ends))
	}
	return most
}

// visit is an exchange in progress.
type visit struct {
	p        *Proxy
	w        http.ResponseWriter
	r        *http.Request
	body     []byte // of the request
	exchange *Exchange
	faults   []Fault // chosen at random
	lie      func([]byte) []byte
	lacks    []string
	compress bool
}

// ServeHTTP implements http.Handler.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	v := p.begin(w, r)
	defer v.end(true)
	var err error
	if v.body, err = io.ReadAll(r.Body); err != nil {
		return
	}
	if v.refuseLacking() {
		return
	}
	for _, f := range v.faults {
		if f.apply(v, f) {
			return
		}
	}
	if a, ok := v.ask(); ok {
		v.send(a)
	}
}

func (p *Proxy) begin(w http.ResponseWriter, r *http.Request) *visit {
	p.mu.Lock()
	defer p.mu.Unlock()
	x := &Exchange{Began: time.Now(), Gzip: strings.Contains(r.Header.Get("Accept-Encoding"), "gzip")}
	p.exchanges = append(p.exchanges, x)
	v := &visit{p: p, w: w, r: r, exchange: x, lie: p.lie, lacks: p.lacks, compress: x.Gzip && !p.plain}
	for _, f := range p.faults {
		if f.chance >= 1 || p.rng.Float64() < f.chance {
			v.faults = append(v.faults, f)
		}
	}
	return v
}

// jitter returns a random duration up to d.
func (v *visit) jitter(d time.Duration) time.Duration {
	v.p.mu.Lock()
	defer v.p.mu.Unlock()
	return time.Duration(v.p.rng.Float64() * float64(d))
}

// end records when the answer begins. Later calls have no effect.
func (v *visit) end(gaveUp bool) {
	v.p.mu.Lock()
	defer v.p.mu.Unlock()
	if v.exchange.Ended.IsZero() {
		v.exchange.Ended, v.exchange.GaveUp = time.Now(), gaveUp
	}
}

func (v *visit) failed(name string) {
	v.p.mu.Lock()
	defer v.p.mu.Unlock()
	v.exchange.Fault = name
}

func (v *visit) notBefore(at time.Time) {
	v.p.mu.Lock()
	defer v.p.mu.Unlock()
	v.exchange.NotBefore = at
}

// answer is an HTTP response.
type answer struct {
	status      int
	contentType string
	retryAfter  string
	body        []byte // not compressed
}

// ask gets the target's answer. ok is false if the client has disconnected.
func (v *visit) ask() (a answer, ok bool) {
	to := *v.p.target
	to.Path, to.RawQuery = v.r.URL.Path, v.r.URL.RawQuery
	req, err := http.NewRequestWithContext(v.r.Context(), v.r.Method, to.String(), bytes.NewReader(v.body))
	if err != nil {
		return answer{status: http.StatusBadRequest}, true
	}
	req.Header = v.r.Header.Clone()
	for _, hop := range []string{"Accept-Encoding", "Connection"} {
		req.Header.Del(hop)
	}
	resp, err := v.p.transport.RoundTrip(req)
	if err == nil {
		defer resp.Body.Close()
		a = answer{status: resp.StatusCode, contentType: resp.Header.Get("Content-Type"),
			retryAfter: resp.Header.Get("Retry-After")}
		a.body, err = io.ReadAll(resp.Body)
	}
	switch {
	case v.r.Context().Err() != nil:
		return answer{}, false
	case err != nil:
		return answer{status: http.StatusBadGateway, contentType: "text/plain", body: []byte(err.Error())}, true
	case a.status == http.StatusOK && len(v.lacks) > 0:
		a.body = withoutFields(a.body, v.lacks)
	}
	if v.lie != nil && a.status == http.StatusOK {
		a.body = v.lie(a.body)
	}
	return a, true
}

// send sends a complete answer.
func (v *visit) send(a answer) {
	body := v.header(a)
	v.end(false)
	v.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	v.w.WriteHeader(a.status)
	_, _ = v.w.Write(body) // the client may have disconnected
}

// header sets the headers of an answer except Content-Length, and returns the encoded body.
func (v *visit) header(a answer) []byte {
	h := v.w.Header()
	if a.contentType != "" {
		h.Set("Content-Type", a.contentType)
	}
	if a.retryAfter != "" {
		h.Set("Retry-After", a.retryAfter)
	}
	if !v.compress || len(a.body) == 0 {
		return a.body
	}
	h.Set("Content-Encoding", "gzip")
	var packed bytes.Buffer
	z := v.p.zippers.Get().(*gzip.Writer) // a new one takes a megabyte
	defer v.p.zippers.Put(z)
	z.Reset(&packed)
	_, _ = z.Write(a.body) // writes to memory do not fail
	_ = z.Close()
	return packed.Bytes()
}

func newZipper() any {
	z, err := gzip.NewWriterLevel(nil, gzip.BestSpeed)
	if err != nil { // an invalid level
		panic(err)
	}
	return z
}
