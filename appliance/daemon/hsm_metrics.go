package daemon

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/attestd/attestd/hsm"
)

// hsmMetrics collects the metrics of each configured attestor key and token at each scrape. The label key has the name
// of the attestor key. A single key without a name has no such label.
type hsmMetrics struct {
	signers *signers
	ofKeys  []metric[hsm.Usage]
	ofToken []metric[hsm.Standing]
}

// metric is a metric of a key or of a token.
type metric[T any] struct {
	kind       prometheus.ValueType
	name, help string
	value      func(T) float64
}

const (
	gauge   = prometheus.GaugeValue
	counter = prometheus.CounterValue
)

func newHSMMetrics(s *signers) *hsmMetrics {
	return &hsmMetrics{s, []metric[hsm.Usage]{
		{gauge, "attestd_hsm_ready",
			"1 if no fault of the HSM is known, 0 otherwise; a call that exceeds hsm.call_timeout is a fault.",
			func(u hsm.Usage) float64 { return oneIf(u.Ready) }},
		{gauge, "attestd_hsm_sessions", "PKCS#11 sessions of the pool.", func(u hsm.Usage) float64 {
			return float64(u.Sessions)
		}},
		{gauge, "attestd_hsm_sessions_most",
			"Maximum number of PKCS#11 sessions: hsm.sessions, or if that is 0 the token's maximum, but at most 128.",
			func(u hsm.Usage) float64 { return float64(u.MostSessions) }},
		{gauge, "attestd_hsm_sessions_in_use", "PKCS#11 sessions inside a call.", func(u hsm.Usage) float64 {
			return float64(u.InUse)
		}},
		{counter, "attestd_hsm_signatures_total", "Signatures made and verified.", func(u hsm.Usage) float64 {
			return float64(u.Signatures)
		}},
		{counter, "attestd_hsm_wrong_signatures_total",
			"Signatures that did not verify with the key and were withheld.",
			func(u hsm.Usage) float64 { return float64(u.WrongSignatures) }},
		{counter, "attestd_hsm_repairs_total", "Repairs of the connection to the HSM, including new sessions.",
			func(u hsm.Usage) float64 {
				return float64(u.Repairs)
			}},
		{counter, "attestd_hsm_worker_restarts_total",
			"Restarts of the worker, the process that loads the HSM's library.",
			func(u hsm.Usage) float64 { return float64(u.Restarts) }},
	}, []metric[hsm.Standing]{
		{gauge, "attestd_hsm_token_ready", "1 if the token can sign, 0 otherwise.", func(s hsm.Standing) float64 {
			return oneIf(s.Ready)
		}},
		{gauge, "attestd_hsm_token_signing", "1 for the token that signs first, 0 for the others.",
			func(s hsm.Standing) float64 {
				return oneIf(s.State == hsm.TokenSigns)
			}},
		{counter, "attestd_hsm_token_signatures_total",
			"Signatures made by the token and verified, including test signatures.",
			func(s hsm.Standing) float64 { return float64(s.Signatures) }},
		{counter, "attestd_hsm_token_wrong_signatures_total",
			"Signatures of the token that did not verify with the key and were withheld.",
			func(s hsm.Standing) float64 { return float64(s.WrongSignatures) }},
		{counter, "attestd_hsm_token_handed_over_total",
			"Signatures handed over to another token because this one took too long.",
			func(s hsm.Standing) float64 { return float64(s.HandedOver) }},
		{counter, "attestd_hsm_token_worker_restarts_total", "Restarts of the token's worker.",
			func(s hsm.Standing) float64 { return float64(s.Restarts) }},
	}}
}

// Describe implements prometheus.Collector. Which labels there are depends on the keys, so that nothing is described
// before.
func (m *hsmMetrics) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (m *hsmMetrics) Collect(out chan<- prometheus.Metric) {
	for _, k := range m.signers.states() {
		labels := prometheus.Labels{}
		if k.Name != "" {
			labels["key"] = k.Name
			out <- prometheus.MustNewConstMetric(
				prometheus.NewDesc("attestd_attestor_key",
					"1 for each attestor key, with its name, state and address; default is 1 for the key that signs for API keys without a binding.",
					[]string{"state", "address", "default"}, labels), gauge, 1, string(k.State), k.Address,
				strconv.Itoa(
					int(oneIf(k.standard))))
		}
		var usage hsm.Usage // zero for a key that is not open
		if k.tokens != nil {
			usage = k.tokens.Usage()
		}
		for _, f := range m.ofKeys {
			out <- prometheus.MustNewConstMetric(prometheus.NewDesc(f.name, f.help, nil, labels), f.kind,
				f.value(usage))
		}
		for _, s := range k.standings() {
			for _, f := range m.ofToken {
				desc := prometheus.NewDesc(f.name, f.help, []string{"position", "token"}, labels)
				out <- prometheus.MustNewConstMetric(desc, f.kind, f.value(s), strconv.Itoa(s.Position), s.Name)
			}
		}
	}
}
