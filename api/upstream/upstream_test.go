package upstream_test

import (
	"cmp"
	"compress/gzip"
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/attestd/attestd/api/upstream"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index/follower"
)

var _ follower.Upstream = (*upstream.Client)(nil)

func newClient(t testing.TB, o upstream.Options) *upstream.Client {
	t.Helper()
	o.Timeout = cmp.Or(o.Timeout, time.Minute)
	c, err := upstream.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// serve runs a handler on a local address.
func serve(t testing.TB, handler http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return s
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

// cut sends the start of an answer and closes the connection.
func cut(beginning string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		io.WriteString(conn, beginning)
		conn.Close()
	}
}

const (
	mediaJSON    = "application/json"
	mediaGraphQL = "application/graphql-response+json; charset=utf-8"
)

func TestWrongOptionsAreRefusedWithTheirReason(t *testing.T) {
	noPEM := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(noPEM, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	header := func(name, value string) http.Header { return http.Header{name: {value}} }
	for _, tt := range []struct {
		o    upstream.Options
		want string // empty: the options are valid
	}{
		{upstream.Options{URL: "https://upstream.example/v1/graphql"}, ""},
		{upstream.Options{URL: "https://upstream.example:8443/v1/graphql?tenant=1"}, ""},
		{upstream.Options{URL: "http://localhost:8080/v1/graphql"}, ""},
		{upstream.Options{URL: "http://127.0.0.2/v1/graphql"}, ""},
		{upstream.Options{URL: "http://[::1]:80/v1/graphql"}, ""},
		{upstream.Options{URL: "http://upstream.example/v1/graphql", AllowHTTP: true}, ""},
		{upstream.Options{URL: "http://upstream.example/v1/graphql"}, "must be https"},
		{upstream.Options{URL: "http://localhost.example/v1/graphql"}, "must be https"},
		{upstream.Options{URL: "http://10.0.0.1/"}, "must be https"},
		{upstream.Options{URL: ""}, "must be like https://"},
		{upstream.Options{URL: "upstream.example/v1/graphql"}, "must be like https://"},
		{upstream.Options{URL: "ftp://upstream.example/"}, "must be like https://"},
		{upstream.Options{URL: "https:///v1/graphql"}, "must be like https://"},
		{upstream.Options{URL: "https:upstream.example"}, "must be like https://"},
		{upstream.Options{URL: "https://me:secret@upstream.example/"}, "must not have a user name or password"},
		{upstream.Options{URL: "https://me:secret@upstream.example:port/"}, "invalid port"},
		{upstream.Options{URL: "https://upstream.example/#top"}, "must not have a fragment"},
		{upstream.Options{URL: "https://upstream.example/#"}, "must not have a fragment"},
		{upstream.Options{URL: "https://upstream.example/", CAFile: filepath.Join(t.TempDir(), "none")}, "no such file"},
		{upstream.Options{URL: "https://upstream.example/", CAFile: noPEM}, "does not contain a PEM certificate"},
		{upstream.Options{URL: "https://upstream.example/", Headers: header("x-api-key", "k")}, ""},
		{upstream.Options{URL: "https://upstream.example/", Headers: header("x api key", "secret")}, "is not a header name"},
		{upstream.Options{URL: "https://upstream.example/", Headers: header("", "secret")}, "is not a header name"},
		{upstream.Options{URL: "https://upstream.example/", Headers: header("accept-encoding", "br")}, "Accept-Encoding cannot be set"},
		{upstream.Options{URL: "https://upstream.example/", Headers: header("X-Api-Key", "secret\r\nHost: x")}, "control character"},
	} {
		tt.o.Timeout = time.Minute
		_, err := upstream.New(tt.o)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%+v: %v, want %q", tt.o, err, tt.want)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("the error shows a secret: %v", err)
		}
	}
	if _, err := upstream.New(upstream.Options{URL: "https://upstream.example/"}); err == nil || !strings.Contains(err.Error(), "Timeout") {
		t.Errorf("without a timeout: %v", err)
	}
}

func TestQuerySendsAGraphQLRequest(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		h := r.Header
		h.Del("Content-Length")
		got := fmt.Sprintf("%s %s %v %s", r.Method, r.URL, h, body)
		want := `POST /v1/graphql?tenant=1 map[Accept:[application/graphql-response+json, application/json;q=0.9] Accept-Encoding:[zstd, gzip] ` +
			`Content-Type:[application/json] If-None-Match:["-"] User-Agent:[attestd/1.0] X-Api-Key:[key]] {"query":"query($n: Int) { a }","variables":{"n":1}}`
		if got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
		says(200, mediaGraphQL, `{"data": {"a": [1, 2]}, "extensions": {}}`, "Set-Cookie", "session=1")(w, r)
	})
	c := newClient(t, upstream.Options{URL: s.URL + "/v1/graphql?tenant=1", Headers: http.Header{"x-api-key": {"key"}}, UserAgent: "attestd/1.0"})
	for range 2 { // the second request must not send the cookie
		data, err := c.Query(t.Context(), "query($n: Int) { a }", map[string]any{"n": 1})
		if err != nil || string(data) != `{"a": [1, 2]}` {
			t.Errorf("%s, %v", data, err)
		}
	}
}

