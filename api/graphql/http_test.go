package graphql_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/api/graphql"
)

const (
	mediaGraphQL = "application/graphql-response+json"
	mediaJSON    = "application/json"
)

// httpTest is a rule of graphql.github.io/graphql-over-http: a request and its expected answer. An empty code means the
// data of typenameBody.
type httpTest struct {
	name, method, target, body string
	header                     []string
	status                     int
	media, code                string
}

const typenameBody = `{"query":"{__typename}"}`

var typenameByGET = "/v1/graphql?query=" + url.QueryEscape("{__typename}")

func (tt httpTest) check(t *testing.T, s *server) {
	t.Helper()
	got := s.do(t, tt.method, tt.target, tt.body, tt.header...)
	if want := tt.media + "; charset=utf-8"; got.status != tt.status || got.header.Get("Content-Type") != want {
		t.Errorf("status %d, %s, want %d, %s\n%s", got.status, got.header.Get("Content-Type"), tt.status, want, got.body)
	}
	switch {
	case tt.code == "" && got.body != `{"data":{"__typename":"Query"}}`:
		t.Errorf("body %s", got.body)
	case tt.code != "" && got.code(t) != tt.code:
		t.Errorf("code %s, want %s", got.code(t), tt.code)
	}
	if tt.status == 405 && got.header.Get("Allow") == "" {
		t.Error("405 without Allow")
	}
}

