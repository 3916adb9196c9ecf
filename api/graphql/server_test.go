package graphql_test

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/api/graphql"
	"github.com/attestd/attestd/api/graphql/graphqltest"
)

// server is an endpoint behind a real socket.
type server struct {
	url    string
	client *http.Client
	e      *graphql.Endpoint
}

func newEndpoint(t testing.TB, o graphql.Options) *graphql.Endpoint {
	t.Helper()
	if o.Index == nil {
		o.Index = openReplica(t)
	}
	e := graphqltest.New(t, o)
	return e
}

func newOracle(t testing.TB, e *graphql.Endpoint) *graphql.Oracle {
	t.Helper()
	oracle, err := graphql.NewOracle(e, openReplica(t))
	if err != nil {
		t.Fatal(err)
	}
	return oracle
}

// newServer serves an index, by default the one of openReplica.
func newServer(t testing.TB, o graphql.Options) *server {
	t.Helper()
	if o.Index == nil {
		o.Index = openReplica(t)
	}
	return serve(t, o)
}

func serve(t testing.TB, o graphql.Options) *server {
	t.Helper()
	e := graphqltest.New(t, o)
	app := fiber.New(fiber.Config{DisableStartupMessage: true, StreamRequestBody: true, BodyLimit: 64 << 10})
	app.All("/v1/graphql", e.Handle)
	app.Get("/api/rest/health", e.Health)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go app.Listener(listener)
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(func() {
		client.CloseIdleConnections() // otherwise Shutdown would wait for them
		app.ShutdownWithTimeout(time.Second)
	})
	return &server{url: "http://" + listener.Addr().String(), client: client, e: e}
}

// answer is the answer to an HTTP request.
type answer struct {
	status int
	header http.Header
	body   string
}

func (s *server) do(t testing.TB, method, target, body string, header ...string) answer {
	t.Helper()
	req, err := http.NewRequest(method, s.url+target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := s.client.Do(req)
	return read(t, resp, err)
}

func read(t testing.TB, resp *http.Response, err error) answer {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(body)}
}

// post sends a query like a client. variables are JSON, or "".
func (s *server) post(t testing.TB, query, variables string, header ...string) answer {
	t.Helper()
	return s.do(t, "POST", "/v1/graphql", postBody(query, variables),
		append([]string{"Content-Type", "application/json"}, header...)...)
}

func postBody(query, variables string) string {
	encoded, _ := json.Marshal(query)
	body := `{"query":` + string(encoded)
	if variables != "" {
		body += `,"variables":` + variables
	}
	return body + "}"
}

// data returns the data of an answer without errors.
func (a answer) data(t testing.TB) string {
	t.Helper()
	var r struct {
		Data   json.RawMessage
		Errors json.RawMessage
	}
	if err := json.Unmarshal([]byte(a.body), &r); err != nil || r.Errors != nil {
		t.Fatalf("status %d, body %s (%v)", a.status, a.body, err)
	}
	return string(r.Data)
}

type gqlError struct {
	Message    string
	Path       []any
	Locations  []struct{ Line, Column int }
	Extensions map[string]any
}

// fail returns the first error of an answer.
func (a answer) fail(t testing.TB) gqlError {
	t.Helper()
	var r struct{ Errors []gqlError }
	if err := json.Unmarshal([]byte(a.body), &r); err != nil || len(r.Errors) == 0 {
		t.Fatalf("no error in %s (%v)", a.body, err)
	}
	return r.Errors[0]
}

func (a answer) code(t testing.TB) string {
	t.Helper()
	code, _ := a.fail(t).Extensions["code"].(string)
	return code
}

// raw sends the bytes of a request and reads an answer.
func (s *server) raw(t testing.TB, request string) answer {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(2 * time.Minute))
	io.WriteString(conn, request)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	return read(t, resp, err)
}
