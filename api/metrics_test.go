package api_test

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/attestd/attestd/api"
)

// An alert on the increase of a counter sees its first event only where the counter was 0 before.
func TestCountersExistBeforeTheirFirstEvent(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	families, err := r.registry.Gather()
	r.must(err)
	got := make(map[string]bool)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			got[family.GetName()+" "+strings.Join(labels, " ")] = true
			if c := m.GetCounter(); strings.HasPrefix(family.GetName(), "attestd_") && c != nil && c.GetValue() != 0 {
				t.Errorf("%s %v is %v before any request", family.GetName(), labels, c.GetValue())
			}
		}
	}
	want := []string{
		"attestd_rate_limited_total key", "attestd_rate_limited_total address",
		"attestd_http_requests_total 200 " + attestPath, "attestd_http_requests_total 503 " + attestPath,
		"attestd_http_requests_total 500 /readyz", "attestd_http_requests_total 404 unmatched", "attestd_http_requests_total 400 unreadable",
		"attestd_http_request_duration_seconds " + attestPath,
	}
	for code := range documentedCodes(t) {
		want = append(want, "attestd_problems_total "+string(code))
	}
	for _, w := range want {
		if !got[w] {
			t.Errorf("there is no %s", w)
		}
	}
}

func TestMetricsCount(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for range 3 {
		r.attest("Idempotency-Key", "m")
	}
	r.do("POST", attestPath, good)
	r.do("GET", "/nowhere/"+uuid.NewString(), "")
	m := api.NewMetrics(r.registry)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	r.must(err)
	served := make(chan error, 1)
	go func() { served <- m.Serve(ln) }()
	a, err := r.try(http.DefaultClient, "GET", "http://"+ln.Addr().String()+"/metrics", nil)
	r.must(err)
	for _, line := range []string{
		`attestd_attestations_total 1`,
		`attestd_attestations_replayed_total 2`,
		`attestd_http_requests_total{code="200",route="/functions/v1/attest"} 3`,
		`attestd_http_requests_total{code="401",route="/functions/v1/attest"} 1`,
		`attestd_http_requests_total{code="404",route="unmatched"} 1`,
		`attestd_problems_total{code="missing_api_key"} 1`,
		`attestd_problems_total{code="not_found"} 1`,
		`attestd_http_request_duration_seconds_count{route="/functions/v1/attest"} 4`,
		`attestd_http_requests_in_flight 0`,
		`# HELP go_goroutines Number of goroutines that currently exist.`,
		`# TYPE process_open_fds gauge`,
	} {
		if !strings.Contains(string(a.body), "\n"+line+"\n") {
			t.Errorf("no line %s", line)
		}
	}
	r.must(m.Shutdown(context.Background()))
	r.must(<-served)
}
