package graphql_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/attestd/attestd/api/graphql"
	"github.com/attestd/attestd/api/upstream"
)

// hosted is an upstream: an endpoint over a replica, behind a layer that records what it is asked and can answer
// something else.
type hosted struct {
	t      testing.TB
	url    string
	direct *server // without the layer
	fault  atomic.Pointer[http.HandlerFunc]
	mu     sync.Mutex
	asked  []asked
}

// asked is a request as the upstream got it.
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
	relay := &httputil.ReverseProxy{Transport: h.direct.client.Transport, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}
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

// fails makes it answer something else; nil ends that.
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

// wasAsked checks how often it was asked so far.
func (h *hosted) wasAsked(t testing.TB, want int) {
	t.Helper()
	if got := len(h.requests()); got != want {
		t.Errorf("the upstream was asked %d times, want %d", got, want)
	}
}

// await waits until it has been asked so often.
func (h *hosted) await(t testing.TB, asked int) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); len(h.requests()) < asked; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the upstream was asked %d times, want %d", len(h.requests()), asked)
		}
	}
}

// options are those of an endpoint whose upstream this is.
func (h *hosted) options(o graphql.Options) graphql.Options {
	h.t.Helper()
	c, err := upstream.New(upstream.Options{URL: h.url, Timeout: 30 * time.Second, Headers: http.Header{"X-Api-Key": {"the upstream's"}}, Registry: o.Registry})
	if err != nil {
		h.t.Fatal(err)
	}
	o.Upstream = c
	return o
}

// newProxy serves what an upstream answers.
func newProxy(t testing.TB, o graphql.Options) (*server, *hosted) {
	t.Helper()
	h := newHosted(t)
	return serve(t, h.options(o)), h
}

// says answers always the same.
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
	io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"data\": {}}")
	conn.Close()
}

// stalls does not answer until the one who asks gives up.
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

func TestProxyForwardsWhatCame(t *testing.T) {
	s, h := newProxy(t, graphql.Options{})
	const body = "\n{ \"variables\" : {\"n\": 1.0 , \"s\": \"\\u0041\"}, \"query\" : \"query A($n: Int) {  v2_chains(args: {p_limit: $n}) { rpc_type } }\" ,\"operationName\":\"A\", \"extensions\": {\"x\": [1]} }\r\n"
	const uri = "/v1/graphql?variables=%7B%7D&query=query+%7b%20v2_stats_count%20{name}%20%7D&&extensions={%22x%22:1}&operationName="
	credentials := []string{"x-api-key", "the client's", "Cookie", "session=1", "Authorization", "Bearer 1", "X-Forwarded-For", "192.0.2.1", "Origin", "https://app.example", "User-Agent", "client"}
	post := s.do(t, "POST", "/v1/graphql", body, append(credentials, "Content-Type", "application/json; Charset=UTF-8", "Accept", mediaGraphQL+", */*;q=0.1")...)
	get := s.do(t, "GET", uri, "", credentials...)
	post.data(t)
	get.data(t)
	got := h.requests()
	if len(got) != 2 {
		t.Fatalf("asked %d times", len(got))
	}
	if got[0].method != "POST" || got[0].uri != "/v1/graphql" || got[0].body != body {
		t.Errorf("POST came as %+v", got[0])
	}
	if got[1].method != "GET" || got[1].uri != uri || got[1].body != "" {
		t.Errorf("GET came as %+v", got[1])
	}
	for i, want := range []string{
		"map[Accept:[application/graphql-response+json, */*;q=0.1] Accept-Encoding:[gzip] Content-Length:[" + fmt.Sprint(len(body)) + "] Content-Type:[application/json; Charset=UTF-8] User-Agent:[attestd] X-Api-Key:[the upstream's]]",
		"map[Accept-Encoding:[gzip] User-Agent:[attestd] X-Api-Key:[the upstream's]]",
	} {
		if fmt.Sprint(got[i].header) != want {
			t.Errorf("headers %v\nwant    %v", got[i].header, want)
		}
	}
}

func TestProxyAnswersAsTheUpstreamDoes(t *testing.T) {
	s, h := newProxy(t, graphql.Options{})
	for _, query := range []string{
		pageOf7, statsQuery, standardIntrospection, `{ __typename }`, `{ v2_transfers { no_such_field } }`, `{ v2_packets(args: {p_limit: 0}) { status } }`,
	} {
		for _, media := range []string{mediaJSON, mediaGraphQL} {
			direct, proxied := h.direct.post(t, query, "", "Accept", media), s.post(t, query, "", "Accept", media)
			for _, name := range []string{"Content-Type", "Cache-Control", "Vary", "Access-Control-Allow-Origin"} {
				if d, p := direct.header.Get(name), proxied.header.Get(name); d != p {
					t.Errorf("%.60s as %s: %s is %q, not %q", query, media, name, p, d)
				}
			}
			if direct.status != proxied.status || direct.body != proxied.body {
				t.Errorf("%.60s as %s: %d %.300s\nwant %d %.300s", query, media, proxied.status, proxied.body, direct.status, direct.body)
			}
		}
	}
}

