package graphql_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/attestd/attestd/api/graphql"
	"github.com/attestd/attestd/api/upstream"
)

// hosted is an upstream: an endpoint over a replica, behind a layer that records requests and can replace answers.
type hosted struct {
	t      testing.TB
	url    string
	direct *server // without the layer
	fault  atomic.Pointer[http.HandlerFunc]
	mu     sync.Mutex
	asked  []asked
}

// asked is a request as the upstream received it.
type asked struct {
	method, uri, body string
	header            http.Header
}

func newHosted(t testing.TB) *hosted {
	t.Helper()
	h := &hosted{t: t, direct: newServer(t, graphql.Options{})}
	target, err := url.Parse(h.direct.url)
	if err != nil {
		t.Fatal(err)
	}
	relay := &httputil.ReverseProxy{Transport: h.direct.client.Transport, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
	}}
	layer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		h.mu.Lock()
		h.asked = append(h.asked, asked{r.Method, r.RequestURI, string(body), r.Header.Clone()})
		h.mu.Unlock()
		if fault := h.fault.Load(); fault != nil {
			(*fault)(w, r)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		relay.ServeHTTP(w, r)
	}))
	t.Cleanup(layer.Close)
	h.url = layer.URL + "/v1/graphql"
	return h
}

// fails replaces the upstream's answers. Nil restores them.
func (h *hosted) fails(fault http.HandlerFunc) {
	if fault == nil {
		h.fault.Store(nil)
		return
	}
	h.fault.Store(&fault)
}

func (h *hosted) requests() []asked {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.asked)
}

// wasAsked checks the number of requests so far.
func (h *hosted) wasAsked(t testing.TB, want int) {
	t.Helper()
	if got := len(h.requests()); got != want {
		t.Errorf("the upstream was asked %d times, want %d", got, want)
	}
}

// await waits until the upstream has received the given number of requests.
func (h *hosted) await(t testing.TB, asked int) {
	t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); len(h.requests()) < asked; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the upstream was asked %d times, want %d", len(h.requests()), asked)
		}
	}
}

// options returns the options of an endpoint with this upstream.
func (h *hosted) options(o graphql.Options) graphql.Options {
	h.t.Helper()
	c, err := upstream.New(upstream.Options{URL: h.url, Timeout: 30 * time.Second,
		Headers: http.Header{"X-Api-Key": {"the upstream's"}}, Registry: o.Registry})
	if err != nil {
		h.t.Fatal(err)
	}
	o.Upstream = c
	return o
}

// newProxy returns a server that forwards to a new upstream.
func newProxy(t testing.TB, o graphql.Options) (*server, *hosted) {
	t.Helper()
	h := newHosted(t)
	return serve(t, h.options(o)), h
}

// says always gives the same answer.
func says(status int, contentType, body string, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(status)
		io.WriteString(w, body)
	}
}

// cuts closes the connection within the answer.
func cuts(w http.ResponseWriter, _ *http.Request) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(err)
	}
	io.WriteString(conn,
		"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"data\": {}}")
	conn.Close()
}

// stalls does not answer until the client gives up.
func stalls(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

func zipped(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", mediaJSON)
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		defer z.Close()
		io.WriteString(z, body)
	}
}

const statsQuery = `{ v2_stats_count { name value } }`
