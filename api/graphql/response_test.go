package graphql_test

import (
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/api/graphql"
)

func TestReplicaTellsItsLagOnRequest(t *testing.T) {
	lag, known := 1234*time.Millisecond+567*time.Microsecond, true
	s := newServer(t, graphql.Options{Lag: func() (time.Duration, bool) { return lag, known }})
	ask := func(query, extensions string) string {
		t.Helper()
		body := strings.TrimSuffix(postBody(query, ""), "}") + `,"extensions":` + extensions + "}"
		return s.do(t, "POST", "/v1/graphql", body, "Content-Type", mediaJSON).body
	}
	const plain = `{"data":{"__typename":"Query"}}`
	const told = `{"data":{"__typename":"Query"},"extensions":{"replica":{"lag_seconds":1.235}}}`
	for extensions, want := range map[string]string{
		`{"replica": true}`: told, `{"x":{},"replica":true}`: told,
		`{}`: plain, `null`: plain, `{"replica": false}`: plain, `{"replica": "true"}`: plain, `{"replica": {}}`: plain,
	} {
		if got := ask("{__typename}", extensions); got != want {
			t.Errorf("%s: %s", extensions, got)
		}
	}
	if got := s.do(t, "GET", "/v1/graphql?query={__typename}&extensions="+url.QueryEscape(`{"replica":true}`),
		"").body; got != told {
		t.Errorf("by GET: %s", got)
	}
	if got := ask("{v2_transfers(args: {p_limit: 1}, where: {}) { status }}", `{"replica":true}`); !strings.Contains(
		got, `"extensions":{"replica":{"lag_seconds":1.235},"warnings":[{"code":"where_ignored"`) {
		t.Errorf("with a warning: %s", got)
	}
	for range 2 {
		if got := ask("query @cached {__typename}", `{}`); got != plain {
			t.Errorf("cached, not asked for: %s", got)
		}
		if got := ask("query @cached {__typename}", `{"replica":true}`); got != told {
			t.Errorf("cached: %s", got)
		}
	}
	known = false
	const unknown = `{"data":{"__typename":"Query"},"extensions":{"replica":{"lag_seconds":null}}}`
	if got := ask("{__typename}", `{"replica":true}`); got != unknown {
		t.Errorf("unknown: %s", got)
	}
	s = newServer(t, graphql.Options{})
	if got := ask("{__typename}", `{"replica":true}`); got != unknown {
		t.Errorf("not followed: %s", got)
	}
}

func TestEndpointNeedsASource(t *testing.T) {
	if _, err := graphql.New(graphql.Options{}); err == nil {
		t.Error("an endpoint without index and upstream")
	}
}

// The endpoint has no defaults of its own: only the settings define them.
func TestEndpointHasNoDefaultsOfItsOwn(t *testing.T) {
	limits := reflect.TypeFor[graphql.Limits]()
	want := []string{"AnswerBytes", "CacheBytes"}
	for i := range limits.NumField() {
		want = append(want, limits.Field(i).Name)
	}
	_, err := graphql.New(graphql.Options{Index: openReplica(t)})
	for _, name := range want {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s may be left out: %v", name, err)
		}
	}
}