func TestProxyPassesWhatTheSchemaLacks(t *testing.T) {
	s, h := newProxy(t, graphql.Options{})
	const answer = `{"data":{"v2_bonds":[{"amount":"1"}]},"extensions":{"cost":3}}`
	for _, query := range []string{
		`query($where: v2_bonds_bool_exp! = {amount: {_gt: 1}}, $n: bigint) { v2_bonds(where: $where, limit: $n) @vendor { amount ... on v2_bond @include(if: $x) { id } } }`,
		`{ __type(name: "v2_bonds") { fields { name } } }`,
	} {
		for _, fault := range []http.HandlerFunc{says(200, mediaJSON, answer), says(200, mediaJSON, answer, "Set-Cookie", "a=b"), zipped(answer)} {
			h.fails(fault)
			got := s.post(t, query, `{"n": 99999999999, "where": [[1]], "extra": 1}`)
			if got.status != 200 || got.body != answer || got.header.Get("Content-Type") != mediaJSON || got.header.Get("Set-Cookie") != "" || got.header.Get("Content-Encoding") != "" {
				t.Errorf("%d %v %s", got.status, got.header, got.body)
			}
		}
	}
}

func TestProxyRefusesBeforeItForwards(t *testing.T) {
	s, h := newProxy(t, graphql.Options{NoIntrospection: true})
	get := func(query string) string { return "/v1/graphql?" + query }
	for _, tt := range []struct{ name, target, body, code string }{
		{"mutation", "", `{"query":"mutation { a }"}`, "operation_unsupported"},
		{"subscription", "", `{"query":"subscription { a }"}`, "operation_unsupported"},
		{"the mutation of two operations", "", `{"query":"query A { a } mutation B { b }","operationName":"B"}`, "operation_unsupported"},
		{"mutation by GET", get("query=mutation{a}"), "", "operation_unsupported"},
		{"a mutation of the same name", "", `{"query":"query A { a } mutation A { b }","operationName":"A"}`, "validation_failed"},
		{"no GraphQL", "", `{"query":"{ a"}`, "parse_failed"},
		{"no such operation", "", `{"query":"query A { a }","operationName":"B"}`, "unknown_operation"},
		{"which operation", "", `{"query":"query A { a } query B { b }"}`, "unknown_operation"},
		{"long", "", postBody("{"+strings.Repeat(" ", 70_000)+"a}", ""), "query_too_large"},
		{"large variables", "", postBody("{a}", `{"x":"`+strings.Repeat("x", 70_000)+`"}`), "variables_too_large"},
		{"many tokens", "", postBody("{"+strings.Repeat("a ", 6000)+"}", ""), "too_many_tokens"},
		{"deep", "", postBody(strings.Repeat("{a", 13)+strings.Repeat("}", 13), ""), "too_deep"},
		{"root fields", "", postBody("{"+strings.Repeat("a ", 21)+"}", ""), "too_many_root_fields"},
		{"aliases", "", postBody("{x{"+repeat(51, "a%d:b ")+"}}", ""), "too_many_aliases"},
		{"fragment cycle", "", postBody("{...F} fragment F on Query {...F}", ""), "validation_failed"},
		{"introspection", "", postBody("{ __schema { description } }", ""), "introspection_off"},
		{"introspection in a fragment", "", postBody("{ ...F } fragment F on X { ... on Y { x: __type(name: \"Y\") { name } } }", ""), "introspection_off"},
		{"a batch", "", `[{"query":"{a}"}]`, "batching_unsupported"},
		{"variables that are no object", "", `{"query":"{a}","variables":[1]}`, "invalid_field"},

		// These could mean something else to the upstream.
		{"query twice", "", `{"query":"mutation { a }","query":"{ a }"}`, "duplicate_field"},
		{"query twice, once escaped", "", `{"query":"mutation { a }","q\u0075ery":"{ a }"}`, "duplicate_field"},
		{"query in another case", "", `{"query":"mutation { a }","Query":"{ a }"}`, "unknown_field"},
		{"query with a letter that folds to another", "", `{"query":"{ a }","operationName":null,"extenſions":{}}`, "unknown_field"},
		{"another way to name a document", "", `{"query":"{ a }","doc_id":"a-mutation"}`, "unknown_field"},
		{"a variable twice", "", `{"query":"{ a }","variables":{"n":1,"m":{},"n":2}}`, "duplicate_field"},
		{"a member of a variable twice", "", `{"query":"{ a }","variables":{"n":[{"a":1},{"b":[],"a":1,"b":2}]}}`, "duplicate_field"},
		{"an extension twice", "", `{"query":"{ a }","extensions":{"n":1,"n":2}}`, "duplicate_field"},
		{"no UTF-8", "", "{\"query\":\"{ a(b: \\\"\xff\\\") }\"}", "invalid_json"},
		{"query twice by GET", get("query={b}&query={a}"), "", "duplicate_field"},
		{"query twice by GET, once escaped", get("query={b}&%71uery={a}"), "", "duplicate_field"},
		{"another parameter by GET", get("query={b}&doc_id=1"), "", "unknown_field"},
		{"a variable twice by GET", get("query={b}&variables=%7B%22n%22%3A1%2C%22n%22%3A2%7D"), "", "duplicate_field"},
		{"semicolon by GET", get("query={b}%23;query={a}"), "", "invalid_field"},
		{"wrong escape by GET", get("query={b(c:%22%zz%22)}"), "", "invalid_field"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			method, target := "POST", "/v1/graphql"
			if tt.target != "" {
				method, target = "GET", tt.target
			}
			got := s.do(t, method, target, tt.body, "Content-Type", mediaJSON, "Accept", mediaGraphQL)
			if got.code(t) != tt.code || got.status != 400 && (got.status != 405 || method != "GET") {
				t.Errorf("%d %s, want %s", got.status, got.body, tt.code)
			}
		})
	}
	if got := s.raw(t, "GET /v1/graphql?query={a} HTTP/1.1\r\nHost: x\r\nAccept: application/json, \x01\r\n\r\n"); got.status != 400 || got.code(t) != "invalid_field" {
		t.Errorf("a control character in a header: %d %s", got.status, got.body)
	}
	h.wasAsked(t, 0)
}

