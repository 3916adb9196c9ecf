// Package followertest is what a follower is tested with: an upstream that goes on, a proxy in front of it that fails, lies and
// is unplugged, and comparisons of what arrives with what there is. Everything is on real sockets and in real files.
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

// Proxy stands in front of a server on a socket of its own, and goes wrong as it is told to. Its methods are safe for concurrent use.
type Proxy struct {
	tb        testing.TB
	target    *url.URL
	transport *http.Transport
	address   string // it is listened to whenever the proxy is plugged in
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

// Exchange is a request that came to a Proxy, and what became of it.
type Exchange struct {
	Began  time.Time
	Ended  time.Time // when its answer began to be sent; zero: not yet
	GaveUp bool      // the client went away before
	Fault  string    // the name of what went wrong; empty: nothing
	Gzip   bool      // the client takes gzip
	// NotBefore is when the answer's Retry-After allows the next request; zero: it has none.
	NotBefore time.Time
}

// Counts are what a Proxy has seen.
type Counts struct {
	Requests    int
	MostAtOnce  int // requests that were waiting for their answers; those whose client went away do not count
	Gzip        int // requests whose client takes gzip
	Connections int // far fewer than requests where they are kept alive
	BytesIn     int64
	BytesOut    int64
}

// NewProxy plugs in a proxy of the server at an http URL, whose path it keeps. It is closed when the test ends.
func NewProxy(tb testing.TB, target string) *Proxy {
	tb.Helper()
	u, err := url.Parse(target)
	if err != nil {
		tb.Fatal(err)
	}
	p := &Proxy{
		tb: tb, target: u, address: anyPort, rng: rand.New(rand.NewPCG(1, 0)),
		transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 16}, zippers: sync.Pool{New: newZipper},
	}
	p.Plug()
	tb.Cleanup(func() {
		p.Unplug()
		p.transport.CloseIdleConnections()
	})
	return p
}

// URL is where the proxy is, with the target's path.
func (p *Proxy) URL() string { return "http://" + p.address + p.target.Path }

// Fail makes each request go wrong by each of the faults, as likely as that says: the first that ends it does. It takes the
// place of what was told before; without faults the proxy is healed.
func (p *Proxy) Fail(faults ...Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = faults
}

// Heal ends all faults, lies and lacks, and plugs the proxy in.
func (p *Proxy) Heal() {
	p.Fail()
	p.Lie(nil)
	p.Older()
	p.Plug()
}

// Seed sets what chance goes by.
func (p *Proxy) Seed(seed uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rng = rand.New(rand.NewPCG(seed, 0))
}

// Lie lets change alter the body of each answer with status 200, before it is compressed. nil ends it.
func (p *Proxy) Lie(change func(body []byte) []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lie = change
}

// Older makes the target an older version whose schema lacks these fields, as type.field: introspection does not show them,
// and a query that has a field of such a name is refused. Without fields it lacks none.
func (p *Proxy) Older(fields ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lacks = fields
}

// Compress tells whether answers are compressed for clients that take gzip, which they are at first.
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
		_, _ = p.listener.Close(), p.server.Close() // whatever has failed is closed, too
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

// Counts returns what the proxy has seen so far.
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

// Exchanges returns all requests so far, in the order in which they came.
func (p *Proxy) Exchanges() []Exchange {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]Exchange, len(p.exchanges))
	for i, x := range p.exchanges {
		all[i] = *x
	}
	return all
}

// Idle tells that no request is waiting for its answer.
func (p *Proxy) Idle() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !slices.ContainsFunc(p.exchanges, func(x *Exchange) bool { return x.Ended.IsZero() })
}

// Faults counts the requests that went wrong so far.
func (p *Proxy) Faults() (n int) {
	for _, x := range p.Exchanges() {
		if x.Fault != "" {
			n++
		}
	}
	return n
}

// CheckManners fails the test where a client has had two requests on their way at once, has sent one while an answer's
// Retry-After said to wait, or does not take gzip.
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
	var ends []time.Time // of those before that had not ended
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

// visit is an exchange while it goes on.
type visit struct {
	p        *Proxy
	w        http.ResponseWriter
	r        *http.Request
	body     []byte // of the request
	exchange *Exchange
	faults   []Fault // that chance has chosen
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

// jitter returns up to d by chance.
func (v *visit) jitter(d time.Duration) time.Duration {
	v.p.mu.Lock()
	defer v.p.mu.Unlock()
	return time.Duration(v.p.rng.Float64() * float64(d))
}

// end notes when the answer begins. What comes later changes nothing.
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

// ask gets the target's answer. It is not ok where the client has gone meanwhile.
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
		a = answer{status: resp.StatusCode, contentType: resp.Header.Get("Content-Type"), retryAfter: resp.Header.Get("Retry-After")}
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

// send sends an answer whole.
func (v *visit) send(a answer) {
	body := v.header(a)
	v.end(false)
	v.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	v.w.WriteHeader(a.status)
	_, _ = v.w.Write(body) // the client may have gone
}

// header sets the headers of an answer but Content-Length, and returns the body as it is sent.
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
	_, _ = z.Write(a.body) // memory takes all
	_ = z.Close()
	return packed.Bytes()
}

func newZipper() any {
	z, err := gzip.NewWriterLevel(nil, gzip.BestSpeed)
	if err != nil { // of a level that there is
		panic(err)
	}
	return z
}
