package daemon

import (
	"maps"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/attestd/attestd/hsm"
)

// hsmMetrics collects the metrics of each configured attestor key and token. The label key has the name of the attestor
// key. A single key without a name has no such label.
func hsmMetrics(signers *signers) collector {
	return func(s samples) {
		for _, k := range signers.states() {
			labels := prometheus.Labels{}
			if k.Name != "" {
				labels["key"] = k.Name
				s.gauge("attestd_attestor_key",
					"1 for each attestor key, with its name, state and address; "+
						"default is 1 for the key that signs for API keys without a binding.", 1,
					with(labels, "state", string(k.State), "address", k.Address,
						"default", strconv.Itoa(int(oneIf(k.standard)))))
			}
			var usage hsm.Usage // zero for a key that is not open
			if k.tokens != nil {
				usage = k.tokens.Usage()
			}
			s.key(usage, labels)
			for _, t := range k.standings() {
				s.token(t, with(labels, "position", strconv.Itoa(t.Position), "token", t.Name))
			}
		}
	}
}

// with returns labels and further pairs of a name and a value.
func with(labels prometheus.Labels, pairs ...string) prometheus.Labels {
	all := maps.Clone(labels)
	for i := 0; i < len(pairs); i += 2 {
		all[pairs[i]] = pairs[i+1]
	}
	return all
}

func (s samples) key(u hsm.Usage, of prometheus.Labels) {
	s.gauge("attestd_hsm_ready",
		"1 if no fault of the HSM is known, 0 otherwise; a call that exceeds hsm.call_timeout is a fault.",
		oneIf(u.Ready), of)
	s.gauge("attestd_hsm_sessions", "PKCS#11 sessions of the pool.", float64(u.Sessions), of)
	s.gauge("attestd_hsm_sessions_most",
		"Maximum number of PKCS#11 sessions: hsm.sessions, or if that is 0 the token's maximum, but at most 128.",
		float64(u.MostSessions), of)
	s.gauge("attestd_hsm_sessions_in_use", "PKCS#11 sessions inside a call.", float64(u.InUse), of)
	s.counter("attestd_hsm_signatures_total", "Signatures made and verified.", uint64(u.Signatures), of)
	s.counter("attestd_hsm_wrong_signatures_total", "Signatures that did not verify with the key and were withheld.",
		uint64(u.WrongSignatures), of)
	s.counter("attestd_hsm_repairs_total", "Repairs of the connection to the HSM, including new sessions.",
		uint64(u.Repairs), of)
	s.counter("attestd_hsm_worker_restarts_total",
		"Restarts of the worker, the process that loads the HSM's library.", uint64(u.Restarts), of)
}

func (s samples) token(t hsm.Standing, of prometheus.Labels) {
	s.gauge("attestd_hsm_token_ready", "1 if the token can sign, 0 otherwise.", oneIf(t.Ready), of)
	s.gauge("attestd_hsm_token_signing", "1 for the token that signs first, 0 for the others.",
		oneIf(t.State == hsm.TokenSigns), of)
	s.counter("attestd_hsm_token_signatures_total",
		"Signatures made by the token and verified, including test signatures.", uint64(t.Signatures), of)
	s.counter("attestd_hsm_token_wrong_signatures_total",
		"Signatures of the token that did not verify with the key and were withheld.", uint64(t.WrongSignatures), of)
	s.counter("attestd_hsm_token_handed_over_total",
		"Signatures handed over to another token because this one took too long.", uint64(t.HandedOver), of)
	s.counter("attestd_hsm_token_worker_restarts_total", "Restarts of the token's worker.", uint64(t.Restarts), of)
}
