package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/follower"
	"github.com/attestd/attestd/store/replica"
)

// unreachable is an upstream that cannot be reached.
type unreachable struct{}

func (unreachable) Query(context.Context, string, map[string]any) (json.RawMessage, error) {
	return nil, appliance.Errorf(appliance.CodeUpstreamUnavailable, "the upstream cannot be reached")
}

// newReplicaRig serves the admin socket of a daemon with an empty replica. change may give it a follower.
func newReplicaRig(t *testing.T, change func(*api.AdminOptions)) *adminRig {
	t.Helper()
	o := &adminRig{rig: newRig(t), path: filepath.Join(t.TempDir(), "admin.sock"), served: make(chan error, 1)}
	replica, err := replica.Open(filepath.Join(t.TempDir(), "replica.db"), replica.Options{})
	o.must(err)
	t.Cleanup(func() { o.must(replica.Close()) })
	opts := api.AdminOptions{Attestor: o.attestor, Replica: replica}
	change(&opts)
	o.open(opts)
	return o
}

func TestTheOperatorSeesHowFarTheFollowerIs(t *testing.T) {
	t.Parallel()
	const address = "https://upstream.example/v1/graphql"
	o := newReplicaRig(t, func(opts *api.AdminOptions) {
		opts.Upstream = unreachable{}
		opts.Follower = follower.New(follower.Options{Index: opts.Replica, Upstream: opts.Upstream, Address: address})
	})
	for name, ask := range map[string]func(context.Context) (wire.ReplicaStatus,
		error){"status": o.client.ReplicaStatus, "sync": o.client.SyncReplica} {
		s, err := ask(t.Context())
		if err != nil || s.Schema == 0 || s.Follower == nil || s.Follower.Upstream != address {
			t.Errorf("%s: %+v, %+v, %v", name, s, s.Follower, err)
		}
	}
	if lag, err := o.client.ReplicaLag(t.Context()); err != nil || lag.LagSeconds == nil || lag.StepSeconds != 10 {
		t.Errorf("%+v, %v", lag, err)
	}
	_, err := o.client.VerifyReplica(t.Context(), 10, nil)
	if client.CodeOf(err) != appliance.CodeUpstreamUnavailable {
		t.Errorf("compared with an upstream that is away: %v", err)
	}
}

func TestOnlyAReplicaThatFollowsCanBeSyncedAndVerified(t *testing.T) {
	t.Parallel()
	for setting, change := range map[string]func(*api.AdminOptions){
		"graphql.upstream": func(*api.AdminOptions) {},
		"graphql.source":   func(opts *api.AdminOptions) { opts.Replica = nil },
	} {
		o := newReplicaRig(t, change)
		_, syncErr := o.client.SyncReplica(t.Context())
		_, verifyErr := o.client.VerifyReplica(t.Context(), 0, nil)
		_, lagErr := o.client.ReplicaLag(t.Context())
		for _, err := range []error{syncErr, verifyErr, lagErr} {
			if client.CodeOf(err) != appliance.CodeReplicaUnavailable || !strings.Contains(err.Error(), setting) {
				t.Errorf("%v, which should say %s", err, setting)
			}
		}
	}
}

func TestTheStatusOfAReplicaThatFollowsNothingHasNoFollower(t *testing.T) {
	t.Parallel()
	o := newReplicaRig(t, func(*api.AdminOptions) {})
	if a := o.raw("GET", "/replica", ""); a.status != 200 || strings.Contains(a.String(), "follower") ||
		!strings.Contains(a.String(), `"rows":{`) {
		t.Error(a)
	}
}

func TestTheOperatorSeesWhichRowsAreKeptApartAndWhy(t *testing.T) {
	t.Parallel()
	var into index.Index
	o := newReplicaRig(t, func(opts *api.AdminOptions) { into = opts.Replica })
	apart := make([]index.Unverified, 3)
	for i := range apart {
		row, err := index.ParseLine(
			[]byte(
				fmt.Sprintf(
					`{"kind":"packet","packet_hash":"0x%064x","source_universal_chain_id":"a","destination_universal_chain_id":"b","sort_order":"%d"}`, i+1, i)))
		o.must(err)
		apart[i] = index.Unverified{Row: row, Reason: fmt.Sprintf("the hash is not that of packet %d", i)}
	}
	_, err := into.Write(t.Context(), index.Batch{Unverified: apart})
	o.must(err)
	for limit, want := range map[int]int{0: 3, 2: 2} {
		got, err := o.client.UnverifiedRows(t.Context(), limit)
		if err != nil || len(got.Rows) != want || got.Total != 3 {
			t.Fatalf("at most %d: %+v, %v", limit, got, err)
		}
		if row := got.Rows[1]; row.Kind != "packet" || row.Key != apart[1].Row.Key() || row.Reason != apart[1].Reason ||
			row.Since.IsZero() {
			t.Errorf("%+v", row)
		}
	}
	if a := o.raw("GET", "/replica/unverified?limit=1001", ""); a.status != 400 || a.problem().Field != "limit" {
		t.Error(a)
	}
	none := newReplicaRig(t, func(opts *api.AdminOptions) { opts.Replica = nil })
	if _, err := none.client.UnverifiedRows(t.Context(), 0); client.CodeOf(err) != appliance.CodeReplicaUnavailable {
		t.Error(err)
	}
}

func TestASampleThatIsNoneIsRefused(t *testing.T) {
	t.Parallel()
	o := newReplicaRig(t, func(opts *api.AdminOptions) {
		opts.Upstream, opts.Follower = unreachable{},
			follower.New(follower.Options{Index: opts.Replica, Upstream: unreachable{}})
	})
	for body, code := range map[string]appliance.Code{
		`{"sample":-1}`: appliance.CodeInvalidField, `{"sample":"many"}`: appliance.CodeInvalidJSON,
		`{"rows":1}`: appliance.CodeUnknownField,
	} {
		if a := o.raw("POST", "/replica/verify", body, "Content-Type", "application/json"); a.status != 400 ||
			a.problem().Code != code {
			t.Errorf("%s: %s", body, a)
		}
	}
}

func TestNobodyIsSentToAReplicaThatIsTooFarBehind(t *testing.T) {
	t.Parallel()
	var behind atomic.Bool
	r := newRig(t, func(o *api.Options) {
		o.ReplicaReady = func() error {
			if !behind.Load() {
				return nil
			}
			return appliance.Errorf(appliance.CodeReplicaBehind,
				"the replica is behind").Because(errors.New("an upstream at 10.0.0.1"))
		}
	})
	if a := r.do("GET", "/readyz", ""); a.status != 200 || string(a.body) != `{"status":"ok"}` {
		t.Error(a)
	}
	behind.Store(true)
	r.clock.move(time.Second)
	a := r.do("GET", "/readyz", "")
	if a.status != 503 || string(a.body) != `{"status":"unavailable","failing":{"replica":"replica_behind"}}` ||
		a.header.Get("Retry-After") == "" {
		t.Error(a)
	}
	if a := r.attest(); a.status != 200 {
		t.Errorf("attestations do not depend on it: %s", a)
	}
}

func TestTheOperatorSeesWhyTheReplicaIsNotReady(t *testing.T) {
	t.Parallel()
	o := newReplicaRig(t, func(opts *api.AdminOptions) {
		opts.ReplicaReady = func() error { return appliance.Errorf(appliance.CodeReplicaBehind, "it is 3m0s behind") }
	})
	s, err := o.client.Status(t.Context())
	if err != nil || s.Ready || s.Failing["replica"] != "it is 3m0s behind" {
		t.Errorf("%+v, %v", s, err)
	}
}
