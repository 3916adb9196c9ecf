package daemon

import (
	"context"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/follower"
)

func newGauge(name, help string, value func() float64) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
}

func newCounter(name, help string, value func() uint64) prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 {
		return float64(value())
	})
}

// measure registers the collectors of the daemon's parts. Package api has the metrics of requests.
func (r *running) measure() {
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "attestd_build_info", Help: "1, with the version.",
		ConstLabels: prometheus.Labels{"version": r.options.Version},
	})
	build.Set(1)
	if r.tower != nil {
		r.registry.MustRegister(newChainMetrics(r.tower.Watchtower))
	}
	r.reads.measure()
	if r.store.Database != nil {
		r.registry.MustRegister(newClusterMetrics(r.store.Database))
	}
	r.registry.MustRegister(newHSMMetrics(r.signer))
	r.registry.MustRegister(newWitnessMetrics(r.witnesses.Status))
	r.registry.MustRegister(
		build,
		newCounter("attestd_log_dropped_total", "Log lines that were dropped because the reader of the log was too slow.",
			func() uint64 {
				if r.options.LogDropped == nil {
					return 0
				}
				return r.options.LogDropped()
			}),
		newGauge("attestd_journal_records", "Records in the journal: attestations and events.", func() float64 {
			return float64(r.records())
		}),
		newGauge("attestd_journal_lost",
			"1 if the journal lacks published records, so that attestd does not attest; 0 otherwise.",
			func() float64 { return oneIf(r.store.Guard.Loss() != nil) }),
		newGauge("attestd_journal_mark_records",
			"Records covered by the high-water mark, the highest checkpoint that this appliance has published.",
			func() float64 { return float64(r.store.Guard.Mark().Tree.N) }),
		newGauge("attestd_paused", "1 if an operator has paused attesting, 0 otherwise.", func() float64 {
			return oneIf(r.store.Stop.State().Paused != nil)
		}),
		newCounter("attestd_second_beneficiaries_total",
			"Attestations of an unspendable address for a second beneficiary, which the policy warns about.",
			r.seconds.Load),
		newGauge("attestd_halted", "1 if the watchtower has halted attesting, 0 otherwise.", func() float64 {
			return oneIf(r.store.Stop.State().Halted != nil)
		}),
		newGauge("attestd_journal_ahead_seconds",
			"Seconds by which the newest attestation is ahead of the clock, after the clock was set back; 0 otherwise.",
			func() float64 { return r.store.Ahead().Seconds() }),
		newGauge("attestd_approvals_waiting",
			"Requests that wait for the approval of people; NaN if the journal cannot be read.", r.waitingApprovals),
		newGauge("attestd_hsm_waiting", "Attestations that wait for the HSM.", func() float64 {
			return float64(r.attestor.Waiting())
		}),
	)
}

// replicaMetrics collects the metrics of the replica and its follower at each scrape.
type replicaMetrics struct {
	index            index.Index
	rows, unverified *prometheus.Desc

	follower  *follower.Follower // nil if nothing is followed
	following []followerMetric
}

// followerMetric is a metric from a follower's status.
type followerMetric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(follower.Status) float64
}