func TestHTTP(t *testing.T) {
	const query = typenameBody
	get := typenameByGET
	s := newServer(t, graphql.Options{})
	for _, tt := range []httpTest{
		{"POST", "POST", "/v1/graphql", query, []string{"Content-Type", mediaJSON}, 200, mediaJSON, ""},
		{"POST, the newer type", "POST", "/v1/graphql", query, []string{"Content-Type", mediaJSON, "Accept", mediaGraphQL}, 200, mediaGraphQL, ""},
		{"POST with charset", "POST", "/v1/graphql", query, []string{"Content-Type", mediaJSON + "; Charset=UTF-8"}, 200, mediaJSON, ""},
		{"GET", "GET", get, "", nil, 200, mediaJSON, ""},
		{"GET with all parameters", "GET", "/v1/graphql?operationName=A&variables=" + url.QueryEscape(`{"n":1}`) + "&extensions=" + url.QueryEscape(`{}`) +
			"&query=" + url.QueryEscape("query A($n: Int) { __typename v2_chains(args: {p_limit: $n}) { rpc_type } } query B { x }"), "", nil, 200, mediaJSON, "validation_failed"},
		{"a query with its hash", "POST", "/v1/graphql", `{"query":"{__typename}","extensions":{"persistedQuery":{"version":1,"sha256Hash":"ab"}}}`, []string{"Content-Type", mediaJSON}, 200, mediaJSON, ""},
		{"null parameters", "POST", "/v1/graphql", `{"query":"{__typename}","operationName":null,"variables":null,"extensions":null}`, []string{"Content-Type", mediaJSON}, 200, mediaJSON, ""},

		{"either type, the newer named first", "GET", get, "", []string{"Accept", mediaGraphQL + ", " + mediaJSON + ";q=0.9"}, 200, mediaGraphQL, ""},
		{"the older is preferred", "GET", get, "", []string{"Accept", mediaGraphQL + ";q=0.5, " + mediaJSON}, 200, mediaJSON, ""},
		{"both alike", "GET", get, "", []string{"Accept", mediaJSON + ", " + mediaGraphQL}, 200, mediaGraphQL, ""},
		{"anything", "GET", get, "", []string{"Accept", "*/*"}, 200, mediaJSON, ""},
		{"a browser's", "GET", get, "", []string{"Accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}, 200, mediaJSON, ""},
		{"none of both", "GET", get, "", []string{"Accept", "text/html"}, 406, mediaJSON, "not_acceptable"},
		{"JSON refused", "GET", get, "", []string{"Accept", mediaJSON + ";q=0, application/*"}, 200, mediaGraphQL, ""},
		{"another charset", "GET", get, "", []string{"Accept", mediaJSON + "; charset=utf-16"}, 406, mediaJSON, "not_acceptable"},
	} {
		t.Run(tt.name, func(t *testing.T) { tt.check(t, s) })
	}
}

func TestHTTPRefusesRequests(t *testing.T) {
	const query = typenameBody
	get := typenameByGET
	s := newServer(t, graphql.Options{})
	for _, tt := range []httpTest{
		{"no query, newer", "POST", "/v1/graphql", `{}`, []string{"Content-Type", mediaJSON, "Accept", mediaGraphQL}, 400, mediaGraphQL, "missing_field"},
		{"no query, older", "POST", "/v1/graphql", `{}`, []string{"Content-Type", mediaJSON}, 400, mediaJSON, "missing_field"},
		{"no query, GET", "GET", "/v1/graphql", "", nil, 400, mediaJSON, "missing_field"},
		{"query of another type", "POST", "/v1/graphql", `{"query":{"a":1}}`, []string{"Content-Type", mediaJSON}, 400, mediaJSON, "invalid_field"},
		{"query null", "POST", "/v1/graphql", `{"query":null}`, []string{"Content-Type", mediaJSON}, 400, mediaJSON, "missing_field"},
		{"variables of another type", "POST", "/v1/graphql", `{"query":"{__typename}","variables":"x"}`, []string{"Content-Type", mediaJSON}, 400, mediaJSON, "invalid_field"},
		{"variables in a list", "POST", "/v1/graphql", `{"query":"{__typename}","variables":[1]}`, []string{"Content-Type", mediaJSON}, 400, mediaJSON, "invalid_field"},
		{"variables that are no JSON", "GET", get + "&variables=%7B", "", nil, 400, mediaJSON, "invalid_field"},
		{"extensions of another type", "POST", "/v1/graphql", `{"query":"{__typename}","extensions":0}`, []string{"Content-Type", mediaJSON}, 400, mediaJSON, "invalid_field"},
		{"operationName of another type", "POST", "/v1/graphql", `{"query":"{__typename}","operationName":7}`, []string{"Content-Type", mediaJSON}, 400, mediaJSON, "invalid_field"},
		{"the hash of a query, older", "POST", "/v1/graphql", `{"extensions":{"persistedQuery":{"version":1,"sha256Hash":"ab"}}}`, []string{"Content-Type", mediaJSON}, 200, mediaJSON, "PERSISTED_QUERY_NOT_SUPPORTED"},
		{"the hash of a query, newer", "POST", "/v1/graphql", `{"operationName":"A","extensions":{"persistedQuery":{"version":1,"sha256Hash":"ab"}}}`, []string{"Content-Type", mediaJSON, "Accept", mediaGraphQL}, 400, mediaGraphQL, "PERSISTED_QUERY_NOT_SUPPORTED"},
		{"the hash of a query by GET", "GET", "/v1/graphql?extensions=" + url.QueryEscape(`{"persistedQuery":{"version":1,"sha256Hash":"ab"}}`), "", nil, 200, mediaJSON, "PERSISTED_QUERY_NOT_SUPPORTED"},
		{"no JSON", "POST", "/v1/graphql", `{"query`, []string{"Content-Type", mediaJSON, "Accept", mediaGraphQL}, 400, mediaGraphQL, "invalid_json"},
		{"a batch", "POST", "/v1/graphql", " [" + query + "]", []string{"Content-Type", mediaJSON}, 400, mediaJSON, "batching_unsupported"},

		{"syntax, newer", "POST", "/v1/graphql", `{"query":"{"}`, []string{"Content-Type", mediaJSON, "Accept", mediaGraphQL}, 400, mediaGraphQL, "parse_failed"},
		{"syntax, older", "POST", "/v1/graphql", `{"query":"{"}`, []string{"Content-Type", mediaJSON}, 200, mediaJSON, "parse_failed"},
		{"validation, newer", "POST", "/v1/graphql", `{"query":"{x}"}`, []string{"Content-Type", mediaJSON, "Accept", mediaGraphQL}, 400, mediaGraphQL, "validation_failed"},
		{"validation, older", "POST", "/v1/graphql", `{"query":"{x}"}`, []string{"Content-Type", mediaJSON}, 200, mediaJSON, "validation_failed"},
		{"variables, newer", "POST", "/v1/graphql", `{"query":"query($n:Int!){v2_chains(args:{p_limit:$n}){rpc_type}}"}`, []string{"Content-Type", mediaJSON, "Accept", mediaGraphQL}, 400, mediaGraphQL, "invalid_variable"},
		{"a field's error", "POST", "/v1/graphql", `{"query":"{v2_chains(args:{p_limit:0}){rpc_type}}"}`, []string{"Content-Type", mediaJSON, "Accept", mediaGraphQL}, 200, mediaGraphQL, "invalid_field"},

		{"mutation by GET", "GET", "/v1/graphql?query=" + url.QueryEscape("mutation{__typename}"), "", nil, 405, mediaJSON, "operation_unsupported"},
		{"subscription by GET", "GET", "/v1/graphql?query=" + url.QueryEscape("subscription{__typename}"), "", nil, 405, mediaJSON, "operation_unsupported"},
		{"PUT", "PUT", "/v1/graphql", query, []string{"Content-Type", mediaJSON}, 405, mediaJSON, "method_not_allowed"},
		{"DELETE", "DELETE", "/v1/graphql", "", nil, 405, mediaJSON, "method_not_allowed"},
		{"no type", "POST", "/v1/graphql", query, nil, 415, mediaJSON, "unsupported_media_type"},
		{"form", "POST", "/v1/graphql", "query=x", []string{"Content-Type", "application/x-www-form-urlencoded"}, 415, mediaJSON, "unsupported_media_type"},
		{"another charset sent", "POST", "/v1/graphql", query, []string{"Content-Type", mediaJSON + "; charset=utf-16"}, 415, mediaJSON, "unsupported_media_type"},
		{"compressed", "POST", "/v1/graphql", query, []string{"Content-Type", mediaJSON, "Content-Encoding", "gzip"}, 415, mediaJSON, "unsupported_media_type"},
		{"compressed by nothing", "POST", "/v1/graphql", query, []string{"Content-Type", mediaJSON, "Content-Encoding", ""}, 415, mediaJSON, "unsupported_media_type"},
		{"compressed as it is", "POST", "/v1/graphql", query, []string{"Content-Type", mediaJSON, "Content-Encoding", "identity"}, 415, mediaJSON, "unsupported_media_type"},

		{"query twice", "POST", "/v1/graphql", `{"query":"{__typename}","query":"{x}"}`, []string{"Content-Type", mediaJSON}, 400, mediaJSON, "duplicate_field"},
		{"query twice, once escaped", "POST", "/v1/graphql", `{"query":"{__typename}","q\u0075ery":"{x}"}`, []string{"Content-Type", mediaJSON}, 400, mediaJSON, "duplicate_field"},
		{"a member of a variable twice", "POST", "/v1/graphql", `{"query":"{__typename}","variables":{"n":[{"a":1,"\u0061":2}]}}`, []string{"Content-Type", mediaJSON}, 400, mediaJSON, "duplicate_field"},
		{"what is ignored, twice", "POST", "/v1/graphql", `{"query":"{__typename}","id":1,"id":2}`, []string{"Content-Type", mediaJSON}, 400, mediaJSON, "duplicate_field"},
		{"query in another case", "POST", "/v1/graphql", `{"Query":"{__typename}"}`, []string{"Content-Type", mediaJSON}, 400, mediaJSON, "unknown_field"},
		{"variables in another case, beside them", "POST", "/v1/graphql", `{"query":"{__typename}","variables":{},"Variables":{}}`, []string{"Content-Type", mediaJSON}, 400, mediaJSON, "unknown_field"},
		{"no UTF-8", "POST", "/v1/graphql", "{\"query\":\"{__typename}\",\"variables\":{\"a\":\"\xff\"}}", []string{"Content-Type", mediaJSON}, 400, mediaJSON, "invalid_json"},
		{"half a surrogate pair", "POST", "/v1/graphql", `{"query":"{__typename}","variables":{"a":"\ud800"}}`, []string{"Content-Type", mediaJSON}, 400, mediaJSON, "invalid_json"},
		{"query twice by GET", "GET", get + "&query=x", "", nil, 400, mediaJSON, "duplicate_field"},
		{"query in another case by GET", "GET", get + "&Query=x", "", nil, 400, mediaJSON, "unknown_field"},
		{"no UTF-8 by GET", "GET", get + "&operationName=%ff", "", nil, 400, mediaJSON, "invalid_field"},
		{"a variable twice by GET", "GET", get + "&variables=" + url.QueryEscape(`{"n":1,"n":2}`), "", nil, 400, mediaJSON, "duplicate_field"},
	} {
		t.Run(tt.name, func(t *testing.T) { tt.check(t, s) })
	}
}

// HEAD has the same answer as GET, without the body (RFC 9110, section 9.3.2), and holds no memory for it.
func TestHEADIsAnsweredAsGET(t *testing.T) {
	const answerBytes = 1 << 20
	s := newServer(t, graphql.Options{AnswerBytes: answerBytes})
	by := func(query string) string { return "/v1/graphql?query=" + url.QueryEscape(query) }
	for name, target := range map[string]string{
		"small": typenameByGET, "a page": by(pageOf50), "cached": by(cachedPageOf50), "with errors": by("{x}"), "malformed": "/v1/graphql",
		"a mutation": by("mutation{__typename}"),
	} {
		for _, header := range [][]string{{"Accept-Encoding", "identity"}, {"Accept-Encoding", "zstd"}, {"Accept-Encoding", "identity", "Accept", mediaGraphQL}, {"Accept-Encoding", "identity", "Accept", "text/html"}} {
			get := s.do(t, "GET", target, "", header...)
			for range answerBytes / max(1, len(get.body)) / 20 { // together more than the budget
				s.do(t, "HEAD", target, "", header...)
			}
			head := s.do(t, "HEAD", target, "", header...)
			if head.status != get.status || head.body != "" {
				t.Errorf("%s %v: status %d, want %d; body %s", name, header, head.status, get.status, head.body)
			}
			for _, field := range []string{"Content-Length", "Content-Type", "Content-Encoding", "Cache-Control", "ETag", "Vary", "Allow"} {
				if head.header.Get(field) != get.header.Get(field) {
					t.Errorf("%s %v: %s is %q, want %q", name, header, field, head.header.Get(field), get.header.Get(field))
				}
			}
			if tag := get.header.Get("ETag"); tag != "" {
				if known := s.do(t, "HEAD", target, "", append([]string{"If-None-Match", tag}, header...)...); known.status != 304 {
					t.Errorf("%s %v: status %d for a client that has it", name, header, known.status)
				}
			}
		}
	}
}

// A client that writes a large body before it reads sees the 413 instead of a reset. A client that never stops writing
// is cut off.
func TestLargeBodyIsRefusedReadably(t *testing.T) {
	s := newServer(t, graphql.Options{})
	for name, length := range map[string]int{"just too large": 300 << 10, "megabytes": 6 << 20} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(2 * time.Minute))
			fmt.Fprintf(conn, "POST /v1/graphql HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", length)
			if _, err := io.CopyN(conn, zeros{}, int64(length)); err != nil {
				t.Fatalf("write: %v", err)
			}
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatalf("read: %v", err)
			}
			body, err := io.ReadAll(resp.Body)
			if err != nil || resp.StatusCode != 413 || !resp.Close || !strings.Contains(string(body), `"body_too_large"`) {
				t.Errorf("%d %v %s (%v)", resp.StatusCode, resp.Header, body, err)
			}
		})
	}
	t.Run("chunked", func(t *testing.T) {
		resp, err := s.client.Post(s.url+"/v1/graphql", mediaJSON, io.LimitReader(zeros{}, 1<<20))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.StatusCode != 413 {
			t.Errorf("status %d", resp.StatusCode)
		}
	})
}

