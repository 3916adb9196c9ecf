package follower_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/vektah/gqlparser/v2"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/validator/rules"

	"github.com/attestd/attestd/api/graphql"
	"github.com/attestd/attestd/api/graphql/graphqltest"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/dataset"
	"github.com/attestd/attestd/appliance/index/follower"
	"github.com/attestd/attestd/store/replica"
)

var now = time.Date(2026, 5, 20, 12, 0, 0, 0, time.UTC)

// server is an endpoint over a replica of generated rows, behind a real socket.
type server struct {
	url     string
	client  *http.Client
	replica *replica.Store

	mu      sync.Mutex
	queries []string // received so far
}

func newServer(t testing.TB, transfers int, o graphql.Options) *server {
	t.Helper()
	opened, err := replica.Open(filepath.Join(t.TempDir(), "replica.db"), replica.Options{Now: func() time.Time {
		return now
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { opened.Close() })
	s := &server{replica: opened, client: &http.Client{Transport: &http.Transport{}}}
	err = dataset.Generate(t.Context(), dataset.GenerateOptions{Transfers: transfers, Seed: 1, Now: now},
		func(rows []index.Row) error {
			_, err := opened.Write(t.Context(), index.Batch{Rows: rows})
			return err
		})
	if err != nil {
		t.Fatal(err)
	}
	o.Index = opened
	endpoint := graphqltest.New(t, o)
	app := fiber.New(fiber.Config{DisableStartupMessage: true, StreamRequestBody: true})
	app.All("/v1/graphql", endpoint.Handle)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go app.Listener(listener)
	t.Cleanup(func() {
		s.client.CloseIdleConnections() // Shutdown waits for them
		app.ShutdownWithTimeout(time.Second)
	})
	s.url = "http://" + listener.Addr().String() + "/v1/graphql"
	return s
}

// Query implements follower.Upstream.
func (s *server) Query(ctx context.Context, query string, variables map[string]any) (json.RawMessage, error) {
	s.mu.Lock()
	s.queries = append(s.queries, query)
	s.mu.Unlock()
	body, err := json.Marshal(map[string]any{"query": query, "variables": variables})
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := s.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	var answered struct {
		Data   json.RawMessage
		Errors []follower.ResponseError
	}
	if err := json.NewDecoder(response.Body).Decode(&answered); err != nil {
		return nil, err
	}
	if len(answered.Errors) > 0 {
		return nil, &follower.QueryError{Errors: answered.Errors}
	}
	return answered.Data, nil
}

func (s *server) write(t testing.TB, values ...any) {
	t.Helper()
	var rows []index.Row
	for _, value := range values {
		row, err := index.NewRow(value)
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, row)
	}
	if _, err := s.replica.Write(t.Context(), index.Batch{Rows: rows}); err != nil {
		t.Fatal(err)
	}
}

// rows returns the replica's rows, oldest first.
func (s *server) rows(t testing.TB, of *index.Type) (rows []index.Row) {
	t.Helper()
	err := s.replica.View(t.Context(), func(snapshot index.Snapshot) error {
		return snapshot.Each(t.Context(), of, func(row index.Row) error {
			rows = append(rows, row.Clone())
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// reader returns a reader after Discover.
func reader(t testing.TB, upstream follower.Upstream) *follower.Reader {
	t.Helper()
	r := follower.NewReader(upstream)
	if err := r.Discover(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r
}

// another is an upstream with a different schema. It validates queries against that schema and answers introspection
// from it; the server answers the rest.
type another struct {
	*server
	schema *ast.Schema
}

// altered returns the server with parts of its schema removed. Each name is type.field.
func altered(t testing.TB, s *server, without ...string) another {
	t.Helper()
	schema := gqlparser.MustLoadSchema(&ast.Source{Input: graphql.Schema})
	for _, name := range without {
		typeName, field, _ := strings.Cut(name, ".")
		def := schema.Types[typeName]
		if def == nil || def.Fields.ForName(field) == nil {
			t.Fatalf("there is no %s to leave out", name)
		}
		var left ast.FieldList
		for _, f := range def.Fields {
			if f.Name != field {
				left = append(left, f)
			}
		}
		def.Fields = left
	}
	return another{s, schema}
}

// Query implements follower.Upstream.
func (a another) Query(ctx context.Context, query string, variables map[string]any) (json.RawMessage, error) {
	if _, errs := gqlparser.LoadQueryWithRules(a.schema, query, rules.NewDefaultRules()); len(errs) > 0 {
		return nil, &follower.QueryError{Errors: []follower.ResponseError{{Message: errs.Error()}}}
	}
	if !strings.Contains(query, "__schema") {
		return a.server.Query(ctx, query, variables)
	}
	var types []any
	for _, def := range a.schema.Types {
		member := "fields"
		if def.Kind == ast.InputObject {
			member = "inputFields"
		}
		fields := []any{}
		for _, f := range def.Fields {
			args := []any{}
			for _, arg := range f.Arguments {
				args = append(args, map[string]any{"name": arg.Name, "type": a.reference(arg.Type)})
			}
			fields = append(fields, map[string]any{"name": f.Name, "type": a.reference(f.Type), "args": args})
		}
		types = append(types, map[string]any{"name": def.Name, member: fields})
	}
	return json.Marshal(
		map[string]any{"__schema": map[string]any{"queryType": map[string]any{"name": a.schema.Query.Name},
			"types": types}})
}

func (a another) reference(t *ast.Type) map[string]any {
	switch {
	case t.NonNull:
		nullable := *t
		nullable.NonNull = false
		return map[string]any{"kind": "NON_NULL", "name": nil, "ofType": a.reference(&nullable)}
	case t.Elem != nil:
		return map[string]any{"kind": "LIST", "name": nil, "ofType": a.reference(t.Elem)}
	}
	return map[string]any{"kind": string(a.schema.Types[t.NamedType].Kind), "name": t.NamedType, "ofType": nil}
}

// canned is an upstream that answers introspection as the server does, and every other query with the same text.
type canned struct {
	*server
	data string
}

// Query implements follower.Upstream.
func (c canned) Query(ctx context.Context, query string, variables map[string]any) (json.RawMessage, error) {
	if strings.Contains(query, "__schema") {
		return c.server.Query(ctx, query, variables)
	}
	return json.RawMessage(c.data), nil
}

// same fails unless two lists of rows are equal byte by byte.
func same(t testing.TB, got, want []index.Row) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%d rows, want %d", len(got), len(want))
		return
	}
	for i := range got {
		if got[i].Type() != want[i].Type() || !bytes.Equal(got[i].Bytes(), want[i].Bytes()) {
			t.Errorf("row %d:\n%s\nwant\n%s", i, got[i].AppendLine(nil), want[i].AppendLine(nil))
			return
		}
	}
}

// without returns rows with fields removed.
func without(t testing.TB, rows []index.Row, names ...string) (left []index.Row) {
	t.Helper()
	for _, row := range rows {
		var members map[string]json.RawMessage
		if err := json.Unmarshal(row.AppendObject(nil), &members); err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			delete(members, name)
		}
		object, err := json.Marshal(members)
		if err != nil {
			t.Fatal(err)
		}
		row, err := index.ParseRow(row.Type(), object)
		if err != nil {
			t.Fatal(fmt.Errorf("%s: %w", object, err))
		}
		left = append(left, row)
	}
	return left
}
