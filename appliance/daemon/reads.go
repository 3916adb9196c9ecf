package daemon

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/api/upstream"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/index/follower"
	"github.com/attestd/attestd/appliance/index/indexer"
	"github.com/attestd/attestd/store/replica"
)

// reads answers GraphQL queries: from a replica that it keeps up to date, from the upstream, or from both.
type reads struct {
	config   *config.Config
	version  string
	registry *prometheus.Registry
	logger   *slog.Logger
	replica  *replica.Kept      // nil if graphql.source is neither replica nor chains
	upstream *upstream.Client   // nil if there is none
	follower *follower.Follower // follows upstream into replica; nil if nothing is followed
	indexer  *indexer.Indexer   // reads chains into replica; nil if graphql.source is not chains
	verifier *indexer.Verifier  // checks packets against indexer.chains
}

// openReads opens the replica, and what fills it. The caller closes the result, also after an error.
func openReads(c *config.Config, version string, registry *prometheus.Registry, logger *slog.Logger) (*reads, error) {
	r := &reads{config: c, version: version, registry: registry, logger: logger}
	if c.HasReplica() {
		r.replica = KeepReplica(c, logger)
	}
	var err error
	if r.verifier, err = OpenVerifier(c, version); err != nil {
		return r, err
	}
	if err := r.openUpstream(); err != nil {
		return r, err
	}
	return r, r.openIndexer()
}

// run keeps the replica up to date until ctx ends or stop is called. stop waits for the end.
func (r *reads) run(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	switch {
	case r.follower != nil:
		r.logger.Info("following the upstream", "upstream", r.config.UpstreamShown(),
			"fallback", r.config.GraphQL.Fallback)
		done.Go(func() { r.keepFollowing(ctx) })
	case r.upstream != nil:
		r.logger.Info("forwarding GraphQL to the upstream", "upstream", r.config.UpstreamShown())
	}
	if r.indexer != nil {
		for _, c := range r.config.Indexer.Chains {
			r.logger.Info("indexer: reading a chain", "chain", c.ID, "rpcs", len(c.RPCs))
		}
		done.Go(func() { _ = r.indexer.Run(ctx) }) // it ends with ctx only
	}
	return func() {
		cancel()
		done.Wait()
	}
}

// ready returns api.Options.ReplicaReady, which is nil if no lag is too large.
func (r *reads) ready() func() error {
	most := r.config.GraphQL.MaxLag
	if most == 0 {
		return nil
	}
	return func() error {
		if r.replica != nil && r.replica.Ready() != nil {
			return r.replica.Ready()
		}
		lag, known := r.follower.Lag()
		switch {
		case !known:
			return appliance.Errorf(appliance.CodeReplicaBehind, "the replica has not caught up with its upstream yet")
		case lag > most:
			return appliance.Errorf(appliance.CodeReplicaBehind,
				"the replica is %s behind its upstream; the limit is %s (graphql.max_lag)", lag.Round(time.Second),
				most)
		}
		return nil
	}
}

// describe sets the parts that the admin socket reports.
func (r *reads) describe(o *api.AdminOptions) {
	o.ReplicaReady = r.ready()
	if r.replica != nil { // a nil *Replica in an Index is not nil
		o.Replica = r.replica
	}
	if r.indexer != nil {
		o.Indexer = r.indexer
	}
	if len(r.config.Indexer.Chains) > 0 {
		o.Verifier = r.verifier
	}
	if r.follower != nil {
		o.Follower, o.Upstream = r.follower, r.upstream
	}
}

// measure registers the collectors of the replica and of the indexer.
func (r *reads) measure() {
	if r.replica != nil {
		r.registry.MustRegister(
			replicaMetrics(r.replica, r.follower),
			newGauge("attestd_replica_available", "1 if the replica can answer reads, 0 otherwise.", func() float64 {
				return oneIf(r.replica.Ready() == nil)
			}),
			newCounter("attestd_replica_set_aside_total",
				"Replicas that were damaged or could not be opened, and were set aside for an empty one.",
				r.replica.SetAsideCount),
		)
	}
	if r.indexer != nil {
		r.registry.MustRegister(indexerMetrics(r.indexer))
	}
}

func (r *reads) close() error {
	if r == nil || r.replica == nil {
		return nil
	}
	return r.replica.Close()
}