func TestProxyTellsFailures(t *testing.T) {
	for _, tt := range []struct {
		name    string
		fault   http.HandlerFunc
		code    string
		message string
		retry   string
	}{
		{"500", says(500, mediaJSON, `{"errors":[{"message":"secret"}]}`), "UPSTREAM_UNAVAILABLE", "the upstream answered 500", "1"},
		{"503", says(503, "text/plain", "later", "Retry-After", "17"), "UPSTREAM_UNAVAILABLE", "the upstream answered 503", "17"},
		{"401 of its key", says(401, "application/problem+json", `{"code":"invalid_api_key"}`), "UPSTREAM_UNAVAILABLE", "the upstream answered 401", "1"},
		{"404 in HTML", says(404, "text/html", "<html>"), "UPSTREAM_UNAVAILABLE", "the upstream answered 404", "1"},
		{"429 in HTML", says(429, "text/html", "<html>", "Retry-After", "5"), "UPSTREAM_UNAVAILABLE", "the upstream answered 429", "5"},
		{"redirect", says(302, "", "", "Location", "https://elsewhere.example/"), "UPSTREAM_UNAVAILABLE", "the upstream answered 302", "1"},
		{"HTML", says(200, "text/html", "<html>"), "UPSTREAM_UNAVAILABLE", "the upstream's answer is not GraphQL", "1"},
		{"HTML as JSON", says(200, mediaJSON, "<html>"), "UPSTREAM_UNAVAILABLE", "the upstream's answer is not GraphQL", "1"},
		{"a list", says(200, mediaJSON, "[]"), "UPSTREAM_UNAVAILABLE", "the upstream's answer is not GraphQL", "1"},
		{"truncated JSON", says(200, mediaJSON, `{"data":{"a":[{"b":1}`), "UPSTREAM_UNAVAILABLE", "the upstream's answer is not GraphQL", "1"},
		{"malformed", says(200, mediaJSON, `{"data":{"a":nul}}`), "UPSTREAM_UNAVAILABLE", "the upstream's answer is not GraphQL", "1"},
		{"empty", says(200, mediaJSON, ""), "UPSTREAM_UNAVAILABLE", "the upstream's answer is not GraphQL", "1"},
		{"cut", cuts, "UPSTREAM_UNAVAILABLE", "the upstream cannot be reached", "1"},
		{"too slow", stalls, "UPSTREAM_UNAVAILABLE", "the upstream took too long", "1"},
		{"too large", says(200, mediaJSON, `{"data":"`+strings.Repeat("x", 5000)+`"}`), "response_too_large", "the upstream's response is too large: ask for fewer rows (p_limit) or fields", "1"},
		{"too large when decompressed", zipped(`{"data":"` + strings.Repeat("x", 100_000) + `"}`), "response_too_large", "the upstream's response is too large: ask for fewer rows (p_limit) or fields", "1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, h := newProxy(t, graphql.Options{Limits: graphql.Limits{MaxResponseBytes: 5000, Timeout: 200 * time.Millisecond}})
			h.fails(tt.fault)
			for _, query := range []string{statsQuery, "query @cached " + statsQuery} {
				got := s.post(t, query, "", "Accept", mediaGraphQL)
				if got.status != 503 || got.code(t) != tt.code || got.fail(t).Message != tt.message || got.header.Get("Retry-After") != tt.retry ||
					got.header.Get("Cache-Control") != "no-store" || got.header.Get("Content-Type") != mediaGraphQL+"; charset=utf-8" {
					t.Errorf("%d %v %s", got.status, got.header, got.body)
				}
			}
			h.fails(nil)
			s.post(t, "query @cached "+statsQuery, "").data(t) // the failure was not kept
		})
	}
}