func TestQueryTellsFailures(t *testing.T) {
	const unavailable = appliance.CodeUpstreamUnavailable
	long := strings.Repeat("x", 10_000)
	for _, tt := range []struct {
		name    string
		handler http.HandlerFunc
		code    appliance.Code // empty: a *follower.QueryError
		want    string         // in the error
		retry   time.Duration
	}{
		{"200 with errors", says(200, mediaJSON, `{"data": null, "errors": [{"message": "no field a", "extensions": {"code": "validation_failed"}}]}`), "", "no field a", 0},
		{"200 with data and errors", says(200, mediaJSON, `{"data": {"a": 1}, "errors": [{"message": "half"}]}`), "", "half", 0},
		{"400 with errors", says(400, mediaGraphQL, `{"errors": [{"message": "no field a"}, {"message": "no field b", "extensions": 7}]}`), "", "no field a; no field b", 0},
		{"401 with errors", says(401, mediaJSON, `{"errors": [{"message": "who are you"}]}`), "", "who are you", 0},
		{"many long errors", says(200, mediaJSON, `{"errors": [`+strings.Repeat(`{"message": "`+long+`"},`, 99)+`{"message": ""}]}`), "", "xxx", 0},
		{"errors that are none", says(200, mediaJSON, `{"errors": "all wrong"}`), unavailable, "all wrong", 0},
		{"401", says(401, "application/problem+json", `{"code": "missing_api_key"}`), unavailable, `answered 401: HTTP 401, "application/problem+json": "{\"code\": \"missing_api_key\"}"`, 0},
		{"403 in HTML", says(403, "text/html", "<html>\r\n\x1b[31mForbidden"+long), unavailable, `"<html>\r\n\x1b[31mForbidden`, 0},
		{"404 in JSON", says(404, mediaJSON, `{"message": "no such page"}`), unavailable, "answered 404", 0},
		{"429", says(429, mediaJSON, `{"errors": [{"message": "slow down"}]}`, "Retry-After", "7"), unavailable, "answered 429", 7 * time.Second},
		{"429 without more", says(429, "", ""), unavailable, "answered 429", 0},
		{"503", says(503, mediaJSON, `{"errors": [{"message": "later"}]}`, "Retry-After", "120"), unavailable, "answered 503", 2 * time.Minute},
		{"503 for longer than sense", says(503, "", "", "Retry-After", "99999999999999999999"), unavailable, "answered 503", upstream.MaxRetryAfter},
		{"503 with a Retry-After that is none", says(503, "", "", "Retry-After", "soon"), unavailable, "answered 503", 0},
		{"503 until a time gone by", says(503, "", "", "Retry-After", "Sun, 06 Nov 1994 08:49:37 GMT"), unavailable, "answered 503", 0},
		{"500", says(500, "text/plain", "oops"), unavailable, `answered 500: HTTP 500, "text/plain": "oops"`, 0},
		{"rate limit as an error", says(200, mediaJSON, `{"errors": [{"message": "slow down", "extensions": {"code": "RATE_LIMITED"}}]}`, "Retry-After", "3"), unavailable, "slow down", 3 * time.Second},
		{"timeout as an error", says(200, mediaJSON, `{"errors": [{"message": "a"}, {"message": "b", "extensions": {"code": "timeout"}}]}`), unavailable, "b", 0},
		{"its upstream is gone", says(200, mediaJSON, `{"errors": [{"message": "a", "extensions": {"code": "UPSTREAM_UNAVAILABLE"}}]}`), unavailable, "a", 0},
		{"no data", says(200, mediaJSON, `{}`), unavailable, "is not GraphQL", 0},
		{"null data", says(200, mediaJSON, `{"data": null}`), unavailable, "is not GraphQL", 0},
		{"data that are no object", says(200, mediaJSON, `{"data": [1]}`), unavailable, "is not GraphQL", 0},
		{"HTML", says(200, "text/html", "<html>log in</html>"), unavailable, `"<html>log in</html>"`, 0},
		{"JSON as text", says(200, "text/plain", `{"data": {}}`), unavailable, "text/plain", 0},
		{"malformed", says(200, mediaJSON, `{"data": {"a": }}`), unavailable, `\"a\": }`, 0},
		{"truncated JSON", says(200, mediaJSON, `{"data": {"a": [1, 2`), unavailable, `[1, 2`, 0},
		{"empty", says(200, mediaJSON, ""), unavailable, "is not GraphQL", 0},
		{"too large", says(200, mediaJSON, `{"data": {"a": "`+strings.Repeat("x", 1<<20)+`"}}`), unavailable, "too large", 0},
		{"gzip that is none", says(200, mediaJSON, `{"data": {}}`, "Content-Encoding", "gzip"), unavailable, "gzip", 0},
		{"redirect", says(302, "", "", "Location", "https://elsewhere.example/graphql"), unavailable, `HTTP 302 redirect to "https://elsewhere.example/graphql"`, 0},
		{"cut before the answer", cut(""), unavailable, "EOF", 0},
		{"cut in the header", cut("HTTP/1.1 200 OK\r\nContent-Type:"), unavailable, "EOF", 0},
		{"cut in the body", cut("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"data\": {}}"), unavailable, "read the answer: unexpected EOF", 0},
		{"cut in a chunk", cut("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nc\r\n{\"data\": {}}\r\n"), unavailable, "unexpected EOF", 0},
		{"an endless word", cut(long + "\r\n"), unavailable, "malformed HTTP", 0},
		{"not HTTP", cut("SSH-2.0-OpenSSH\r\n"), unavailable, "malformed HTTP", 0},
		{"endless header", cut("HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 100<<10)), unavailable, "header", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newClient(t, upstream.Options{URL: serve(t, tt.handler).URL, MaxResponse: 1 << 20})
			data, err := c.Query(t.Context(), "{ a }", nil)
			if err == nil {
				t.Fatalf("got %s", data)
			}
			checkFailure(t, err, tt.code, tt.want, tt.retry)
		})
	}
}

