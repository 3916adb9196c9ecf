package upstream

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/attestd/attestd/appliance/index/follower"
)

// Values of the label "use".
const (
	useQuery   = "query"
	useForward = "forward"
)

// Values of the label "outcome".
const (
	outcomeOK          = "ok"
	outcomeTooLarge    = "too_large"
	outcomeCanceled    = "canceled"
	outcomeLimited     = "limited"
	outcomeRefused     = "refused"
	outcomeUnavailable = "unavailable"
)

// metrics counts and times requests.
type metrics struct {
	requests  *prometheus.CounterVec
	durations *prometheus.HistogramVec
}

// newMetrics creates the counters with 0 for every label value, so that an alert sees the first event.
func newMetrics(registry prometheus.Registerer) (metrics, error) {
	m := metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "attestd_upstream_requests_total", Help: "Requests to the upstream, by kind (query: the " +
				"follower's; forward: clients') and outcome.",
		}, []string{"use", "outcome"}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "attestd_upstream_request_duration_seconds", Help: "Time of a request to the upstream, including " +
				"its complete answer.",
			Buckets: []float64{.001, .005, .025, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"use"}),
	}
	for _, use := range []string{useQuery, useForward} {
		m.durations.WithLabelValues(use)
		for _, outcome := range []string{outcomeOK, outcomeTooLarge, outcomeCanceled, outcomeLimited, outcomeRefused,
			outcomeUnavailable} {
			m.requests.WithLabelValues(use, outcome)
		}
	}
	if registry == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.requests, m.durations} {
		if err := registry.Register(c); err != nil {
			return m, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}

func (m metrics) observe(use string, status int, err error, took time.Duration) {
	m.requests.WithLabelValues(use, outcome(status, err)).Inc()
	m.durations.WithLabelValues(use).Observe(took.Seconds())
}

// outcome returns the value of the label "outcome".
func outcome(status int, err error) string {
	_, isRefusal := errors.AsType[*follower.QueryError](err)
	switch {
	case errors.Is(err, ErrTooLarge):
		return outcomeTooLarge
	case errors.Is(err, context.Canceled):
		return outcomeCanceled
	case status == http.StatusTooManyRequests:
		return outcomeLimited
	case isRefusal, err == nil && status/100 == 4:
		return outcomeRefused
	case err != nil, status >= 500:
		return outcomeUnavailable
	}
	return outcomeOK
}