func TestProxyPassesRefusals(t *testing.T) {
	s, h := newProxy(t, graphql.Options{})
	for _, status := range []int{400, 403, 404, 429} {
		const body = `{"errors":[{"message":"no","extensions":{"code":"their-own"}}]}`
		h.fails(says(status, "application/json; v=1", body, "Retry-After", "9"))
		for _, query := range []string{statsQuery, "query @cached " + statsQuery} {
			got := s.post(t, query, "")
			if got.status != status || got.body != body || got.header.Get("Content-Type") != "application/json; v=1" ||
				got.header.Get("Retry-After") != "9" || got.header.Get("Cache-Control") != "no-store" {
				t.Errorf("%d %v %s", got.status, got.header, got.body)
			}
		}
	}
}

// logLines counts what is logged, by level and message.
type logLines struct {
	slog.Handler
	mu    sync.Mutex
	lines []string
}

func (l *logLines) Enabled(context.Context, slog.Level) bool { return true }

func (l *logLines) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	line := r.Level.String() + " " + r.Message
	r.Attrs(func(a slog.Attr) bool {
		line += " " + a.String()
		return true
	})
	l.lines = append(l.lines, line)
	return nil
}

func (l *logLines) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() { l.lines = nil }()
	return strings.Join(l.lines, "\n")
}

func TestBreakerOpensAndCloses(t *testing.T) {
	const pause = 300 * time.Millisecond
	log, registry := &logLines{}, prometheus.NewRegistry()
	s, h := newProxy(t, graphql.WithBreakerOpen(graphql.Options{Log: slog.New(log), Registry: registry}, pause))
	expect := func(state float64, asked int, logged string) {
		t.Helper()
		h.wasAsked(t, asked)
		if got := gatherGauge(t, registry, "attestd_upstream_breaker_state"); got != state {
			t.Errorf("state %v, want %v", got, state)
		}
		if got := log.take(); got != logged {
			t.Errorf("logged %q, want %q", got, logged)
		}
	}
	failing := func() answer {
		t.Helper()
		got := s.post(t, statsQuery, "")
		if got.status != 503 || got.code(t) != "UPSTREAM_UNAVAILABLE" || got.header.Get("Retry-After") != "1" {
			t.Errorf("%d %v %s", got.status, got.header, got.body)
		}
		return got
	}
	h.fails(says(500, "text/plain", "oops"))
	for range 4 {
		failing()
	}
	h.fails(nil)
	s.post(t, statsQuery, "").data(t) // failures in a row count, not those with a success between them
	h.fails(says(500, "text/plain", "oops"))
	for range 4 {
		failing()
	}
	expect(0, 9, "")
	failing()
	expect(2, 10, `WARN the upstream keeps failing: queries are not forwarded for now error=the upstream answered 500: HTTP 500, "text/plain": "oops"`)
	for range 20 {
		if got := failing(); !strings.Contains(got.body, "left alone for now") {
			t.Errorf("got %s", got.body)
		}
	}
	h.wasAsked(t, 10)

	// One request tries, fails, and nothing is logged again.
	tried := func(want int) {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); len(h.requests()) < want; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("nothing tries")
			}
			s.post(t, statsQuery, "")
		}
	}
	tried(11)
	expect(2, 11, "")
	failing()
	h.wasAsked(t, 11)

	// While one tries, the others are answered at once.
	entered, release := make(chan struct{}), make(chan struct{})
	h.fails(func(w http.ResponseWriter, r *http.Request) {
		entered <- struct{}{}
		<-release
		says(200, mediaJSON, `{"data":{}}`)(w, r)
	})
	var trial sync.WaitGroup
	trial.Go(func() { tried(12) })
	<-entered
	failing()
	expect(1, 12, "")
	close(release)
	trial.Wait()
	h.fails(nil)
	s.post(t, statsQuery, "").data(t)
	expect(0, 13, "INFO the upstream answers again: queries are forwarded")
}

func gatherGauge(t *testing.T, registry *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

func TestWhatOpensTheBreaker(t *testing.T) {
	canceled := func(t *testing.T, s *server, h *hosted) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		asked := len(h.requests())
		done := make(chan string)
		go func() { done <- s.e.ExecuteContext(ctx, statsQuery) }()
		h.await(t, asked+1)
		cancel()
		if got := (answer{body: <-done}); got.code(t) != "timeout" {
			t.Errorf("got %s", got.body)
		}
	}
	post := func(t *testing.T, s *server, _ *hosted) { s.post(t, statsQuery, "") }
	for _, tt := range []struct {
		name  string
		fault http.HandlerFunc
		ask   func(*testing.T, *server, *hosted)
		opens bool
	}{
		{"500", says(500, "", ""), post, true},
		{"429", says(429, mediaJSON, `{"errors":[{"message":"slow down"}]}`), post, true},
		{"bad bodies", says(200, mediaJSON, `{"data":`), post, true},
		{"no key", says(401, "", ""), post, true},
		{"cut", cuts, post, true},
		{"too slow", stalls, post, true},
		{"refusals", says(400, mediaJSON, `{"errors":[{"message":"no"}]}`), post, false},
		{"errors", says(200, mediaJSON, `{"errors":[{"message":"no"}]}`), post, false},
		{"large answers", says(200, mediaJSON, `{"data":"`+strings.Repeat("x", 6000)+`"}`), post, false},
		{"clients that go away", stalls, canceled, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			timeout := 50 * time.Millisecond
			if !tt.opens {
				timeout = 20 * time.Second
			}
			s, h := newProxy(t, graphql.Options{Limits: graphql.Limits{MaxResponseBytes: 5000, Timeout: timeout}})
			h.fails(tt.fault)
			for range 8 {
				tt.ask(t, s, h)
			}
			want := 8
			if tt.opens {
				want = 5
			}
			h.wasAsked(t, want)
		})
	}
}

