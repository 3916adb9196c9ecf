package daemon

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/attestd/attestd/appliance/health"
)

// checkMetrics collects the worst state of each health check.
func checkMetrics(checks func(ctx context.Context) []health.Finding) collector {
	values := map[health.State]float64{health.OK: 0, health.Warn: 1, health.Fail: 2}
	return func(s samples) {
		ctx, cancel := context.WithTimeout(context.Background(), collectTimeout)
		defer cancel()
		all := make(map[string][]health.Finding)
		for _, f := range checks(ctx) {
			all[f.Check] = append(all[f.Check], f)
		}
		for check, findings := range all {
			s.gauge("attestd_check_state",
				"State of a health check, as attestd status shows it: 0 ok, 1 warning, 2 failure.",
				values[health.Worst(findings)], prometheus.Labels{"check": check})
		}
	}
}
