package follower_test

import (
	"context"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/attestd/attestd/api/upstream"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/dataset"
	"github.com/attestd/attestd/appliance/index/follower"
	"github.com/attestd/attestd/appliance/index/follower/followertest"
	"github.com/attestd/attestd/store/replica"
)

// within bounds waits for events that should happen at once. It tests no speed: under the race detector, on a machine
// with a load of eight times its cores, a minute was too short.
const within = 4 * time.Minute

// rig is a replica in a file that follows an upstream through a proxy.
type rig struct {
	*testing.T
	upstream *followertest.Upstream
	proxy    *followertest.Proxy
	path     string
	index    *replica.Store
}

// newRig generates an upstream with this many transfers. The test runs in parallel with others.
func newRig(t *testing.T, transfers int) *rig {
	t.Helper()
	t.Parallel()
	u := followertest.NewUpstream(t, dataset.GenerateOptions{Transfers: transfers, Seed: 1, Now: time.Now(), Chains: 4})
	r := &rig{T: t, upstream: u, proxy: followertest.NewProxy(t, u.URL), path: filepath.Join(t.TempDir(), "replica.db")}
	r.proxy.Compress(false) // slow under the race detector
	r.index = followertest.OpenReplica(t, r.path, replica.Options{})
	return r
}

// follower returns a new follower with short intervals, which continues from the replica's positions.
func (r *rig) follower() *follower.Follower {
	r.Helper()
	return newFollower(r.T, r.proxy.URL(), r.index)
}

func newFollower(t *testing.T, url string, idx index.Index) *follower.Follower {
	t.Helper()
	client, err := upstream.New(upstream.Options{URL: url, Timeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return follower.New(follower.Options{
		Index: idx, Upstream: client, Address: url, PollInterval: 50 * time.Millisecond,
		RefreshInterval: 500 * time.Millisecond,
		Overlap:         10 * time.Minute, LookupInterval: 400 * time.Millisecond,
	})
}

// sync runs Sync.
func (r *rig) sync(f *follower.Follower) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), within)
	defer cancel()
	if err := f.Sync(ctx); err != nil {
		r.Fatalf("sync: %v; %+v", err, f.Status())
	}
}

// run runs a follower until stop or the end of the test.
func run(t *testing.T, f *follower.Follower) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// start runs a new follower.
func (r *rig) start() *follower.Follower {
	r.Helper()
	f := r.follower()
	run(r.T, f)
	return f
}

// live adds rows to the upstream until stop: some thirty transfers a second, most of which end within a few seconds.
func (r *rig) live() (stop func()) { return r.upstream.Live(100*time.Millisecond, 3, 300) }

// awaitEqual waits until the replica equals the upstream.
func (r *rig) awaitEqual() {
	r.Helper()
	followertest.AwaitEqual(r.T, within, r.upstream.Index, r.index)
}

// awaitFaults waits until this many more requests have failed.
func (r *rig) awaitFaults(more int) {
	r.Helper()
	before := r.proxy.Faults()
	followertest.Await(r.T, within, "requests that fail", func() bool { return r.proxy.Faults() >= before+more })
}

// rows counts rows of a type.
func rows(t *testing.T, idx index.Index, kind *index.Type) (n int) {
	t.Helper()
	view(t, idx, func(s index.Snapshot) error {
		status, err := s.Status(t.Context())
		n = int(status.Rows[kind.Name])
		return err
	})
	return n
}

func view(t *testing.T, idx index.Index, read func(index.Snapshot) error) {
	t.Helper()
	if err := idx.View(t.Context(), read); err != nil {
		t.Fatal(err)
	}
}

// keys returns the keys of all rows of a type, oldest first.
func keys(t *testing.T, idx index.Index, kind *index.Type) (all []string) {
	t.Helper()
	view(t, idx, func(s index.Snapshot) error {
		return s.Each(t.Context(), kind, func(row index.Row) error { all = append(all, row.Key()); return nil })
	})
	return all
}
