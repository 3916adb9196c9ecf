package api

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"
)

// metrics are the metrics of the public server. All methods of a nil *metrics are no-ops.
type metrics struct {
	attestations, replays prometheus.Counter
	requests              *prometheus.CounterVec
	durations             *prometheus.HistogramVec
	succeeded             map[string]succeeded // by route
	problems              *prometheus.CounterVec
	limited               *prometheus.CounterVec
	tightened             *prometheus.CounterVec
	inFlight              prometheus.Gauge
	open                  prometheus.Gauge
	refused               *prometheus.CounterVec
	acceptFailures        prometheus.Counter
	eventsSent            prometheus.Counter
	streamsCut            prometheus.Counter
}

// newMetrics registers the counters with 0 for every label value. The increase of a counter that first appears with its
// first event is 0, so an alert would miss that event.
func newMetrics(r *prometheus.Registry, routes []Route) *metrics {
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	m := &metrics{
		attestations: counter("attestd_attestations_total", "Attestations signed, recorded and answered."),
		replays: counter("attestd_attestations_replayed_total", "Attestations returned again for a repeated "+
			"Idempotency-Key."),
		requests: counters("attestd_http_requests_total", "HTTP requests by route and status.", "route", "code"),
		problems: counters("attestd_problems_total", "Problems answered, by stable code.", "code"),
		limited: counters("attestd_rate_limited_total", "Requests refused by rate limit: per API key, or per "+
			"client address without an API key.", "by"),
		tightened: counters("attestd_clients_tightened_total", "Clients with a rate reduced because of their "+
			"errors: API keys, or client addresses without an API key.", "by"),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "attestd_http_request_duration_seconds",
			Help:    "Time from a request's headers to its answer, by route.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"route"}),
		inFlight: gauge("attestd_http_requests_in_flight", "HTTP requests in progress."),
		open:     gauge("attestd_connections", "Open connections of the API."),
		refused: counters("attestd_connections_refused_total", "Connections refused by server.max_connections "+
			"(all), by server.max_connections_per_address (address) or by the limit of an API key (key), and idle "+
			"connections closed for new ones (closed_for_another).", "reason"),
		acceptFailures: counter("attestd_accept_failures_total", "Failures to accept a connection, for example "+
			"because file descriptors ran out."),
		eventsSent: counter("attestd_events_sent_total", "Events written to streams."),
		streamsCut: counter("attestd_event_streams_cut_total", "Streams of events that were cut because the "+
			"client did not read."),
	}
	r.MustRegister(m.attestations, m.replays, m.requests, m.durations, m.problems, m.limited, m.tightened, m.inFlight,
		m.open, m.refused, m.acceptFailures, m.eventsSent, m.streamsCut,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.zero(routes)
	return m
}

// Values of the label "by".
const (
	byKey     = "key"
	byAddress = "address"
)

// Values of the label "route" for requests without a route.
const (
	routeUnmatched  = "unmatched"
	routeUnreadable = "unreadable"
)

// succeeded holds the counters of a route's 200 answers, the most frequent ones. Looking up the counters takes longer
// than counting.
type succeeded struct {
	requests prometheus.Counter
	duration prometheus.Observer
}

func (m *metrics) zero(routes []Route) {
	m.succeeded = make(map[string]succeeded, len(routes))
	m.limited.WithLabelValues(byKey)
	m.limited.WithLabelValues(byAddress)
	m.tightened.WithLabelValues(byKey)
	m.tightened.WithLabelValues(byAddress)
	for _, reason := range []string{refusedAll, refusedAddress, closedForKey, closedForAnother} {
		m.refused.WithLabelValues(reason)
	}
	names := []string{routeUnmatched, routeUnreadable}
	for _, r := range routes {
		names = append(names, r.Path)
		m.succeeded[r.Path] = succeeded{m.requests.WithLabelValues(r.Path, strconv.Itoa(http.StatusOK)),
			m.durations.WithLabelValues(r.Path)}
	}
	for _, route := range names {
		m.durations.WithLabelValues(route)
	}
	for code, status := range statuses {
		if code == CodeReloadRefused {
			continue // the admin socket has no metrics
		}
		m.problems.WithLabelValues(string(code))
		for _, route := range names {
			m.requests.WithLabelValues(route, strconv.Itoa(status))
		}
	}
}

func (m *metrics) begin() {
	if m != nil {
		m.inFlight.Inc()
	}
}

func (m *metrics) end(x *exchange, status int, took time.Duration) {
	if m == nil {
		return
	}
	m.inFlight.Dec()
	if s, known := m.succeeded[x.route]; known && status == http.StatusOK {
		s.requests.Inc()
		s.duration.Observe(took.Seconds())
		return
	}
	m.requests.WithLabelValues(x.route, strconv.Itoa(status)).Inc()
	m.durations.WithLabelValues(x.route).Observe(took.Seconds())
	if x.code != "" {
		m.problems.WithLabelValues(string(x.code)).Inc()
	}
}

// metricsConnections is the maximum number of open connections of the metrics server. The next connection waits until
// one ends. Silent connections end within IdleTimeout.
const metricsConnections = 64

// Metrics serves GET /metrics in the Prometheus text format, without authentication. It should listen only on loopback
// or a monitoring network.
type Metrics struct{ server *http.Server }

// NewMetrics returns a server of the metrics in the registry.
func NewMetrics(r *prometheus.Registry) *Metrics {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics",
		promhttp.HandlerFor(r, promhttp.HandlerOpts{Registry: r, MaxRequestsInFlight: 4, Timeout: 10 * time.Second}))
	return &Metrics{&http.Server{
		Handler:           unsniffed(mux),
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout:    time.Minute,
		MaxHeaderBytes: maxHeaderBytes,
	}}
}

