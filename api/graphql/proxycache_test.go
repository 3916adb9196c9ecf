package graphql_test

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/attestd/attestd/api/graphql"
)

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
		{"as the other type", `{"ttl": 10}`, mediaGraphQL, 0, 1, "max-age=10", "3",
			"application/graphql-response+json; charset=utf-8"},
		{"the default ttl", `{}`, mediaJSON, 0, 2, "max-age=30", "0", "application/json; charset=utf-8"},
		{"another variable", `{"ttl": 10, "n": 99999999999}`, mediaJSON, 0, 3, "max-age=10", "0",
			"application/json; charset=utf-8"},
		{"the variable again", `{"n": 99999999999, "ttl": 10}`, mediaJSON, time.Second, 3, "max-age=10", "1",
			"application/json; charset=utf-8"},
		{"refresh", `{"ttl": 10, "again": true}`, mediaJSON, 0, 4, "max-age=10", "0",
			"application/json; charset=utf-8"},
		{"after the refresh", `{"ttl": 10, "again": false}`, mediaJSON, 0, 4, "max-age=10", "0",
			"application/json; charset=utf-8"},
		{"after the ttl", `{"ttl": 10}`, mediaJSON, 10 * time.Second, 5, "max-age=10", "0",
			"application/json; charset=utf-8"},
		{"not at all", `{"ttl": 0}`, mediaJSON, 0, 6, "no-store", "", "application/json; charset=x"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c.advance(tt.advance)
			got := s.post(t, query, tt.variables, "Accept", tt.accept)
			h.wasAsked(t, tt.asked)
			if got.body != `{"data":{"v2_bonds":[]},"extensions":{"a":1}}` ||
				got.header.Get("Cache-Control") != tt.cacheControl ||
				got.header.Get("Age") != tt.age || got.header.Get("Content-Type") != tt.contentType {
				t.Errorf("%v %s", got.header, got.body)
			}
		})
	}
	if got := s.post(t, `query($ttl: Int) @cached(ttl: $ttl) { v2_bonds { id } }`,
		""); got.header.Get("Cache-Control") != "max-age=60" {
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
	for _, body := range []string{`{"data":null,"errors":[{"message":"no"}]}`,
		`{"data":{},"errors":[{"message":"no"}]}`, `{"data":{},"errors":[]}`, `{"data":null}`, `{}`} {
		s, h := newProxy(t, graphql.Options{})
		h.fails(says(200, mediaJSON, body))
		for range 2 {
			if got := s.post(t, "query @cached "+statsQuery, ""); got.status != 200 || got.body != body ||
				got.header.Get("Cache-Control") != "no-store" {
				t.Errorf("%d %v %s", got.status, got.header, got.body)
			}
		}
		h.wasAsked(t, 2)
	}
}

// The cache key covers all inputs that the upstream's answer depends on.
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
		{"query @cached { a }", []string{mediaJSON, mediaGraphQL}, 2}, // a failure has only one media type
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
				if got := s.post(t, tt.query, "", "Accept",
					tt.accepts[i%len(tt.accepts)]); got.body != `{"data":{"a":1}}` {
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