func TestProxyCaches(t *testing.T) {
	c, registry := &clock{}, prometheus.NewRegistry()
	s, h := newProxy(t, graphql.Options{Now: c.now, Registry: registry})
	const query = `query($ttl: Int = 30, $again: Boolean, $n: bigint) @cached(ttl: $ttl, refresh: $again) { v2_bonds(n: $n) { id } }`
	h.fails(says(200, "application/json; charset=x", `{"data":{"v2_bonds":[]},"extensions":{"a":1}}`))
	for _, tt := range []struct {
		name, variables, accept string
		advance                 time.Duration
		asked                   int
		cacheControl, age       string
		contentType             string
	}{
		{"first", `{"ttl": 10}`, mediaJSON, 0, 1, "max-age=10", "0", "application/json; charset=utf-8"},
		{"again", `{"ttl": 10}`, mediaJSON, 3 * time.Second, 1, "max-age=10", "3", "application/json; charset=utf-8"},
		{"by other bytes", `{"ttl":1e1}`, mediaJSON, 0, 1, "max-age=10", "3", "application/json; charset=utf-8"},
		{"as the other type", `{"ttl": 10}`, mediaGraphQL, 0, 1, "max-age=10", "3", "application/graphql-response+json; charset=utf-8"},
		{"the default ttl", `{}`, mediaJSON, 0, 2, "max-age=30", "0", "application/json; charset=utf-8"},
		{"another variable", `{"ttl": 10, "n": 99999999999}`, mediaJSON, 0, 3, "max-age=10", "0", "application/json; charset=utf-8"},
		{"the variable again", `{"n": 99999999999, "ttl": 10}`, mediaJSON, time.Second, 3, "max-age=10", "1", "application/json; charset=utf-8"},
		{"refresh", `{"ttl": 10, "again": true}`, mediaJSON, 0, 4, "max-age=10", "0", "application/json; charset=utf-8"},
		{"after the refresh", `{"ttl": 10, "again": false}`, mediaJSON, 0, 4, "max-age=10", "0", "application/json; charset=utf-8"},
		{"after the ttl", `{"ttl": 10}`, mediaJSON, 10 * time.Second, 5, "max-age=10", "0", "application/json; charset=utf-8"},
		{"not at all", `{"ttl": 0}`, mediaJSON, 0, 6, "no-store", "", "application/json; charset=x"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c.advance(tt.advance)
			got := s.post(t, query, tt.variables, "Accept", tt.accept)
			h.wasAsked(t, tt.asked)
			if got.body != `{"data":{"v2_bonds":[]},"extensions":{"a":1}}` || got.header.Get("Cache-Control") != tt.cacheControl ||
				got.header.Get("Age") != tt.age || got.header.Get("Content-Type") != tt.contentType {
				t.Errorf("%v %s", got.header, got.body)
			}
		})
	}
	if got := s.post(t, `query($ttl: Int) @cached(ttl: $ttl) { v2_bonds { id } }`, ""); got.header.Get("Cache-Control") != "max-age=60" {
		t.Errorf("a ttl that is not given: %v %s", got.header, got.body)
	}
	for _, variables := range []string{`{"ttl": -1}`, `{"ttl": "x"}`, `{"ttl": null}`, `{"again": 1}`} {
		if got := s.post(t, query, variables); got.code(t) != "invalid_variable" && got.code(t) != "invalid_field" {
			t.Errorf("%s: %s", variables, got.body)
		}
	}
	h.wasAsked(t, 7)
}

func TestProxyCachesOnlyWholeAnswers(t *testing.T) {
	for _, body := range []string{`{"data":null,"errors":[{"message":"no"}]}`, `{"data":{},"errors":[{"message":"no"}]}`, `{"data":{},"errors":[]}`, `{"data":null}`, `{}`} {
		s, h := newProxy(t, graphql.Options{})
		h.fails(says(200, mediaJSON, body))
		for range 2 {
			if got := s.post(t, "query @cached "+statsQuery, ""); got.status != 200 || got.body != body || got.header.Get("Cache-Control") != "no-store" {
				t.Errorf("%d %v %s", got.status, got.header, got.body)
			}
		}
		h.wasAsked(t, 2)
	}
}