// checkFailure checks an error of Query. An empty code means a *follower.QueryError.
func checkFailure(t *testing.T, err error, code appliance.Code, want string, retry time.Duration) {
	t.Helper()
	_, isRefusal := errors.AsType[*follower.QueryError](err)
	if e, ok := errors.AsType[*appliance.Error](err); ok && (e.Code != code || e.RetryAfter != retry) || ok == (code == "") {
		t.Errorf("%#v, want %s after %s", e, code, retry)
	}
	most := 1000
	if isRefusal {
		most = 6000
	}
	if code == "" && !isRefusal || !strings.Contains(err.Error(), want) || len(err.Error()) > most {
		t.Errorf("got %v", err)
	}
}

func TestRetryAfterMayBeADate(t *testing.T) {
	at := time.Now().Add(time.Hour)
	c := newClient(t, upstream.Options{URL: serve(t, says(503, "", "", "Retry-After", at.UTC().Format(http.TimeFormat))).URL})
	_, err := c.Query(t.Context(), "{ a }", nil)
	e, _ := errors.AsType[*appliance.Error](err)
	if e == nil || e.RetryAfter < 59*time.Minute || e.RetryAfter > time.Hour {
		t.Errorf("%#v", e)
	}
}

func TestNobodyListens(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	c := newClient(t, upstream.Options{URL: "http://" + l.Addr().String() + "/?token=secret"})
	_, err = c.Query(t.Context(), "{ a }", nil)
	if appliance.CodeOf(err) != appliance.CodeUpstreamUnavailable || !strings.Contains(err.Error(), "refused") || strings.Contains(err.Error(), "secret") {
		t.Errorf("got %v", err)
	}
}

