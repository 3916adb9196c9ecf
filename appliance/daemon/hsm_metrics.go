package daemon

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/attestd/attestd/hsm"
)

// tokenMetrics reads how each configured token stands when Prometheus asks. There are as many as the configuration names.
type tokenMetrics struct {
	standings func() []hsm.Standing
	each      []tokenMetric
}

// tokenMetric is a figure of a token.
type tokenMetric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(hsm.Standing) float64
}

func newTokenMetrics(standings func() []hsm.Standing) *tokenMetrics {
	m := &tokenMetrics{standings: standings}
	add := func(kind prometheus.ValueType, name, help string, value func(hsm.Standing) float64) {
		m.each = append(m.each, tokenMetric{prometheus.NewDesc(name, help, []string{"position", "token"}, nil), kind, value})
	}
	const gauge, counter = prometheus.GaugeValue, prometheus.CounterValue
	add(gauge, "attestd_hsm_token_ready", "1 while the token signs or could, else 0.", func(s hsm.Standing) float64 { return oneIf(s.Ready) })
	add(gauge, "attestd_hsm_token_signing", "1 for the token that is asked first, else 0.",
		func(s hsm.Standing) float64 { return oneIf(s.State == hsm.TokenSigns) })
	add(counter, "attestd_hsm_token_signatures_total", "Signatures of the token, made and checked, trials included.",
		func(s hsm.Standing) float64 { return float64(s.Signatures) })
	add(counter, "attestd_hsm_token_wrong_signatures_total", "Signatures of the token that were not the key's own, and withheld.",
		func(s hsm.Standing) float64 { return float64(s.WrongSignatures) })
	add(counter, "attestd_hsm_token_handed_over_total", "Signatures that another token was asked for, since this one took too long.",
		func(s hsm.Standing) float64 { return float64(s.HandedOver) })
	add(counter, "attestd_hsm_token_worker_restarts_total", "Workers of the token that were started in the place of another.",
		func(s hsm.Standing) float64 { return float64(s.Restarts) })
	return m
}

// Describe implements prometheus.Collector.
func (m *tokenMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, f := range m.each {
		out <- f.desc
	}
}

// Collect implements prometheus.Collector.
func (m *tokenMetrics) Collect(out chan<- prometheus.Metric) {
	for _, s := range m.standings() {
		for _, f := range m.each {
			out <- prometheus.MustNewConstMetric(f.desc, f.kind, f.value(s), strconv.Itoa(s.Position), s.Name)
		}
	}
}
