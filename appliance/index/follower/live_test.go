package follower_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/attestd/attestd/api/upstream"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/follower"
	"github.com/attestd/attestd/appliance/index/follower/followertest"
)

// counting is an index that records the size of each batch.
type counting struct {
	index.Index
	mu      sync.Mutex
	batches []int
}

func (c *counting) Write(ctx context.Context, b index.Batch) (index.Written, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.batches = append(c.batches, len(b.Rows))
	return c.Index.Write(ctx, b)
}

// Consecutive pages are written as one batch of bounded size.
func TestWhatHasComeMeanwhileIsWrittenInFewBatches(t *testing.T) {
	r := newRig(t, 50)
	r.sync(r.follower())
	r.upstream.Grow(1200, time.Hour)
	came := rows(t, r.upstream.Index, index.TransferType) + rows(t, r.upstream.Index, index.PacketType) - rows(t,
		r.index, index.TransferType) - rows(t, r.index, index.PacketType)

	client, err := upstream.New(upstream.Options{URL: r.proxy.URL(), Timeout: within})
	if err != nil {
		t.Fatal(err)
	}
	written := &counting{Index: r.index}
	started := time.Now()
	f := follower.New(follower.Options{
		Index: written, Upstream: client, Address: r.proxy.URL(), PollInterval: 20 * time.Microsecond,
		RefreshInterval: time.Second, Overlap: time.Minute, LookupInterval: time.Millisecond,
		// slowed down, so that a busy machine does not end the batch early
		Now: func() time.Time { return started.Add(time.Since(started) / 1000) },
	})
	r.sync(f)
	followertest.Equal(t, r.upstream.Index, r.index)
	const most = follower.BatchRows + 2*index.MaxLimit
	slices.Sort(written.batches)
	largest := written.batches[len(written.batches)-1]
	large := len(written.batches) - slices.IndexFunc(written.batches, func(n int) bool { return n > most/2 })
	if largest > most || largest < follower.BatchRows || large > came/follower.BatchRows+1 {
		t.Errorf("%d rows were written in batches of %v", came, written.batches)
	}
}