// The timeout also covers an answer that begins and then stalls.
func TestTimeoutIncludesTheBody(t *testing.T) {
	for name, beginning := range map[string]string{"nothing": "", "half": `{"data": {"a": [1, `} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if beginning != "" {
					says(200, mediaJSON, beginning)(w, r)
					w.(http.Flusher).Flush()
				}
				io.Copy(io.Discard, r.Body) // the server notices the end of the connection only after this
				<-r.Context().Done()
			})
			c := newClient(t, upstream.Options{URL: s.URL, Timeout: 50 * time.Millisecond})
			_, err := c.Query(t.Context(), "{ a }", nil)
			if appliance.CodeOf(err) != appliance.CodeUpstreamUnavailable || !strings.Contains(err.Error(), "took too long: no complete answer within 50ms") {
				t.Errorf("got %v", err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer cancel()
			c = newClient(t, upstream.Options{URL: s.URL}) // its own timeout is longer
			if _, err := c.Query(ctx, "{ a }", nil); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the caller's deadline: %v", err)
			}
		})
	}
}

func TestAnswersAreBoundedAfterDecompression(t *testing.T) {
	for _, name := range []string{"gzip", "zstd"} {
		t.Run(name, func(t *testing.T) { testBoundAfterDecompression(t, name) })
	}
}

func testBoundAfterDecompression(t *testing.T, name string) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept-Encoding") != "zstd, gzip" {
			t.Errorf("Accept-Encoding: %q", r.Header.Get("Accept-Encoding"))
		}
		w.Header().Set("Content-Type", mediaJSON)
		w.Header().Set("Content-Encoding", name)
		var z io.WriteCloser = gzip.NewWriter(w)
		if name != "gzip" {
			z, _ = zstd.NewWriter(w) // cannot fail without options
		}
		defer z.Close()
		io.WriteString(z, `{"data": {"a": "`+r.URL.RawQuery)
		if r.URL.RawQuery == "bomb" {
			io.CopyN(z, repeated("x"), 100<<20)
		}
		io.WriteString(z, `"}}`)
	})
	c := newClient(t, upstream.Options{URL: s.URL, MaxResponse: 1 << 20})
	if r, err := c.Forward(t.Context(), upstream.Request{Method: "GET", Query: "small"}); err != nil || string(r.Body) != `{"data": {"a": "small"}}` {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := c.Forward(t.Context(), upstream.Request{Method: "GET", Query: "bomb"}); !errors.Is(err, upstream.ErrTooLarge) {
		t.Errorf("got %v", err)
	}
	if _, err := c.Forward(t.Context(), upstream.Request{Method: "GET", Query: "small", MaxResponse: 10}); !errors.Is(err, upstream.ErrTooLarge) {
		t.Errorf("the request's own bound: %v", err)
	}
}

type repeated string

func (r repeated) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = r[0]
	}
	return len(p), nil
}

func TestForwardChangesNothing(t *testing.T) {
	for _, tt := range []struct {
		name string
		r    upstream.Request
		want string
	}{
		{"POST", upstream.Request{Method: "POST", Body: []byte("\n {\"query\" : \"{ a }\"}"), ContentType: "application/json; Charset=UTF-8", Accept: "*/*"},
			"POST /?k=v application/json; Charset=UTF-8 [*/*] \n {\"query\" : \"{ a }\"}"},
		{"POST without Accept", upstream.Request{Method: "POST", Body: []byte("{}"), ContentType: mediaJSON}, "POST /?k=v application/json [] {}"},
		{"GET", upstream.Request{Method: "GET", Query: "query=%7Ba%7D&&variables={}&x=%zz", Accept: mediaJSON}, "GET /?k=v&query=%7Ba%7D&&variables={}&x=%zz  [application/json] "},
		{"GET with a space and more than ASCII", upstream.Request{Method: "GET", Query: "query={ ü }&"}, "GET /?k=v&query={%20ü%20}&  [] "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := serve(t, func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				got := fmt.Sprintf("%s %s %s %v %s", r.Method, r.RequestURI, r.Header.Get("Content-Type"), r.Header["Accept"], body)
				if got != tt.want {
					t.Errorf("got  %q\nwant %q", got, tt.want)
				}
				says(418, "text/tea", "short and stout", "Retry-After", "4")(w, r)
			})
			resp, err := newClient(t, upstream.Options{URL: s.URL + "/?k=v"}).Forward(t.Context(), tt.r)
			if err != nil || resp.Status != 418 || resp.ContentType != "text/tea" || resp.RetryAfter != 4*time.Second || string(resp.Body) != "short and stout" {
				t.Errorf("%+v, %v", resp, err)
			}
		})
	}
}

