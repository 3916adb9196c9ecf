package main

import "github.com/prometheus/client_golang/prometheus"

// measure registers what is read from the parts when Prometheus asks. What requests count is in package api.
func (r *running) measure() {
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
	}
	counter := func(name, help string, value func() uint64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(value()) })
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "attestd_build_info", Help: "1, with the version.", ConstLabels: prometheus.Labels{"version": version()},
	})
	build.Set(1)
	hsm := r.signer.Usage
	r.registry.MustRegister(
		build,
		gauge("attestd_journal_records", "Attestations in the journal.", func() float64 { return float64(r.records()) }),
		gauge("attestd_hsm_ready", "1 while no fault of the HSM is known, else 0.", func() float64 {
			if hsm().Ready {
				return 1
			}
			return 0
		}),
		gauge("attestd_hsm_sessions", "PKCS#11 sessions of the pool.", func() float64 { return float64(hsm().Sessions) }),
		gauge("attestd_hsm_sessions_in_use", "PKCS#11 sessions inside a call.", func() float64 { return float64(hsm().InUse) }),
		counter("attestd_hsm_signatures_total", "Signatures made and checked.", func() uint64 { return hsm().Signatures }),
		counter("attestd_hsm_wrong_signatures_total", "Signatures that were not the key's own, and withheld.", func() uint64 { return hsm().WrongSignatures }),
		counter("attestd_hsm_repairs_total", "Repairs of the connection to the HSM, new sessions counted too.", func() uint64 { return hsm().Repairs }),
	)
}
