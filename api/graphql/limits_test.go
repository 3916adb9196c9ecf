package graphql_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/api/graphql"
	"github.com/attestd/attestd/appliance/index"
)

// Requests that are cheap for a client must be cheap for the server. Each of these is refused before the index is read,
// within a bound on allocations, and leaves no entry in the document cache.
func TestAbuseIsCheap(t *testing.T) {
	index := &countingIndex{Index: openReplica(t)}
	e := newEndpoint(t, graphql.Options{Index: index})
	for _, tt := range []struct{ name, query, code string }{
		{"10,000 aliases of v2_transfers", "{" + repeat(10_000, "a%d:v2_transfers{status}") + "}", "query_too_large"},
		{"aliases within the size", "{" + repeat(1000, "a%d:v2_transfers{status}") + "}", "too_many_tokens"},
		{"aliases within the tokens", "{" + repeat(800, "a%d:v2_transfers{data}") + "}", "too_many_root_fields"},
		{"aliases inside", "{v2_transfers{" + repeat(1000, "a%d:status ") + "}}", "too_many_aliases"},
		{"10,000 repeats of a root field", "{" + strings.Repeat("__typename ", 10_000) + "}", "query_too_large"},
		{"10,000 repeats of a field", "{v2_transfers{" + strings.Repeat("data ", 10_000) + "}}", "too_many_tokens"},
		{"root fields", "{" + strings.Repeat("v2_stats_count{name}", 21) + "}", "too_many_root_fields"},
		{"deep nesting", strings.Repeat("{a", 2400), "too_many_tokens_or_parse"},
		{"nesting within the parser's bound", strings.Repeat("{a", 900) + strings.Repeat("}", 900), "too_deep"},
		{"deep lists", "{v2_transfers(where:" + strings.Repeat("[", 2000) + strings.Repeat("]", 2000) + "){status}}",
			"parse_failed"},
		{"deep introspection", "{__schema{types{" + strings.Repeat("fields{type{", 8) + "name" +
			strings.Repeat("}}", 8) + "}}}", "validation_failed"},
		{"introspection deeper still", "{__type(name:\"Query\"){" + strings.Repeat("ofType{", 30) + "name" +
			strings.Repeat("}", 30) + "}}", "too_deep"},
		{"fragment cycle", "{...A} fragment A on Query{...B} fragment B on Query{...A}", "validation_failed"},
		{"fragment of itself", "{...A} fragment A on Query{__typename ...A}", "validation_failed"},
		{"exponential fragments", "{...F0}" + repeat(30, "fragment F%d on Query{...F%[2]d ...F%[2]d}") +
			"fragment F30 on Query{__typename}", "too_many_tokens"},
		{"a chain of fragments", "{...F0}" + repeat(500, "fragment F%d on Query{...F%[2]d}") +
			"fragment F500 on Query{__typename}", "too_many_tokens"},
		{"thousands of unknown fields", "{v2_transfers{" + repeat(2000, "statu%d ") + "}}", "validation_failed"},
		{"a megabyte", "{" + strings.Repeat(" ", 1<<20) + "__typename}", "query_too_large"},
		{"a megabyte of comment", "#" + strings.Repeat("x", 1<<20), "query_too_large"},
		{"rows times fields", "{v2_transfers" + everything(loadSchema(t), "v2_transfer_type") +
			"v2_packets{traces{chain" + everything(loadSchema(t), "v2_chain_type") + "} " +
			"source_chain" + everything(loadSchema(t), "v2_chain_type") +
			"} more:v2_transfers(args:{p_network:\"mainnet\"})" + everything(loadSchema(t), "v2_transfer_type") + "}",
			"too_costly"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got string
			allocated := allocatedBy(func() { got = e.Execute(tt.query, "") })
			code := answer{body: got}.code(t)
			if code != tt.code &&
				(tt.code != "too_many_tokens_or_parse" || code != "too_many_tokens" && code != "parse_failed") {
				t.Errorf("code %s, want %s: %.300s", code, tt.code, got)
			}
			if allocated > 8<<20 {
				t.Errorf("allocated %d bytes", allocated)
			}
		})
	}
	if index.views != 0 {
		t.Errorf("the index was read %d times", index.views)
	}
	if n := e.Prepared(); n > 1 { // a document that is only too costly is cached
		t.Errorf("%d documents are kept", n)
	}
}

