package daemon

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/attestd/attestd/appliance/index/indexer"
)

// indexerMetrics collects the indexer's metrics at each scrape.
type indexerMetrics struct {
	indexer                                             *indexer.Indexer
	block, head, failing, events, refused, rpcUp, wrong *prometheus.Desc
}

func newIndexerMetrics(x *indexer.Indexer) *indexerMetrics {
	describe := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, append([]string{"chain"}, labels...), nil)
	}
	return &indexerMetrics{
		indexer: x,
		block:   describe("attestd_indexer_block", "Last block of the chain that was indexed."),
		head: describe("attestd_indexer_head_block",
			"Newest block of the chain that may be indexed; 0 before it is known."),
		failing: describe("attestd_indexer_failing", "1 if the chain cannot be read, 0 otherwise."),
		events:  describe("attestd_indexer_events_total", "Events of the chain that were read."),
		refused: describe("attestd_indexer_refused_total",
			"Events that were left out, because what they refer to is unknown."),
		rpcUp: describe("attestd_indexer_rpc_up", "1 if the RPC's last call succeeded, 0 otherwise.", "rpc"),
		wrong: describe("attestd_indexer_rpc_disagreements_total",
			"Ranges of blocks in which the RPC's events differed from those of other RPCs.", "rpc"),
	}
}

// Describe implements prometheus.Collector.
func (m *indexerMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.block, m.head, m.failing, m.events, m.refused, m.rpcUp, m.wrong} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (m *indexerMetrics) Collect(out chan<- prometheus.Metric) {
	for _, c := range m.indexer.Status() {
		out <- prometheus.MustNewConstMetric(m.block, gauge, float64(c.Indexed), c.ID)
		out <- prometheus.MustNewConstMetric(m.head, gauge, float64(c.Head), c.ID)
		out <- prometheus.MustNewConstMetric(m.failing, gauge, oneIf(c.Error != ""), c.ID)
		out <- prometheus.MustNewConstMetric(m.events, counter, float64(c.Events), c.ID)
		out <- prometheus.MustNewConstMetric(m.refused, counter, float64(c.Refused), c.ID)
		for _, rpc := range c.RPCs {
			out <- prometheus.MustNewConstMetric(m.rpcUp, gauge, oneIf(rpc.Error == ""), c.ID, rpc.URL)
			out <- prometheus.MustNewConstMetric(m.wrong, counter, float64(rpc.Disagreements), c.ID, rpc.URL)
		}
	}
}
