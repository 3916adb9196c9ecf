package daemon

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/attestd/attestd/appliance/index/indexer"
)

// indexerMetrics collects the indexer's metrics.
func indexerMetrics(x *indexer.Indexer) collector {
	return func(s samples) {
		for _, c := range x.Status() {
			of := prometheus.Labels{"chain": c.ID}
			s.gauge("attestd_indexer_block", "Last block of the chain that was indexed.", float64(c.Indexed), of)
			s.gauge("attestd_indexer_head_block",
				"Newest block of the chain that may be indexed; 0 before it is known.", float64(c.Head), of)
			s.gauge("attestd_indexer_failing", "1 if the chain cannot be read, 0 otherwise.", oneIf(c.Error != ""), of)
			s.counter("attestd_indexer_events_total", "Events of the chain that were read.", uint64(c.Events), of)
			s.counter("attestd_indexer_refused_total",
				"Events that were left out, because what they refer to is unknown.", uint64(c.Refused), of)
			s.counter("attestd_indexer_undone_total",
				"Ranges of blocks that were undone after reorganisations of the chain.", uint64(c.Undone), of)
			for _, rpc := range c.RPCs {
				of := with(of, "rpc", rpc.URL)
				s.gauge("attestd_indexer_rpc_up", "1 if the RPC's last call succeeded, 0 otherwise.",
					oneIf(rpc.Error == ""), of)
				s.counter("attestd_indexer_rpc_disagreements_total",
					"Ranges of blocks in which the RPC's events differed from those of other RPCs.",
					uint64(rpc.Disagreements), of)
			}
		}
	}
}
