package main

import (
	"compress/gzip"
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/daemontest"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"

	common "go.opentelemetry.io/proto/otlp/common/v1"

	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// received is a span that a collector received.
type received struct {
	*trace.Span
	service string
}

// newCollector receives spans over OTLP/HTTP in protobuf.
func newCollector(t *testing.T) (url string, spans <-chan received) {
	t.Helper()
	got := make(chan received, 1000)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body io.Reader = r.Body
		if r.Header.Get("Content-Encoding") == "gzip" {
			unpacked, err := gzip.NewReader(r.Body)
			if err != nil {
				t.Error(err)
				return
			}
			body = unpacked
		}
		raw, err := io.ReadAll(body)
		var export collector.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(raw, &export)
		}
		if err != nil || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/x-protobuf" {
			t.Errorf("%s %s: %v", r.URL.Path, r.Header, err)
		}
		for _, resource := range export.GetResourceSpans() {
			for _, scope := range resource.GetScopeSpans() {
				for _, span := range scope.GetSpans() {
					got <- received{span, attributeOf(resource.GetResource().GetAttributes(), "service.name")}
				}
			}
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	t.Cleanup(server.Close)
	return server.URL, got
}

func attributeOf(all []*common.KeyValue, name string) string {
	for _, a := range all {
		if a.GetKey() == name {
			return a.GetValue().GetStringValue()
		}
	}
	return ""
}

// spansOf waits for count spans, and returns them by name.
func spansOf(t *testing.T, spans <-chan received, count int) map[string]received {
	t.Helper()
	all := make(map[string]received)
	for range count {
		select {
		case s := <-spans:
			all[s.GetName()] = s
		case <-time.After(daemontest.Patience):
			t.Fatalf("only %d spans came: %v", len(all), all)
		}
	}
	return all
}

const (
	clientsTrace = "4bf92f3577b34da6a3ce929d0e0e4736"
	clientsSpan  = "00f067aa0ba902b7"
	attestSpan   = "POST /functions/v1/attest"
)

// interrupted stops the daemon, and expects exit status 0.
func stopsCleanly(t *testing.T, d *daemontest.Daemon) {
	t.Helper()
	d.Signal(t, os.Interrupt)
	if err := d.Cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, d.Log())
	}
}

func attestTraced(t *testing.T, d *daemontest.Daemon) (status int) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, d.URL+"/functions/v1/attest",
		strings.NewReader(`{"unspendableAddress":"`+devUnspendable+`","beneficiary":"`+devBeneficiary+`"}`))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"Content-Type": "application/json", "X-Api-Key": d.Token,
		"Traceparent": "00-" + clientsTrace + "-" + clientsSpan + "-01"} {
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

// An attestation is a trace within the client's trace: the wait for the HSM, the HSM, and the commit.
func TestAnAttestationIsATrace(t *testing.T) {
	t.Parallel()
	url, spans := newCollector(t)
	d := daemontest.New(t)
	d.Configure("ATTESTD_TRACING_ENDPOINT="+url, "OTEL_BSP_SCHEDULE_DELAY=50",
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1")
	d.Start(t)
	defer func() { d.Kill(t) }()
	if status := attestTraced(t, d); status != 200 {
		t.Fatalf("status %d", status)
	}
	all := spansOf(t, spans, 4)
	root := all[attestSpan]
	if hex.EncodeToString(root.GetTraceId()) != clientsTrace ||
		hex.EncodeToString(root.GetParentSpanId()) != clientsSpan || root.service != "attestd" {
		t.Errorf("the request's span is %v of %s", root.Span, root.service)
	}
	end := root.GetStartTimeUnixNano()
	for _, part := range []string{"queue", "HSM", "commit"} {
		s, found := all[part]
		if !found || string(s.GetParentSpanId()) != string(root.GetSpanId()) ||
			string(s.GetTraceId()) != string(root.GetTraceId()) {
			t.Fatalf("%s: %v, of %v", part, s.Span, all)
		}
		if s.GetStartTimeUnixNano() < end || s.GetEndTimeUnixNano() > root.GetEndTimeUnixNano() {
			t.Errorf("%s does not come after the part before it, in the request's time", part)
		}
		end = s.GetEndTimeUnixNano()
	}
	for _, s := range all {
		if text := strings.ToLower(s.String()); strings.Contains(text, strings.ToLower(devBeneficiary[2:])) ||
			strings.Contains(text, strings.ToLower(devUnspendable[2:])) || strings.Contains(text, d.Token) {
			t.Errorf("it tells a secret: %s", text)
		}
	}
	d.Run(t, "pause", "--reason", "test")
	if status := attestTraced(t, d); status != 503 {
		t.Errorf("status %d while paused", status)
	}
	refused := spansOf(t, spans, 1)[attestSpan]
	if refused.GetStatus().GetCode() != trace.Status_STATUS_CODE_ERROR ||
		attributeOf(refused.GetAttributes(), "error.type") != "paused" {
		t.Errorf("a refused one: %v", refused.Span)
	}
}

// OpenTelemetry's environment variable can name the collector. The remaining spans are sent when the daemon ends.
func TestTheEnvironmentNamesACollector(t *testing.T) {
	t.Parallel()
	url, spans := newCollector(t)
	d := daemontest.New(t)
	d.Configure("OTEL_EXPORTER_OTLP_ENDPOINT="+url, "OTEL_SERVICE_NAME=attestd-test", "OTEL_BSP_SCHEDULE_DELAY=3600000")
	d.Start(t)
	if status := attestTraced(t, d); status != 200 {
		t.Errorf("status %d", status)
	}
	stopsCleanly(t, d)
	if s := spansOf(t, spans, 4)[attestSpan]; s.service != "attestd-test" {
		t.Errorf("%v of %s", s.Span, s.service)
	}
}

// A collector that is down or hangs does not delay attestations. The log reports it once.
func TestADeadCollectorDoesNoHarm(t *testing.T) {
	t.Parallel()
	hanging, err := net.Listen("tcp", "127.0.0.1:0") // never accepts
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { hanging.Close() })
	d, other := daemontest.New(t), daemontest.New(t)
	d.Configure("ATTESTD_TRACING_ENDPOINT=http://127.0.0.1:1")
	other.Configure("ATTESTD_TRACING_ENDPOINT=http://" + hanging.Addr().String())
	for _, d := range []*daemontest.Daemon{d, other} {
		d.Configure("OTEL_BSP_SCHEDULE_DELAY=20", "OTEL_BSP_MAX_QUEUE_SIZE=8", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE=4",
			"OTEL_EXPORTER_OTLP_TIMEOUT=50", "OTEL_BSP_EXPORT_TIMEOUT=100")
		d.Start(t)
		for range 50 { // 200 spans, far more than the queue holds
			if status := attestTraced(t, d); status != 200 {
				t.Fatalf("status %d", status)
			}
		}
		stopsCleanly(t, d)
		if log := string(d.Log()); strings.Count(log, "the collector fails, spans are dropped") != 1 {
			t.Errorf("the log is:\n%s", log)
		}
	}
}
