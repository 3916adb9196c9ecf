package console

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/health"
	"github.com/attestd/attestd/appliance/index/follower"
	"github.com/attestd/attestd/appliance/text"
)

// replicaPage shows how far the replica has followed its upstream, and the rows that it does not serve.
func replicaPage() page {
	return page{name: "replica", path: "/replica", title: "Replica", least: Viewer, routes: []route{
		{"GET /replica", Viewer, showReplica},
		{"GET /replica/live", Viewer, followReplica},
	}}
}

const (
	replicaInterval = 5 * time.Second // between two updates of a live page
	leastLag        = 10.0            // seconds; a smaller lag does not fill the graph
)

// replicaView is the current state of the replica.
type replicaView struct {
	None       string // why the daemon has no replica; empty if it has one
	Indexed    bool   // the daemon reads chains into it
	Status     wire.ReplicaStatus
	Kinds      []kindRows
	Lag        lagView
	Unverified wire.Unverified
}

// kindRows is the number of rows of a kind. Upstream is zero if unknown.
type kindRows struct {
	Kind           string
	Here, Upstream uint64
}

// Percent returns the share of the upstream's rows that the replica has.
func (k kindRows) Percent() uint64 {
	if k.Upstream == 0 {
		return 100
	}
	return min(100, 100*k.Here/k.Upstream)
}

// lagView is the graph of the lag.
type lagView struct {
	Path  string
	Gaps  string // areas in which the lag is unknown
	Most  string // highest value
	Scale string // value at the upper edge
}

// State rates the follower's state as good, warn or bad, as status and the other pages do.
func (r replicaView) State() string { return finding{health.Follower(*r.Status.Follower)}.Looks() }

// Does describes the follower's activity.
func (r replicaView) Does() string { return text.Follower(*r.Status.Follower) }

// Behind describes how far the replica may be out of date.
func (r replicaView) Behind() string { return text.Lag(*r.Status.Follower) }

func showReplica(w http.ResponseWriter, v *visit) error {
	data, err := v.replica(v.Context())
	if err != nil {
		return err
	}
	return v.show(w, data)
}

// replica fetches all data of the page.
func (v *visit) replica(ctx context.Context) (data replicaView, err error) {
	data.Status, err = v.Admin.ReplicaStatus(ctx)
	if client.CodeOf(err) == appliance.CodeReplicaUnavailable {
		return replicaView{None: err.Error()}, nil
	}
	if err != nil {
		return data, err
	}
	data.Kinds, data.Indexed = kindsOf(data.Status), v.console.opts.Indexer
	if data.Unverified, err = v.Admin.UnverifiedRows(ctx, 0); err != nil || data.Status.Follower == nil {
		return data, err
	}
	lag, err := v.Admin.ReplicaLag(ctx)
	data.Lag = drawLag(lag)
	return data, err
}

// kindsOf lists the kinds with a known upstream count first.
func kindsOf(s wire.ReplicaStatus) (kinds []kindRows) {
	followed := map[string]follower.Count{}
	if s.Follower != nil {
		followed = s.Follower.Rows
	}
	for kind, count := range followed {
		kinds = append(kinds, kindRows{kind, count.Here, count.Upstream})
	}
	for kind, here := range s.Rows {
		if _, told := followed[kind]; !told {
			kinds = append(kinds, kindRows{Kind: kind, Here: here})
		}
	}
	slices.SortFunc(kinds, func(a, b kindRows) int {
		if known := (a.Upstream > 0); known != (b.Upstream > 0) {
			return map[bool]int{true: -1, false: 1}[known]
		}
		return cmp.Compare(a.Kind, b.Kind)
	})
	return kinds
}

// hour is the width of the lag graph, in steps.
const hour = 360

// seconds formats a duration on a graph: with one decimal below ten seconds.
func seconds(s float64) string {
	if s < 10 {
		return fmt.Sprintf("%.1f s", s)
	}
	return text.Count(int64(math.Round(s))) + " s"
}

func drawLag(lag wire.ReplicaLag) lagView {
	l := drawLine(lag.LagSeconds, hour, leastLag)
	return lagView{l.path, l.gaps, seconds(l.most), seconds(l.scale)}
}

// followReplica streams the live part of the page whenever it changes.
func followReplica(w http.ResponseWriter, v *visit) error {
	return v.followLive(w, replicaInterval, func(ctx context.Context) (any, error) { return v.replica(ctx) })
}