func newReplicaMetrics(idx index.Index, f *follower.Follower) *replicaMetrics {
	describe := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	m := &replicaMetrics{
		index: idx, follower: f,
		rows:       describe("attestd_replica_rows", "Rows of the replica.", "kind"),
		unverified: describe("attestd_replica_unverified", "Rows that failed verification and are quarantined."),
	}
	if f == nil {
		return m
	}
	add := func(kind prometheus.ValueType, name, help string, value func(follower.Status) float64) {
		m.following = append(m.following, followerMetric{describe(name, help), kind, value})
	}
	add(gauge, "attestd_replica_lag_seconds",
		"Seconds by which the replica may be out of date; NaN before the backfill is complete.", lagSeconds)
	add(gauge, "attestd_replica_lag_rows", "Packets and transfers of the upstream that the replica lacks.",
		func(s follower.Status) float64 { return float64(s.LagRows) })
	add(gauge, "attestd_replica_unlisted_rows",
		"Rows that the upstream counts but that a complete search has not found.",
		func(s follower.Status) float64 { return float64(s.UnlistedRows) })
	add(gauge, "attestd_replica_unfinished", "Packets in transit, which the follower looks up until they complete.",
		func(s follower.Status) float64 { return float64(s.Unfinished) })
	add(gauge, "attestd_replica_backfilled", "1 once all rows of the upstream have been read, 0 before.",
		func(s follower.Status) float64 { return oneIf(!s.Backfilled.IsZero()) })
	add(gauge, "attestd_replica_follower_failing", "1 if requests to the upstream fail, 0 otherwise.",
		func(s follower.Status) float64 { return oneIf(s.Failing) })
	add(gauge, "attestd_replica_newest_timestamp_seconds",
		"Unix time at which the replica's newest packet was sent; NaN without packets.",
		func(s follower.Status) float64 { return unixSeconds(s.Newest) })
	add(gauge, "attestd_replica_oldest_timestamp_seconds",
		"Unix time at which the replica's oldest packet was sent: the backfill has reached this time.",
		func(s follower.Status) float64 { return unixSeconds(s.Oldest) })
	add(gauge, "attestd_replica_last_error_timestamp_seconds",
		"Unix time of the follower's last failure; NaN if it has never failed.",
		func(s follower.Status) float64 { return unixSeconds(s.LastErrorAt) })
	add(gauge, "attestd_replica_waiting",
		"Quarantined rows that wait for a check against their chain, with graphql.verify.",
		func(s follower.Status) float64 { return float64(s.Waiting) })
	add(gauge, "attestd_replica_chain_failing",
		"1 if packets cannot be checked against their chain (graphql.verify), 0 otherwise.",
		func(s follower.Status) float64 { return oneIf(s.ChainError != "") })
	add(counter, "attestd_replica_removed_total",
		"Rows removed by the follower because the upstream no longer has them.",
		func(s follower.Status) float64 { return float64(s.Removed) })
	add(counter, "attestd_replica_written_total", "Rows written by the follower: new ones and changed ones.",
		func(s follower.Status) float64 { return float64(s.Written) })
	add(counter, "attestd_follower_requests_total", "Requests of the follower to the upstream.",
		func(s follower.Status) float64 { return float64(s.Requests) })
	add(counter, "attestd_follower_failures_total", "Requests of the follower that failed.",
		func(s follower.Status) float64 { return float64(s.Failures) })
	return m
}

func lagSeconds(s follower.Status) float64 {
	if s.LagSeconds == nil {
		return math.NaN()
	}
	return *s.LagSeconds
}

func unixSeconds(t time.Time) float64 {
	if t.IsZero() {
		return math.NaN()
	}
	return float64(t.UnixMilli()) / 1000
}

// Describe implements prometheus.Collector.
func (m *replicaMetrics) Describe(out chan<- *prometheus.Desc) {
	out <- m.rows
	out <- m.unverified
	for _, f := range m.following {
		out <- f.desc
	}
}

// collectTimeout bounds how long Prometheus waits for the replica.
const collectTimeout = 5 * time.Second

// Collect implements prometheus.Collector. A replica that cannot be read has no figures.
func (m *replicaMetrics) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), collectTimeout)
	defer cancel()
	if held, err := index.StatusOf(ctx, m.index); err == nil {
		for kind, n := range held.Rows {
			out <- prometheus.MustNewConstMetric(m.rows, prometheus.GaugeValue, float64(n), kind)
		}
		unverified := held.Unverified
		if m.follower != nil {
			unverified -= min(unverified, m.follower.Status().Waiting)
		}
		out <- prometheus.MustNewConstMetric(m.unverified, prometheus.GaugeValue, float64(unverified))
	}
	if m.follower == nil {
		return
	}
	status := m.follower.Status()
	for _, f := range m.following {
		out <- prometheus.MustNewConstMetric(f.desc, f.kind, f.value(status))
	}
}

// ifKnown returns NaN for nil.
func ifKnown(yes *bool) float64 {
	if yes == nil {
		return math.NaN()
	}
	return oneIf(*yes)
}

func oneIf(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
