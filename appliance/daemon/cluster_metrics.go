package daemon

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/store/postgres"
)

// membersTimeout bounds how long Prometheus waits for the database.
const membersTimeout = time.Second

// clusterMetrics compares the members of the cluster. It sends nothing if the database does not answer.
func clusterMetrics(database *postgres.Store) collector {
	return func(s samples) {
		ctx, cancel := context.WithTimeout(context.Background(), membersTimeout)
		defer cancel()
		members, err := database.Members(ctx)
		if err != nil {
			return
		}
		differ := make(map[string]bool)
		for _, d := range differences(members) {
			differ[d.Of] = true
		}
		for _, of := range []string{wire.DifferentPolicy, wire.DifferentScreeningList, wire.DifferentScheme,
			wire.DifferentSigner, wire.SharedName} {
			s.gauge("attestd_cluster_members_differ",
				"1 if members differ in a setting that must be the same on all, 0 otherwise.", oneIf(differ[of]),
				prometheus.Labels{"of": of})
		}
	}
}
