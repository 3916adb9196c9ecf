package graphql_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/api/graphql"
)

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
		"map[Accept:[application/graphql-response+json, */*;q=0.1] Accept-Encoding:[zstd, gzip] Content-Length:[" + fmt.Sprint(len(body)) + "] Content-Type:[application/json; Charset=UTF-8] User-Agent:[attestd] X-Api-Key:[the upstream's]]",
		"map[Accept-Encoding:[zstd, gzip] User-Agent:[attestd] X-Api-Key:[the upstream's]]",
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
			for _, name := range []string{"Content-Type", "Cache-Control", "Vary"} {
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

		// These requests could mean something different to the upstream.
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
		{"too large", says(200, mediaJSON, `{"data":"`+strings.Repeat("x", 5000)+`"}`), "response_too_large", "the upstream's response is too large: request fewer rows (p_limit) or fields", "1"},
		{"too large when decompressed", zipped(`{"data":"` + strings.Repeat("x", 100_000) + `"}`), "response_too_large", "the upstream's response is too large: request fewer rows (p_limit) or fields", "1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			limits := graphql.Limits{MaxResponseBytes: 5000}
			if tt.name == "too slow" {
				limits.Timeout = 200 * time.Millisecond
			}
			s, h := newProxy(t, graphql.Options{Limits: limits})
			h.fails(tt.fault)
			for _, query := range []string{statsQuery, "query @cached " + statsQuery} {
				got := s.post(t, query, "", "Accept", mediaGraphQL)
				if got.status != 503 || got.code(t) != tt.code || got.fail(t).Message != tt.message || got.header.Get("Retry-After") != tt.retry ||
					got.header.Get("Cache-Control") != "no-store" || got.header.Get("Content-Type") != mediaGraphQL+"; charset=utf-8" {
					t.Errorf("%d %v %s", got.status, got.header, got.body)
				}
			}
			h.fails(nil)
			again := func() answer { return s.post(t, "query @cached "+statsQuery, "") }
			if tt.name == "too slow" { // the retry may time out as well
				until(t, "the failure was not kept", func() bool { return again().status == http.StatusOK })
				return
			}
			again().data(t) // the failure was not cached
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
