package graphql_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/attestd/attestd/api/graphql"
)

func TestStaleAnswersWhileTheUpstreamFails(t *testing.T) {
	const query = `query @cached(ttl: 10) { a }`
	rateLimited := says(429, mediaJSON, `{"errors":[{"message":"slow down"}]}`)
	for _, tt := range []struct {
		name    string
		body    string
		age     time.Duration
		fault   http.HandlerFunc
		refresh bool
		want    string // the body; empty means the failure
	}{
		{"500", `{"data":{"a":1}}`, 10 * time.Second, says(500, "", ""), false,
			`{"data":{"a":1},"extensions":{"age":10,"stale":true}}`},
		{"429", `{"data":{"a":1}}`, 10 * time.Second, rateLimited, false,
			`{"data":{"a":1},"extensions":{"age":10,"stale":true}}`},
		{"cut, at the end of the window", `{"data":{"a":1}}`, 69999 * time.Millisecond, cuts, false,
			`{"data":{"a":1},"extensions":{"age":69,"stale":true}}`},
		{"extensions of its own", `{ "extensions" : {"b":{"c":[1]},"stale":"x"}, "data":{"a": "<&>"}}`, time.Minute,
			cuts, false, `{"data":{"a": "<&>"},"extensions":{"age":60,"b":{"c":[1]},"stale":true}}`},
		{"extensions that are no object", `{"extensions":[1],"data":{"a":1}}`, time.Minute, cuts, false,
			`{"data":{"a":1},"extensions":{"age":60,"stale":true}}`},
		{"extensions null", `{"extensions":null,"data":{"a":1}}`, time.Minute, cuts, false,
			`{"data":{"a":1},"extensions":{"age":60,"stale":true}}`},
		{"past the window", `{"data":{"a":1}}`, 70 * time.Second, cuts, false, ""},
		{"a refresh", `{"data":{"a":1}}`, 20 * time.Second, cuts, true, ""},
		{"too large", `{"data":{"a":1}}`, 20 * time.Second, says(200, mediaJSON, strings.Repeat(" ", 6000)), false, ""},
		{"a refusal", `{"data":{"a":1}}`, 20 * time.Second, says(400, mediaJSON, `{"errors":[{"message":"no"}]}`),
			false, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := &clock{}
			s, h := newProxy(t,
				graphql.Options{Now: c.now, StaleIfError: time.Minute, Limits: graphql.Limits{MaxResponseBytes: 5000}})
			h.fails(says(200, mediaJSON, tt.body))
			s.post(t, query, "").data(t)
			c.advance(tt.age)
			h.fails(tt.fault)
			asked := query
			if tt.refresh {
				asked = `query @cached(ttl: 10, refresh: true) { a }`
			}
			got := s.post(t, asked, "", "Accept", mediaGraphQL)
			h.wasAsked(t, 2) // without failures the entry has expired
			if tt.want == "" {
				got.fail(t)
				if got.header.Get("Cache-Status") != "" || got.header.Get("Cache-Control") != "no-store" {
					t.Errorf("%v %s", got.header, got.body)
				}
				return
			}
			if got.status != 200 || got.body != tt.want || got.header.Get(
				"Cache-Status") != "attestd; hit; detail=stale" || got.header.Get("Cache-Control") != "max-age=0" ||
				got.header.Get("Age") != fmt.Sprint(int(tt.age.Seconds())) || got.header.Get("Retry-After") != "" ||
				got.header.Get("Content-Type") != mediaGraphQL+"; charset=utf-8" {
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
	if got := s.post(t, query, ""); got.body != fresh.body || got.header.Get("Cache-Control") != "max-age=10" ||
		got.header.Get("Cache-Status") != "" {
		t.Errorf("within its ttl: %v %s", got.header, got.body)
	}
	c.advance(11 * time.Second)
	for range 3 {
		if got := s.post(t, query, ""); got.status != 200 ||
			got.header.Get("Cache-Status") != "attestd; hit; detail=stale" {
			t.Errorf("%d %v %s", got.status, got.header, got.body)
		}
	}
	h.wasAsked(t, 6)
	if n := gather(t, registry)["attestd_graphql_stale_total"]; n != 3 {
		t.Errorf("%v stale answers were counted", n)
	}
}

// Answers of the upstream are kept longer than their ttl, answers of the replica are not.
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
