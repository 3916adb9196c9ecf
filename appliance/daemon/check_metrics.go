package daemon

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/attestd/attestd/appliance/health"
)

// checkMetrics collects the worst state of each check at each scrape.
type checkMetrics struct {
	checks func(ctx context.Context) []health.Finding
	state  *prometheus.Desc
}

func newCheckMetrics(checks func(ctx context.Context) []health.Finding) *checkMetrics {
	return &checkMetrics{checks, prometheus.NewDesc("attestd_check_state",
		"State of a health check, as attestd status shows it: 0 ok, 1 warning, 2 failure.", []string{"check"}, nil)}
}

// Describe implements prometheus.Collector.
func (m *checkMetrics) Describe(out chan<- *prometheus.Desc) { out <- m.state }

// Collect implements prometheus.Collector.
func (m *checkMetrics) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), collectTimeout)
	defer cancel()
	all := make(map[string][]health.Finding)
	for _, f := range m.checks(ctx) {
		all[f.Check] = append(all[f.Check], f)
	}
	values := map[health.State]float64{health.OK: 0, health.Warn: 1, health.Fail: 2}
	for check, findings := range all {
		out <- prometheus.MustNewConstMetric(m.state, prometheus.GaugeValue, values[health.Worst(findings)], check)
	}
}