// Input that net/http refuses to send must not look like a failure of the upstream.
func TestForwardRefusesWhatCannotBeSent(t *testing.T) {
	c := newClient(t, upstream.Options{URL: "http://127.0.0.1:1"})
	for _, r := range []upstream.Request{
		{Method: "GET", Query: "query=\x01"}, {Method: "GET", Query: "query=\x7f"}, {Method: "POST", Accept: "a\x00b"}, {Method: "POST", ContentType: "a\nb"},
	} {
		if _, err := c.Forward(t.Context(), r); appliance.CodeOf(err) != appliance.CodeInvalidField {
			t.Errorf("%+v: %v", r, err)
		}
	}
}

func TestForwardReportsARedirect(t *testing.T) {
	elsewhere := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("the redirect was followed") })
	c := newClient(t, upstream.Options{URL: serve(t, says(307, "", "", "Location", elsewhere.URL)).URL})
	if _, err := c.Forward(t.Context(), upstream.Request{Method: "POST"}); appliance.CodeOf(err) != appliance.CodeUpstreamUnavailable || !strings.Contains(err.Error(), elsewhere.URL) {
		t.Errorf("got %v", err)
	}
}

func TestTLS(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		says(200, mediaJSON, fmt.Sprintf(`{"data": {"proto": %q}}`, r.Proto))(w, r)
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.Close()
	old := httptest.NewUnstartedServer(says(200, mediaJSON, `{"data": {}}`))
	old.TLS = &tls.Config{MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10}
	old.StartTLS()
	defer old.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	if data, err := newClient(t, upstream.Options{URL: s.URL, CAFile: ca}).Query(t.Context(), "{ a }", nil); err != nil || string(data) != `{"proto": "HTTP/2.0"}` {
		t.Errorf("%s, %v", data, err)
	}
	if _, err := newClient(t, upstream.Options{URL: s.URL}).Query(t.Context(), "{ a }", nil); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("without the authority: %v", err)
	}
	if _, err := newClient(t, upstream.Options{URL: old.URL, CAFile: ca}).Query(t.Context(), "{ a }", nil); err == nil || !strings.Contains(err.Error(), "protocol version") {
		t.Errorf("TLS 1.1: %v", err)
	}
}

// An upstream may close a kept connection just as a request is sent on it. That must not fail the request.
func TestClosedKeptConnectionIsNoFailure(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for { // answers once per connection and pretends to keep it open; a second request finds it closed
			conn, err := l.Accept()
			if err != nil {
				return
			}
			buf := make([]byte, 4096)
			conn.Read(buf)
			io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 12\r\n\r\n{\"data\": {}}")
			go func() {
				conn.Read(buf)
				conn.Close()
			}()
		}
	}()
	c := newClient(t, upstream.Options{URL: "http://" + l.Addr().String()})
	for range 5 {
		if _, err := c.Query(t.Context(), "{ a }", nil); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRequestsAreCounted(t *testing.T) {
	registry := prometheus.NewRegistry()
	var answer http.HandlerFunc
	s := serve(t, func(w http.ResponseWriter, r *http.Request) { answer(w, r) })
	c := newClient(t, upstream.Options{URL: s.URL, Registry: registry, MaxResponse: 100})
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	want := map[string]float64{
		"query ok": 1, "query refused": 1, "query limited": 1, "query unavailable": 2, "query too_large": 1, "query canceled": 1,
		"forward ok": 1, "forward refused": 2, "forward limited": 1, "forward unavailable": 1, "forward too_large": 1, "forward canceled": 1,
	}
	for _, answer = range []http.HandlerFunc{
		says(200, mediaJSON, `{"data": {}}`), says(400, mediaJSON, `{"errors": [{}]}`), says(429, "", ""), says(500, "", ""),
		says(401, "", ""), says(200, mediaJSON, strings.Repeat("x", 101)),
	} {
		c.Query(t.Context(), "{ a }", nil)
		c.Forward(t.Context(), upstream.Request{Method: "POST"})
	}
	c.Query(canceled, "{ a }", nil)
	c.Forward(canceled, upstream.Request{Method: "POST"})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "attestd_upstream_requests_total" {
				got[m.GetLabel()[1].GetValue()+" "+m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
			} else if n := m.GetHistogram().GetSampleCount(); n != 7 {
				t.Errorf("%s has %d samples", f.GetName(), n)
			}
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if _, err := upstream.New(upstream.Options{URL: s.URL, Timeout: time.Minute, Registry: registry}); err == nil {
		t.Error("the same metrics were registered twice")
	}
}
