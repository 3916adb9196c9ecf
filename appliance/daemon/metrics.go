package daemon

import (
	"context"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/follower"
)

// measure registers the collectors of the daemon's parts. Package api has the metrics of requests.
func (r *running) measure() {
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "attestd_build_info", Help: "1, with the version.",
		ConstLabels: prometheus.Labels{"version": r.options.Version},
	})
	build.Set(1)
	if r.tower != nil {
		r.registry.MustRegister(chainMetrics(r.tower.Watchtower))
	}
	r.reads.measure()
	if r.store.Database != nil {
		r.registry.MustRegister(clusterMetrics(r.store.Database))
	}
	r.registry.MustRegister(hsmMetrics(r.signer))
	r.registry.MustRegister(witnessMetrics(r.witnesses.Status))
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

// collectTimeout bounds how long Prometheus waits for the replica.
const collectTimeout = 5 * time.Second

// replicaMetrics collects the metrics of the replica and of its follower, which is nil if nothing is followed. A replica
// that cannot be read has no figures.
func replicaMetrics(idx index.Index, f *follower.Follower) collector {
	return func(s samples) {
		ctx, cancel := context.WithTimeout(context.Background(), collectTimeout)
		defer cancel()
		var status follower.Status
		if f != nil {
			status = f.Status()
		}
		if held, err := index.StatusOf(ctx, idx); err == nil {
			for kind, n := range held.Rows {
				s.gauge("attestd_replica_rows", "Rows of the replica.", float64(n), prometheus.Labels{"kind": kind})
			}
			s.gauge("attestd_replica_unverified", "Rows that failed verification and are quarantined.",
				float64(held.Unverified-min(held.Unverified, status.Waiting)), nil)
		}
		if f != nil {
			s.follower(status)
		}
	}
}

func (s samples) follower(f follower.Status) {
	s.gauge("attestd_replica_lag_seconds",
		"Seconds by which the replica may be out of date; NaN before the backfill is complete.", lagSeconds(f), nil)
	s.gauge("attestd_replica_lag_rows", "Packets and transfers of the upstream that the replica lacks.",
		float64(f.LagRows), nil)
	s.gauge("attestd_replica_unlisted_rows",
		"Rows that the upstream counts but that a complete search has not found.", float64(f.UnlistedRows), nil)
	s.gauge("attestd_replica_unfinished", "Packets in transit, which the follower looks up until they complete.",
		float64(f.Unfinished), nil)
	s.gauge("attestd_replica_backfilled", "1 once all rows of the upstream have been read, 0 before.",
		oneIf(!f.Backfilled.IsZero()), nil)
	s.gauge("attestd_replica_follower_failing", "1 if requests to the upstream fail, 0 otherwise.",
		oneIf(f.Failing), nil)
	s.gauge("attestd_replica_newest_timestamp_seconds",
		"Unix time at which the replica's newest packet was sent; NaN without packets.", unixSeconds(f.Newest), nil)
	s.gauge("attestd_replica_oldest_timestamp_seconds",
		"Unix time at which the replica's oldest packet was sent: the backfill has reached this time.",
		unixSeconds(f.Oldest), nil)
	s.gauge("attestd_replica_last_error_timestamp_seconds",
		"Unix time of the follower's last failure; NaN if it has never failed.", unixSeconds(f.LastErrorAt), nil)
	s.gauge("attestd_replica_waiting",
		"Quarantined rows that wait for a check against their chain, with graphql.verify.", float64(f.Waiting), nil)
	s.gauge("attestd_replica_chain_failing",
		"1 if packets cannot be checked against their chain (graphql.verify), 0 otherwise.",
		oneIf(f.ChainError != ""), nil)
	s.counter("attestd_replica_removed_total",
		"Rows removed by the follower because the upstream no longer has them.", uint64(f.Removed), nil)
	s.counter("attestd_replica_written_total", "Rows written by the follower: new ones and changed ones.",
		uint64(f.Written), nil)
	s.counter("attestd_follower_requests_total", "Requests of the follower to the upstream.", uint64(f.Requests), nil)
	s.counter("attestd_follower_failures_total", "Requests of the follower that failed.", uint64(f.Failures), nil)
}

func lagSeconds(s follower.Status) float64 {
	if s.LagSeconds == nil {
		return math.NaN()
	}
	return *s.LagSeconds
}