// unsniffed adds X-Content-Type-Options: nosniff to every answer, as on the public server.
func unsniffed(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		h.ServeHTTP(w, r)
	})
}

// Serve serves on the listener until Shutdown and then returns nil.
func (m *Metrics) Serve(ln net.Listener) error {
	if err := m.server.Serve(netutil.LimitListener(ln, metricsConnections)); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Shutdown waits for requests to finish. If ctx ends first, it returns the error of ctx.
func (m *Metrics) Shutdown(ctx context.Context) error { return m.server.Shutdown(ctx) }

// measure registers the gauges of the current rate factor and of the open streams.
func (m *metrics) measure(r *prometheus.Registry, factor, streams func() float64) {
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "attestd_event_streams", Help: "Open streams of events.",
	}, streams), prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "attestd_rate_factor", Help: "Share of the default and anonymous rates that is allowed now: 1, or less " +
			"under overload.",
	}, factor))
}

// tighten counts a client whose rates were tightened.
func (m *metrics) tighten(by string) {
	if m != nil {
		m.tightened.WithLabelValues(by).Inc()
	}
}

// limit counts a request that was refused for its rate.
func (m *metrics) limit(x *exchange) {
	switch {
	case m == nil:
	case x.key.ID != "":
		m.limited.WithLabelValues(byKey).Inc()
	default:
		m.limited.WithLabelValues(byAddress).Inc()
	}
}

func (m *metrics) attested(replayed bool) {
	switch {
	case m == nil:
	case replayed:
		m.replays.Inc()
	default:
		m.attestations.Inc()
	}
}

func (m *metrics) streamed(events int) {
	if m != nil {
		m.eventsSent.Add(float64(events))
	}
}

func (m *metrics) streamCut() {
	if m != nil {
		m.streamsCut.Inc()
	}
}

func (m *metrics) connections(open int) {
	if m != nil {
		m.open.Set(float64(open))
	}
}

func (m *metrics) connectionRefused(reason string) {
	if m != nil {
		m.refused.WithLabelValues(reason).Inc()
	}
}

func (m *metrics) acceptFailed() {
	if m != nil {
		m.acceptFailures.Inc()
	}
}
