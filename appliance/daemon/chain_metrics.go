package daemon

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/attestd/attestd/appliance/chain"
)

// chainMetrics collects the watchtower's metrics at each scrape.
type chainMetrics struct {
	tower                            *chain.Watchtower
	unknown, disagreements, unproven *prometheus.Desc
	block, blockTime, matches, rpcUp *prometheus.Desc
}

func newChainMetrics(w *chain.Watchtower) *chainMetrics {
	describe := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &chainMetrics{
		tower: w,
		unknown: describe("attestd_chain_unknown_redemptions_total",
			"Redemptions that are not in the journal: the attestor's key signs outside this appliance. Includes redemptions known before the start."),
		disagreements: describe("attestd_chain_disagreements_total",
			"Redemptions about which the RPCs of a contract disagreed."),
		unproven: describe("attestd_chain_unproven_redemptions",
			"Redemptions that this journal lacks, and about which too few members of the quorum answer."),
		block: describe("attestd_chain_block",
			"Highest block that most RPCs of the contract have been read to.", "contract"),
		blockTime: describe("attestd_chain_block_timestamp_seconds",
			"Unix time of that block; NaN before the first block was read.", "contract"),
		matches: describe("attestd_chain_signer_matches",
			"1 if the contract accepts this appliance's signatures, 0 if it has another attestor, NaN if unknown.",
			"contract"),
		rpcUp: describe("attestd_chain_rpc_up", "1 if the RPC can be read, 0 if reading fails.",
			"contract", "rpc"),
	}
}

// Describe implements prometheus.Collector.
func (m *chainMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.unknown, m.disagreements, m.unproven, m.block, m.blockTime, m.matches,
		m.rpcUp} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (m *chainMetrics) Collect(out chan<- prometheus.Metric) {
	f := m.tower.Metrics()
	out <- prometheus.MustNewConstMetric(m.unknown, prometheus.CounterValue, float64(f.Unknown))
	out <- prometheus.MustNewConstMetric(m.disagreements, prometheus.CounterValue, float64(f.Disagreements))
	out <- prometheus.MustNewConstMetric(m.unproven, prometheus.GaugeValue, float64(f.Unproven))
	for _, c := range f.Contracts {
		out <- prometheus.MustNewConstMetric(m.block, prometheus.GaugeValue, float64(c.Block), c.Name)
		out <- prometheus.MustNewConstMetric(m.blockTime, prometheus.GaugeValue, unixSeconds(c.BlockTime), c.Name)
		out <- prometheus.MustNewConstMetric(m.matches, prometheus.GaugeValue, ifKnown(c.SignerMatches), c.Name)
		for _, rpc := range c.RPCs {
			out <- prometheus.MustNewConstMetric(m.rpcUp, prometheus.GaugeValue, oneIf(!rpc.Failing), c.Name, rpc.URL)
		}
	}
}
