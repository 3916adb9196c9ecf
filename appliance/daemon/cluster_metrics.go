package daemon

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/store/postgres"
)

// clusterMetrics compares the members of the cluster when Prometheus asks.
type clusterMetrics struct {
	database *postgres.Store
	differ   *prometheus.Desc
}

// membersTimeout bounds how long Prometheus waits for the database.
const membersTimeout = time.Second

func newClusterMetrics(database *postgres.Store) *clusterMetrics {
	return &clusterMetrics{database, prometheus.NewDesc("attestd_cluster_members_differ",
		"1 if members differ in a setting that must be the same on all, 0 otherwise.", []string{"of"}, nil)}
}

// Describe implements prometheus.Collector.
func (m *clusterMetrics) Describe(out chan<- *prometheus.Desc) { out <- m.differ }

// Collect implements prometheus.Collector. It sends nothing if the database does not answer.
func (m *clusterMetrics) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), membersTimeout)
	defer cancel()
	members, err := m.database.Members(ctx)
	if err != nil {
		return
	}
	differ := make(map[string]bool)
	for _, d := range differences(members) {
		differ[d.Of] = true
	}
	for _, of := range []string{wire.DifferentPolicy, wire.DifferentScreeningList, wire.DifferentScheme,
		wire.DifferentSigner, wire.SharedName} {
		out <- prometheus.MustNewConstMetric(m.differ, prometheus.GaugeValue, oneIf(differ[of]), of)
	}
}