// What decides the upstream's answer decides the key.
func TestProxyKey(t *testing.T) {
	const first = `{"query":"query A @cached { a } query B @cached { a }","operationName":"A","variables":{"n":1},"extensions":{"x":{"a":1,"b":2}}}`
	for _, tt := range []struct {
		name, old, new string
		hit            bool
	}{
		{"the same", "", "", true},
		{"order of an extension", `{"a":1,"b":2}`, `{"b":2, "a":1.0}`, true},
		{"another extension", `{"a":1,"b":2}`, `{"a":1,"b":3}`, false},
		{"no extension", `{"x":{"a":1,"b":2}}`, `null`, false},
		{"another variable", `"n":1`, `"n":2`, false},
		{"another operation", `"operationName":"A"`, `"operationName":"B"`, false},
		{"another field", `query A @cached { a }`, `query A @cached { b }`, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, h := newProxy(t, graphql.Options{})
			h.fails(says(200, mediaJSON, `{"data":{}}`))
			s.do(t, "POST", "/v1/graphql", first, "Content-Type", mediaJSON).data(t)
			s.do(t, "POST", "/v1/graphql", strings.Replace(first, tt.old, tt.new, 1), "Content-Type", mediaJSON).data(t)
			if hit := len(h.requests()) == 1; hit != tt.hit {
				t.Errorf("hit is %v", hit)
			}
		})
	}
}

func TestProxyAsksOnceForAllWhoAskAtOnce(t *testing.T) {
	for _, tt := range []struct {
		query   string
		accepts []string
		want    int
	}{
		{"query @cached { a }", []string{mediaJSON}, 1},
		{"query @cached { a }", []string{mediaJSON, mediaGraphQL}, 2}, // a failure is answered in one type
		{"{ a }", []string{mediaJSON}, 10},
	} {
		s, h := newProxy(t, graphql.Options{})
		release := make(chan struct{})
		h.fails(func(w http.ResponseWriter, r *http.Request) {
			<-release
			says(200, mediaJSON, `{"data":{"a":1}}`)(w, r)
		})
		var all sync.WaitGroup
		for i := range 10 {
			all.Go(func() {
				if got := s.post(t, tt.query, "", "Accept", tt.accepts[i%len(tt.accepts)]); got.body != `{"data":{"a":1}}` {
					t.Errorf("got %s", got.body)
				}
			})
		}
		h.await(t, tt.want)
		close(release)
		all.Wait()
		h.wasAsked(t, tt.want)
	}
}

func TestStaleAnswersWhileTheUpstreamFails(t *testing.T) {
	const query = `query @cached(ttl: 10) { a }`
	rateLimited := says(429, mediaJSON, `{"errors":[{"message":"slow down"}]}`)
	for _, tt := range []struct {
		name    string
		body    string
		age     time.Duration
		fault   http.HandlerFunc
		refresh bool
		want    string // the body; empty: the failure
	}{
		{"500", `{"data":{"a":1}}`, 10 * time.Second, says(500, "", ""), false, `{"data":{"a":1},"extensions":{"age":10,"stale":true}}`},
		{"429", `{"data":{"a":1}}`, 10 * time.Second, rateLimited, false, `{"data":{"a":1},"extensions":{"age":10,"stale":true}}`},
		{"cut, at the end of the window", `{"data":{"a":1}}`, 69999 * time.Millisecond, cuts, false, `{"data":{"a":1},"extensions":{"age":69,"stale":true}}`},
		{"extensions of its own", `{ "extensions" : {"b":{"c":[1]},"stale":"x"}, "data":{"a": "<&>"}}`, time.Minute, cuts, false, `{"data":{"a": "<&>"},"extensions":{"age":60,"b":{"c":[1]},"stale":true}}`},
		{"extensions that are no object", `{"extensions":[1],"data":{"a":1}}`, time.Minute, cuts, false, `{"data":{"a":1},"extensions":{"age":60,"stale":true}}`},
		{"extensions null", `{"extensions":null,"data":{"a":1}}`, time.Minute, cuts, false, `{"data":{"a":1},"extensions":{"age":60,"stale":true}}`},
		{"past the window", `{"data":{"a":1}}`, 70 * time.Second, cuts, false, ""},
		{"a refresh", `{"data":{"a":1}}`, 20 * time.Second, cuts, true, ""},
		{"too large", `{"data":{"a":1}}`, 20 * time.Second, says(200, mediaJSON, strings.Repeat(" ", 6000)), false, ""},
		{"a refusal", `{"data":{"a":1}}`, 20 * time.Second, says(400, mediaJSON, `{"errors":[{"message":"no"}]}`), false, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := &clock{}
			s, h := newProxy(t, graphql.Options{Now: c.now, StaleIfError: time.Minute, Limits: graphql.Limits{MaxResponseBytes: 5000}})
			h.fails(says(200, mediaJSON, tt.body))
			s.post(t, query, "").data(t)
			c.advance(tt.age)
			h.fails(tt.fault)
			asked := query
			if tt.refresh {
				asked = `query @cached(ttl: 10, refresh: true) { a }`
			}
			got := s.post(t, asked, "", "Accept", mediaGraphQL)
			h.wasAsked(t, 2) // on the normal path the answer is no more
			if tt.want == "" {
				got.fail(t)
				if got.header.Get("Cache-Status") != "" || got.header.Get("Cache-Control") != "no-store" {
					t.Errorf("%v %s", got.header, got.body)
				}
				return
			}
			if got.status != 200 || got.body != tt.want || got.header.Get("Cache-Status") != "attestd; hit; detail=stale" || got.header.Get("Cache-Control") != "max-age=0" ||
				got.header.Get("Age") != fmt.Sprint(int(tt.age.Seconds())) || got.header.Get("Retry-After") != "" || got.header.Get("Content-Type") != mediaGraphQL+"; charset=utf-8" {
				t.Errorf("%d %v %s\nwant %s", got.status, got.header, got.body, tt.want)
			}
		})
	}
}

