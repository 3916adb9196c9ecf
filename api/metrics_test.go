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
