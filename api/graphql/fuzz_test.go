package graphql_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/attestd/attestd/api/graphql"
	"github.com/attestd/attestd/api/graphql/graphqltest"
	"github.com/attestd/attestd/api/upstream"
)

// FuzzExecute checks that no document and variables crash the endpoint, that every answer is JSON, and that every error
// has a code.
func FuzzExecute(f *testing.F) {
	for _, seed := range [][2]string{
		{pageOf7, ""},
		{standardIntrospection, ""},
		{`query Q($n: Int = 3, $a: [String!]) @cached(ttl: 1, refresh: true) { v2_transfers(args: {p_limit: $n, p_addresses_canonical: $a}) { ...F @skip(if: false) } } fragment F on v2_transfer_type { a: status }`, `{"n": 1.0, "a": "x"}`},
		{`{ v2_tokens(order_by: {rank: asc}, where: {a: [1, 2.5, null, "x", y]}) { wrapping(where: {destination_channel_id: {_eq: 1}}) { index } } }`, `{}`},
		{"{ v2_chains(args: {p_sort_order: \"\"\"\n block \\u0000 \"\"\"}) { __typename } }", `{"a": [[[{}]]]}`},
		{`query($w: v2_chain_features_bool_exp) { v2_chains { features(where: $w) { environment } } }`,
			`{"w": {"environment": null}}`},
	} {
		f.Add(seed[0], seed[1])
	}
	fast := newEndpoint(f, graphql.Options{})
	slow := newOracle(f, fast)
	f.Fuzz(func(t *testing.T, query, variables string) {
		got := fast.Execute(query, variables)
		var r struct{ Errors []gqlError }
		if err := json.Unmarshal([]byte(got), &r); err != nil {
			t.Fatalf("%v: %s", err, got)
		}
		for _, e := range r.Errors {
			if code, _ := e.Extensions["code"].(string); code == "" || code == "internal" {
				t.Errorf("code %q: %s", code, e.Message)
			}
		}
		if want := slow.Execute(query, variables); want != got && len(r.Errors) == 0 {
			t.Errorf("rows:\n%s\ngraph-gophers:\n%s", got, want)
		}
	})
}

// FuzzForward checks the same for an endpoint that only forwards, to an upstream that does not exist.
func FuzzForward(f *testing.F) {
	for _, seed := range [][2]string{
		{statsQuery, ""},
		{`query($t: Int! = 5, $r: X) @cached(refresh: $r, ttl: $t) @cached(ttl: {a: $t}) { a(b: $c) { ...F ... on X @x { b } } } fragment F on Y { c }`, `{"t": 1e1, "r": [1]}`},
		{`query @cached(refresh: [true, $x], refresh: {a: 1}) { a } query B { b }`, `{"a": {"b": 1, "b": 2}}`},
		{`query @cached(ttl: [[99999999999]] other: "x") { a } mutation { b }`, `{`},
	} {
		f.Add(seed[0], seed[1])
	}
	client, err := upstream.New(upstream.Options{URL: "http://127.0.0.1:1", Timeout: 30 * time.Second})
	if err != nil {
		f.Fatal(err)
	}
	e := graphqltest.New(f, graphql.Options{Upstream: client})
	f.Fuzz(func(t *testing.T, query, variables string) {
		got := answer{body: e.Execute(query, variables)}
		if code := got.code(t); code == "" || code == "internal" {
			t.Errorf("code %q: %s", code, got.body)
		}
	})
}