func TestStaleAnswersWhileTheBreakerIsOpen(t *testing.T) {
	c, registry := &clock{}, prometheus.NewRegistry()
	s, h := newProxy(t, graphql.Options{Now: c.now, StaleIfError: time.Hour, Registry: registry})
	const query = `query @cached(ttl: 10) { v2_stats_count { name } }`
	fresh := s.post(t, query, "")
	fresh.data(t)
	h.fails(cuts)
	for range 6 {
		s.post(t, statsQuery, "")
	}
	h.wasAsked(t, 6)
	if got := s.post(t, query, ""); got.body != fresh.body || got.header.Get("Cache-Control") != "max-age=10" || got.header.Get("Cache-Status") != "" {
		t.Errorf("within its ttl: %v %s", got.header, got.body)
	}
	c.advance(11 * time.Second)
	for range 3 {
		if got := s.post(t, query, ""); got.status != 200 || got.header.Get("Cache-Status") != "attestd; hit; detail=stale" {
			t.Errorf("%d %v %s", got.status, got.header, got.body)
		}
	}
	h.wasAsked(t, 6)
	if n := gather(t, registry)["attestd_graphql_stale_total"]; n != 3 {
		t.Errorf("%v stale answers were counted", n)
	}
}

// Answers of the upstream are kept longer than their ttl, those of the replica are not.
func TestStaleAnswersAreKept(t *testing.T) {
	h := newHosted(t)
	s := newServer(t, h.options(graphql.Options{StaleIfError: time.Hour}))
	s.post(t, `query @cached(ttl: 100) `+statsQuery, "").data(t)
	h.fails(says(200, mediaJSON, `{"data":{}}`))
	s.post(t, `query @cached(ttl: 200) { v2_bonds { id } }`, "").data(t)
	kept := s.e.KeptFor()
	slices.Sort(kept)
	if fmt.Sprint(kept) != "[1m40s 1h3m20s]" {
		t.Errorf("kept for %v", kept)
	}
	none := serve(t, h.options(graphql.Options{}))
	none.post(t, `query @cached(ttl: 100) { v2_bonds { id } }`, "").data(t)
	if kept := none.e.KeptFor(); fmt.Sprint(kept) != "[1m40s]" {
		t.Errorf("without stale_if_error kept for %v", kept)
	}
}

func TestProxyHealth(t *testing.T) {
	s, h := newProxy(t, graphql.Options{})
	want := h.direct.do(t, "GET", "/api/rest/health", "")
	if got := s.do(t, "GET", "/api/rest/health", ""); got.status != 200 || got.body != want.body || got.header.Get("Cache-Control") != "no-store" || got.header.Get("Content-Type") != want.header.Get("Content-Type") {
		t.Errorf("%d %v %s\nwant %s", got.status, got.header, got.body, want.body)
	}
	if asked := h.requests()[0]; asked.body != `{"query":"{ v2_health_check { status environment last_update } }"}` {
		t.Errorf("asked %+v", asked)
	}
	for _, fault := range []http.HandlerFunc{cuts, says(200, mediaJSON, `{"data":null,"errors":[{"message":"no"}]}`), says(200, mediaJSON, `{"data":{}}`), says(200, mediaJSON, `{"data":{"v2_health_check":null}}`)} {
		h.fails(fault)
		if got := s.do(t, "GET", "/api/rest/health", ""); got.status != 503 || got.code(t) != "UPSTREAM_UNAVAILABLE" || got.header.Get("Retry-After") != "1" {
			t.Errorf("%d %s", got.status, got.body)
		}
	}
}