// A connection stays usable after bodies of any size and form, even if the request is refused for another reason.
func TestConnectionIsReused(t *testing.T) {
	s := newServer(t, graphql.Options{})
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(2 * time.Minute))
	r := bufio.NewReader(conn)
	body := `{"query":"{__typename}"` + strings.Repeat(" ", 200_000) + "}"
	for _, tt := range []struct {
		method, contentType string
		chunked             bool
		status              int
	}{
		{"POST", mediaJSON, false, 200}, {"POST", mediaJSON, true, 200}, {"POST", "text/plain", false, 415}, {"PUT", mediaJSON, true, 405},
		{"POST", mediaJSON, false, 200}, {"GET", "", false, 400}, {"OPTIONS", "", false, 204}, {"POST", mediaJSON, true, 200},
	} {
		req, err := http.NewRequest(tt.method, s.url+"/v1/graphql", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", tt.contentType)
		if tt.chunked {
			req.ContentLength = -1
		}
		if err := req.Write(conn); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(r, req)
		if err != nil {
			t.Fatalf("%+v: %v", tt, err)
		}
		io.Copy(io.Discard, resp.Body)
		if resp.StatusCode != tt.status || resp.Close {
			t.Errorf("%+v: status %d, close %v", tt, resp.StatusCode, resp.Close)
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

func TestHealth(t *testing.T) {
	s := newServer(t, graphql.Options{})
	got := s.do(t, "GET", "/api/rest/health", "")
	const want = `{"v2_health_check":[{"status":"ok","environment":"mainnet","last_update":"2025-06-15T12:00:00Z"},{"status":"ok","environment":"testnet","last_update":"2025-06-15T11:57:00Z"}]}`
	if got.status != 200 || got.body != want {
		t.Errorf("%d %s", got.status, got.body)
	}
}

// The health answer of an upstream may be long.
func TestLongHealthIsCompressed(t *testing.T) {
	s, h := newProxy(t, graphql.Options{})
	checks := `[` + strings.Repeat(`{"status":"ok","environment":"mainnet","last_update":"2025-06-15T12:00:00Z"},`, 30) + `{"status":"ok"}]`
	h.fails(says(200, mediaJSON, `{"data":{"v2_health_check":`+checks+`}}`))
	want := `{"v2_health_check":` + checks + `}`
	for accept, size := range map[string]int{"zstd": len(want) / 4, "gzip": len(want) / 4, "identity": len(want)} {
		got := s.do(t, "GET", "/api/rest/health", "", "Accept-Encoding", accept)
		name := got.header.Get("Content-Encoding")
		if text := decoded(t, name, got.body); got.status != 200 || text != want || len(got.body) > size || (name == "") != (accept == "identity") {
			t.Errorf("%s: %d, %d bytes in %q: %s", accept, got.status, len(got.body), name, text)
		}
	}
}