// Repeating a field within the limits costs linear work: ten times the repeats, about ten times the work.
func TestRepeatedFieldsAreLinear(t *testing.T) {
	e := newEndpoint(t, graphql.Options{})
	cost := func(n int) uint64 {
		query := "{v2_stats_count{" + strings.Repeat("name ", n) + "}}"
		return allocatedBy(func() { answer{body: e.Execute(query, "")}.data(t) })
	}
	few, many := cost(400), cost(4000)
	if many > 15*few {
		t.Errorf("400 repeats allocate %d bytes, 4000 %d", few, many)
	}
}

func repeat(n int, format string) string {
	var b strings.Builder
	for i := range n {
		if strings.Contains(format, "[2]") {
			fmt.Fprintf(&b, format, i, i+1)
		} else {
			fmt.Fprintf(&b, format, i)
		}
	}
	return b.String()
}

func allocatedBy(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// countingIndex counts reads.
type countingIndex struct {
	index.Index
	views int
}

func (i *countingIndex) View(ctx context.Context, read func(index.Snapshot) error) error {
	i.views++
	return i.Index.View(ctx, read)
}

func TestLimitsAreConfigurable(t *testing.T) {
	replica := openReplica(t)
	page := `{ v2_transfers(args: {p_limit: 10}) { a: status b: packet_hash source_chain { rpc_type } } }`
	for _, tt := range []struct {
		code      string
		limits    graphql.Limits
		variables string
	}{
		{"query_too_large", graphql.Limits{MaxQueryBytes: len(page) - 1}, ""},
		{"variables_too_large", graphql.Limits{MaxVariablesBytes: 10}, `{"n": "0123456789"}`},
		{"too_many_tokens", graphql.Limits{MaxTokens: 20}, ""},
		{"too_deep", graphql.Limits{MaxDepth: 2}, ""},
		{"too_many_aliases", graphql.Limits{MaxAliases: 1}, ""},
		{"too_costly", graphql.Limits{MaxCost: 39}, ""},
		{"response_too_large", graphql.Limits{MaxResponseBytes: 500}, ""},
	} {
		t.Run(tt.code, func(t *testing.T) {
			e := newEndpoint(t, graphql.Options{Index: replica, Limits: tt.limits})
			if got := (answer{body: e.Execute(page, tt.variables)}); got.code(t) != tt.code {
				t.Errorf("got %s", got.body)
			}
		})
	}
	t.Run("within", func(t *testing.T) {
		e := newEndpoint(t, graphql.Options{Index: replica, Limits: graphql.Limits{MaxQueryBytes: len(page),
			MaxDepth: 3, MaxAliases: 2, MaxCost: 40, MaxRootFields: 1}})
		answer{body: e.Execute(page, "")}.data(t)
	})
}

// The response is cut while it is written: allocations follow the limit, not the requested size.
func TestLargeResponsesAreCutWhileWritten(t *testing.T) {
	e := newEndpoint(t, graphql.Options{Limits: graphql.Limits{MaxResponseBytes: 20_000}})
	query := "{ v2_packets {" + repeat(50, " a%d: decoded") + " } }"
	e.Execute(query, "") // allocates one-time data
	var got string
	allocated := allocatedBy(func() { got = e.Execute(query, "") })
	if (answer{body: got}).code(t) != "response_too_large" || allocated > 300_000 {
		t.Errorf("allocated %d bytes: %.200s", allocated, got)
	}
}

func TestLargeFiguresAreRefused(t *testing.T) {
	e := newEndpoint(t, graphql.Options{Limits: graphql.Limits{MaxResponseBytes: 200}})
	if got := e.Execute("{ v2_stats_transfers_chain { day_date total_transfers } }",
		""); (answer{body: got}).code(t) != "response_too_large" {
		t.Errorf("got %s", got)
	}
}

func TestTimeout(t *testing.T) {
	s := newServer(t,
		graphql.Options{Index: stuckIndex{openReplica(t)}, Limits: graphql.Limits{Timeout: 20 * time.Millisecond}})
	got := s.post(t, `{ v2_transfers { status } }`, "")
	if got.status != 503 || got.code(t) != "timeout" || got.header.Get("Retry-After") == "" {
		t.Errorf("%d %s", got.status, got.body)
	}
}

// stuckIndex blocks until the context ends.
type stuckIndex struct{ index.Index }

func (i stuckIndex) View(ctx context.Context, _ func(index.Snapshot) error) error {
	<-ctx.Done()
	return ctx.Err()
}