func TestFallbackIsWholeOrNotAtAll(t *testing.T) {
	h := newHosted(t)
	index := &gatedIndex{Index: openReplica(t)}
	s := newServer(t, h.options(graphql.Options{Index: index}))
	const bonds = `{"data":{"v2_bonds":[]}}`
	h.fails(says(200, mediaJSON, bonds))
	for _, tt := range []struct {
		name, query, variables string
		forwarded              bool
		code                   string
	}{
		{"what the replica has", statsQuery, "", false, ""},
		{"introspection", standardIntrospection, "", false, ""},
		{"with a fragment", `{ ...F } fragment F on Query { v2_transfers(args: {p_limit: 1}) { status } }`, "", false, ""},
		{"an unknown root field", `{ v2_bonds { id } }`, "", true, ""},
		{"a known and an unknown root field", `{ v2_stats_count { name } v2_bonds { id } }`, "", true, ""},
		{"an unknown field of a row", `{ v2_transfers(args: {p_limit: 1}) { status } v2_packets { status new_field } }`, "", true, ""},
		{"an unknown argument", `{ v2_transfers(args: {p_new: 1}) { status } }`, "", true, ""},
		{"an unknown type", `query($x: new_type) { v2_transfers(where: $x) { status } }`, `{"x": {}}`, true, ""},
		{"an unknown directive", `query @new { v2_stats_count { name } }`, "", true, ""},
		{"fields that conflict", `{ a: v2_transfers { status } a: v2_packets { status } }`, "", true, ""},
		{"no GraphQL", `{ v2_bonds { id }`, "", false, "parse_failed"},
		{"too much", `{ v2_bonds {` + repeat(51, "a%d:b ") + `} }`, "", false, "too_many_aliases"},
		{"a mutation", `mutation { v2_bonds { id } }`, "", false, "operation_unsupported"},
		{"a variable's value", `query($n: Int!) { v2_transfers(args: {p_limit: $n}) { status } }`, `{"n": "x"}`, false, "invalid_variable"},
		{"an argument's value", `{ v2_transfers(args: {p_limit: 0}) { status } }`, "", false, "invalid_field"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for range 2 { // the second time by the document that was kept
				asked, views := len(h.requests()), index.views.Load()
				got := s.post(t, tt.query, tt.variables)
				switch read := index.views.Load() > views; {
				case tt.code != "":
					if got.code(t) != tt.code || len(h.requests()) != asked {
						t.Errorf("%s", got.body)
					}
				case tt.forwarded:
					if got.body != bonds || read || len(h.requests()) != asked+1 || h.requests()[asked].body != postBody(tt.query, tt.variables) {
						t.Errorf("read %v, asked %d times: %s", read, len(h.requests())-asked, got.body)
					}
				default:
					got.data(t)
					if got.body == bonds || len(h.requests()) != asked {
						t.Errorf("asked %d times: %s", len(h.requests())-asked, got.body)
					}
				}
			}
		})
	}
	if n := s.e.Prepared(); n != 12 { // those without a code, and the last two
		t.Errorf("%d documents are kept", n)
	}
	h.fails(cuts)
	if got := s.post(t, `{ v2_stats_count { name } v2_bonds { id } }`, ""); got.status != 503 || got.code(t) != "UPSTREAM_UNAVAILABLE" {
		t.Errorf("%d %s", got.status, got.body)
	}
	s.post(t, statsQuery, "").data(t)
	if got := s.do(t, "GET", "/api/rest/health", ""); got.status != 200 {
		t.Errorf("health of the replica: %s", got.body)
	}
}

func TestReplicaTellsItsLagOnRequest(t *testing.T) {
	lag, known := 1234*time.Millisecond+567*time.Microsecond, true
	s := newServer(t, graphql.Options{Lag: func() (time.Duration, bool) { return lag, known }})
	ask := func(query, extensions string) string {
		t.Helper()
		body := strings.TrimSuffix(postBody(query, ""), "}") + `,"extensions":` + extensions + "}"
		return s.do(t, "POST", "/v1/graphql", body, "Content-Type", mediaJSON).body
	}
	const plain = `{"data":{"__typename":"Query"}}`
	const told = `{"data":{"__typename":"Query"},"extensions":{"replica":{"lag_seconds":1.235}}}`
	for extensions, want := range map[string]string{
		`{"replica": true}`: told, `{"x":{},"replica":true}`: told,
		`{}`: plain, `null`: plain, `{"replica": false}`: plain, `{"replica": "true"}`: plain, `{"replica": {}}`: plain,
	} {
		if got := ask("{__typename}", extensions); got != want {
			t.Errorf("%s: %s", extensions, got)
		}
	}
	if got := s.do(t, "GET", "/v1/graphql?query={__typename}&extensions="+url.QueryEscape(`{"replica":true}`), "").body; got != told {
		t.Errorf("by GET: %s", got)
	}
	if got := ask("{v2_transfers(args: {p_limit: 1}, where: {}) { status }}", `{"replica":true}`); !strings.Contains(got, `"extensions":{"replica":{"lag_seconds":1.235},"warnings":[{"code":"where_ignored"`) {
		t.Errorf("with a warning: %s", got)
	}
	for range 2 {
		if got := ask("query @cached {__typename}", `{}`); got != plain {
			t.Errorf("cached, not asked for: %s", got)
		}
		if got := ask("query @cached {__typename}", `{"replica":true}`); got != told {
			t.Errorf("cached: %s", got)
		}
	}
	known = false
	const unknown = `{"data":{"__typename":"Query"},"extensions":{"replica":{"lag_seconds":null}}}`
	if got := ask("{__typename}", `{"replica":true}`); got != unknown {
		t.Errorf("unknown: %s", got)
	}
	s = newServer(t, graphql.Options{})
	if got := ask("{__typename}", `{"replica":true}`); got != unknown {
		t.Errorf("not followed: %s", got)
	}
}

func TestEndpointNeedsASource(t *testing.T) {
	if _, err := graphql.New(graphql.Options{}); err == nil {
		t.Error("an endpoint without index and upstream")
	}
}
