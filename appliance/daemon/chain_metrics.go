package daemon

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/attestd/attestd/appliance/chain"
)

// chainMetrics collects the watchtower's metrics.
func chainMetrics(w *chain.Watchtower) collector {
	return func(s samples) {
		f := w.Metrics()
		s.counter("attestd_chain_unknown_redemptions_total",
			"Redemptions that are not in the journal: the attestor's key signs outside this appliance. "+
				"Includes redemptions known before the start.", uint64(f.Unknown), nil)
		s.counter("attestd_chain_disagreements_total",
			"Redemptions about which the RPCs of a contract disagreed.", uint64(f.Disagreements), nil)
		s.gauge("attestd_chain_unproven_redemptions",
			"Redemptions that this journal lacks, and about which too few members of the quorum answer.",
			float64(f.Unproven), nil)
		for _, c := range f.Contracts {
			contract := prometheus.Labels{"contract": c.Name}
			s.gauge("attestd_chain_block", "Highest block that most RPCs of the contract have been read to.",
				float64(c.Block), contract)
			s.gauge("attestd_chain_block_timestamp_seconds",
				"Unix time of that block; NaN before the first block was read.", unixSeconds(c.BlockTime), contract)
			s.gauge("attestd_chain_signer_matches",
				"1 if the contract accepts this appliance's signatures, 0 if it has another attestor, NaN if unknown.",
				ifKnown(c.SignerMatches), contract)
			for _, rpc := range c.RPCs {
				s.gauge("attestd_chain_rpc_up", "1 if the RPC can be read, 0 if reading fails.", oneIf(!rpc.Failing),
					with(contract, "rpc", rpc.URL))
			}
		}
	}
}
