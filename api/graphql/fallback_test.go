package graphql_test

import (
	"net/http"
	"testing"

	"github.com/attestd/attestd/api/graphql"
)

func TestProxyHealth(t *testing.T) {
	s, h := newProxy(t, graphql.Options{})
	want := h.direct.do(t, "GET", "/api/rest/health", "")
	if got := s.do(t, "GET", "/api/rest/health", ""); got.status != 200 || got.body != want.body || got.header.Get(
		"Cache-Control") != "no-store" || got.header.Get("Content-Type") != want.header.Get("Content-Type") {
		t.Errorf("%d %v %s\nwant %s", got.status, got.header, got.body, want.body)
	}
	if asked := h.requests()[0]; asked.body != `{"query":"{ v2_health_check { status environment last_update } }"}` {
		t.Errorf("asked %+v", asked)
	}
	for _, fault := range []http.HandlerFunc{cuts, says(200, mediaJSON, `{"data":null,"errors":[{"message":"no"}]}`),
		says(200, mediaJSON, `{"data":{}}`), says(200, mediaJSON, `{"data":{"v2_health_check":null}}`)} {
		h.fails(fault)
		if got := s.do(t, "GET", "/api/rest/health", ""); got.status != 503 || got.code(t) != "UPSTREAM_UNAVAILABLE" ||
			got.header.Get("Retry-After") != "1" {
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
		{"with a fragment", `{ ...F } fragment F on Query { v2_transfers(args: {p_limit: 1}) { status } }`, "", false,
			""},
		{"an unknown root field", `{ v2_bonds { id } }`, "", true, ""},
		{"a known and an unknown root field", `{ v2_stats_count { name } v2_bonds { id } }`, "", true, ""},
		{"an unknown field of a row", `{ v2_transfers(args: {p_limit: 1}) { status } v2_packets { status new_field } }`,
			"", true, ""},
		{"an unknown argument", `{ v2_transfers(args: {p_new: 1}) { status } }`, "", true, ""},
		{"an unknown type", `query($x: new_type) { v2_transfers(where: $x) { status } }`, `{"x": {}}`, true, ""},
		{"an unknown directive", `query @new { v2_stats_count { name } }`, "", true, ""},
		{"fields that conflict", `{ a: v2_transfers { status } a: v2_packets { status } }`, "", true, ""},
		{"no GraphQL", `{ v2_bonds { id }`, "", false, "parse_failed"},
		{"too much", `{ v2_bonds {` + repeat(51, "a%d:b ") + `} }`, "", false, "too_many_aliases"},
		{"a mutation", `mutation { v2_bonds { id } }`, "", false, "operation_unsupported"},
		{"a variable's value", `query($n: Int!) { v2_transfers(args: {p_limit: $n}) { status } }`, `{"n": "x"}`, false,
			"invalid_variable"},
		{"an argument's value", `{ v2_transfers(args: {p_limit: 0}) { status } }`, "", false, "invalid_field"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for range 2 { // the second request uses the cached document
				asked, views := len(h.requests()), index.views.Load()
				got := s.post(t, tt.query, tt.variables)
				switch read := index.views.Load() > views; {
				case tt.code != "":
					if got.code(t) != tt.code || len(h.requests()) != asked {
						t.Errorf("%s", got.body)
					}
				case tt.forwarded:
					if got.body != bonds || read || len(h.requests()) != asked+1 ||
						h.requests()[asked].body != postBody(tt.query, tt.variables) {
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
}

func TestFallbackWithoutTheUpstream(t *testing.T) {
	h := newHosted(t)
	s := newServer(t, h.options(graphql.Options{}))
	h.fails(cuts)
	if got := s.post(t, `{ v2_stats_count { name } v2_bonds { id } }`, ""); got.status != 503 ||
		got.code(t) != "UPSTREAM_UNAVAILABLE" {
		t.Errorf("%d %s", got.status, got.body)
	}
	s.post(t, statsQuery, "").data(t)
	if got := s.do(t, "GET", "/api/rest/health", ""); got.status != 200 {
		t.Errorf("health of the replica: %s", got.body)
	}
}
