package api_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/attestd/attestd/api"
)

// An alert on the increase of a counter sees its first event only if the counter was 0 before.
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
		"attestd_http_requests_total 500 /readyz", "attestd_http_requests_total 404 unmatched",
		"attestd_http_requests_total 400 unreadable",
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

// startMetrics serves a new registry's metrics until the test ends, and returns the address.
func startMetrics(t *testing.T) string {
	t.Helper()
	m := api.NewMetrics(prometheus.NewRegistry())
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- m.Serve(ln) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = m.Shutdown(ctx) // cuts off silent connections
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return ln.Addr().String()
}

func TestAnswersOfTheMetricsAreTakenForWhatTheySay(t *testing.T) {
	t.Parallel()
	address := startMetrics(t)
	for path, status := range map[string]int{"/metrics": 200, "/": 404} {
		got, err := http.Get("http://" + address + path)
		if err != nil {
			t.Fatal(err)
		}
		got.Body.Close()
		if got.StatusCode != status || got.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %d, %v", path, got.StatusCode, got.Header)
		}
	}
}

// A client above the limit is answered as soon as another disconnects.
func TestConnectionsOfTheMetricsAreBounded(t *testing.T) {
	t.Parallel()
	address := startMetrics(t)
	var open []*metricsClient
	for range api.MetricsConnections {
		c := dialMetrics(t, address)
		if err := c.ask(); err != nil { // the server has accepted it
			t.Fatal(err)
		}
		open = append(open, c)
	}
	waiting := dialMetrics(t, address)
	answered := make(chan error, 1)
	go func() { answered <- waiting.ask() }()
	if err := open[0].ask(); err != nil {
		t.Errorf("one that is open: %v", err)
	}
	select {
	case err := <-answered:
		t.Errorf("one more than %d was answered: %v", api.MetricsConnections, err)
	default:
	}
	open[0].Close()
	if err := <-answered; err != nil {
		t.Errorf("when another has left: %v", err)
	}
}

// metricsClient sends requests on one connection.
type metricsClient struct {
	net.Conn
	in *bufio.Reader
}

func dialMetrics(t *testing.T, address string) *metricsClient {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return &metricsClient{c, bufio.NewReader(c)}
}

func (c *metricsClient) ask() error {
	if _, err := io.WriteString(c, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		return err
	}
	answer, err := http.ReadResponse(c.in, nil)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	_, err = io.Copy(io.Discard, answer.Body)
	return err
}
