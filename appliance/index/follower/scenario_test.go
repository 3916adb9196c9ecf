package follower_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/attestd/attestd/api/graphql"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/follower"
	"github.com/attestd/attestd/appliance/index/follower/followertest"
	"github.com/attestd/attestd/store/replica"
)

func TestTheFirstSyncBringsAllThatTheUpstreamHas(t *testing.T) {
	r := newRig(t, 1500)
	r.proxy.Compress(true)
	f := r.follower()
	r.sync(f)
	followertest.Equal(t, r.upstream.Index, r.index)
	r.proxy.CheckManners(t)

	s := f.Status()
	if s.State != follower.StateLive || s.LagRows != 0 || s.LagSeconds == nil || s.Backfilled.IsZero() ||
		s.Unverified != 0 || len(s.Missing) != 0 || s.Failing {
		t.Errorf("%+v", s)
	}
	for _, kind := range []*index.Type{index.PacketType, index.TransferType} {
		if n := uint64(rows(t, r.upstream.Index, kind)); s.Rows[kind.Name] != (follower.Count{Here: n, Upstream: n}) {
			t.Errorf("%d %ss: %+v", n, kind.Name, s.Rows)
		}
	}
	c := r.proxy.Counts()
	if c.Requests > 120 || c.Connections > 2 || c.BytesOut > 8<<20 {
		t.Errorf("that took %+v", c)
	}

	again := r.follower()
	r.sync(again)
	if s := again.Status(); s.Written != 0 || r.proxy.Counts().Requests-c.Requests > 40 {
		t.Errorf("nothing had changed, yet: %+v", s)
	}
}

func TestEveryFaultIsSurvived(t *testing.T) {
	t.Parallel()
	for _, fault := range followertest.Faults() {
		t.Run(fault.Name, func(t *testing.T) {
			r := newRig(t, 120)
			r.proxy.Compress(strings.Contains(fault.Name, "gzip"))
			several, chance := 2, 0.3
			if strings.Contains(fault.Name, "Retry-After") { // each one delays the follower
				several, chance = 1, 0
			}
			r.proxy.Fail(fault)
			f := r.start()
			r.awaitFaults(several)
			r.proxy.Fail(fault.Sometimes(chance)) // throughout the backfill
			r.awaitEqual()

			r.proxy.Fail(fault)
			r.upstream.Grow(20, time.Minute)
			r.awaitFaults(several)
			r.upstream.Grow(20, time.Minute)
			r.proxy.Heal()
			r.awaitEqual()
			r.proxy.CheckManners(t)
			if s := f.Status(); s.Unverified > 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

func TestARateLimitedUpstreamIsFollowed(t *testing.T) {
	r := newRig(t, 600)
	r.proxy.Fail(followertest.RateLimit(8))
	f := r.start()
	followertest.Await(t, within, "the backfill", func() bool { return f.Status().State == follower.StateLive })
	r.awaitEqual()
	r.proxy.CheckManners(t)
}

func TestDrillAWorldThatGoesOnIsCaughtUpWith(t *testing.T) {
	t.Parallel()
	var faults []followertest.Fault
	for _, f := range followertest.Faults() {
		if !strings.Contains(f.Name, "Retry-After") { // they would delay the follower
			faults = append(faults, f.Sometimes(0.03))
		}
	}
	for name, faults := range map[string][]followertest.Fault{"undisturbed": nil,
		"while every third request fails": faults} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 250)
			r.proxy.Fail(faults...)
			begun := rows(t, r.upstream.Index, index.TransferType)
			stop := r.live()
			r.start()
			followertest.Await(t, within, "the backfill", func() bool {
				return rows(t, r.index, index.TransferType) >= begun
			})
			followertest.Await(t, within, "growth", func() bool {
				return rows(t, r.upstream.Index, index.TransferType) > begun+60
			})
			r.upstream.Late(3, 5*time.Minute)
			followertest.Await(t, within, "growth", func() bool {
				return rows(t, r.upstream.Index, index.TransferType) > begun+90
			})
			stop()
			r.awaitEqual()
			r.proxy.CheckManners(t)
		})
	}
}

func TestRowsThatComeLateAreFound(t *testing.T) {
	t.Parallel()
	for name, by := range map[string]time.Duration{"within the overlap": 4 * time.Minute,
		"deeper than the overlap": 5 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 300)
			r.start()
			r.upstream.Late(5, by)
			r.upstream.Grow(50, time.Minute)
			r.upstream.Grow(50, by/2)
			r.awaitEqual()
			r.upstream.Grow(50, by)
			r.awaitEqual()
			r.upstream.Grow(50, time.Minute)
			r.awaitEqual()
			r.proxy.CheckManners(t)
		})
	}
}

func TestPacketsAreFollowedToTheirEnd(t *testing.T) {
	r := newRig(t, 200)
	r.start()
	for range 20 { // one packet in some hundred times out
		r.upstream.Grow(200, time.Minute)
		r.awaitEqual()
		before := statuses(t, r.index)
		r.upstream.Grow(0, 26*time.Hour)
		r.awaitEqual()
		after := statuses(t, r.index)
		if after[index.TracePacketAck] < before[index.TracePacketAck]+100 {
			t.Fatalf("packets were %v, are %v", before, after)
		}
		if after[index.StatusTimeout] > before[index.StatusTimeout] {
			return
		}
	}
	t.Error("no packet timed out")
}

// statuses counts packets by status.
func statuses(t *testing.T, idx index.Index) map[string]int {
	t.Helper()
	counts := make(map[string]int)
	view(t, idx, func(s index.Snapshot) error {
		return s.Each(t.Context(), index.PacketType, func(row index.Row) error {
			status, _ := row.Text(index.PacketType.MustField("status").Number)
			counts[status]++
			return nil
		})
	})
	return counts
}

func TestDrillPullingThePlugChangesNothingButTheLag(t *testing.T) {
	r := newRig(t, 300)
	f := r.start()
	inStep := func() bool { lag, known := f.Lag(); return known && lag < time.Second }
	followertest.Await(t, within, "it is in step", inStep)
	stop := r.live()
	stopReading := readOn(t, r.index)

	r.proxy.Unplug()
	before := rows(t, r.index, index.TransferType)
	followertest.Await(t, within, "the lag grows", func() bool {
		lag, _ := f.Lag()
		return lag > 1500*time.Millisecond
	})
	followertest.Await(t, within, "it fails", func() bool { return f.Status().Failing })
	if s := f.Status(); s.LastError == "" || s.LagSeconds == nil || *s.LagSeconds < 1 {
		t.Errorf("unplugged: %+v", s)
	}
	if after := rows(t, r.index, index.TransferType); after < before {
		t.Errorf("%d transfers are left of %d", after, before)
	}
	r.proxy.Plug()
	f.Wake()
	followertest.Await(t, within, "it is in step again", func() bool { return inStep() && !f.Status().Failing })
	stop()
	r.awaitEqual()
	stopReading()
	r.proxy.CheckManners(t)
}

// readOn reads continuously, as clients do, and fails the test if a read fails or hangs.
func readOn(t *testing.T, idx index.Index) (stop func()) {
	done := make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-done:
				if n == 0 {
					t.Error("nothing was read")
				}
				return
			default:
			}
			began := time.Now()
			err := idx.View(t.Context(), func(s index.Snapshot) error {
				page, err := s.Transfers(t.Context(), index.TransferQuery{Page: index.Page{Limit: new(int32(50))}})
				if err == nil && len(page) != 50 {
					err = fmt.Errorf("%d transfers", len(page))
				}
				return err
			})
			// Readers never wait for writers. The bound detects a hang; it does not measure speed.
			if took := time.Since(began); err != nil || took > time.Minute {
				t.Errorf("a read took %v: %v", took, err)
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	})
	stop = sync.OnceFunc(func() {
		close(done)
		reader.Wait()
	})
	t.Cleanup(stop)
	return stop
}

func TestDrillARestartNeitherLosesNorRepeats(t *testing.T) {
	r := newRig(t, 700)
	r.proxy.Fail(followertest.Delay(0, 5*time.Millisecond))
	stopWorld := r.live()
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		stop := run(t, r.follower())
		time.Sleep(time.Duration(rng.IntN(150)) * time.Millisecond) // at any moment
		stop()
		followertest.Await(t, within, "the proxy notices", r.proxy.Idle)
	}
	stopWorld()
	r.start()
	r.awaitEqual()
	if c := r.proxy.Counts(); c.MostAtOnce > 1 {
		t.Errorf("%+v", c)
	}
}

func TestAReplicaOfAReplicaIsTheSame(t *testing.T) {
	r := newRig(t, 300)
	second := followertest.OpenReplica(t, r.path+".2", replica.Options{})
	between := followertest.NewProxy(t, followertest.Serve(t, graphql.Options{Index: r.index}))
	run(t, newFollower(t, between.URL(), second)) // starting empty
	stop := r.live()
	r.start()
	followertest.Await(t, within, "rows come through", func() bool { return rows(t, second, index.TransferType) > 350 })
	stop()
	r.awaitEqual()
	followertest.AwaitEqual(t, within, r.upstream.Index, second)
	between.CheckManners(t)
}

// A client that pages through a syncing replica gets every row that the replica had at the start, exactly once.
func TestAClientMissesNothingWhileTheReplicaSyncs(t *testing.T) {
	r := newRig(t, 800)
	url := followertest.Serve(t, graphql.Options{Index: r.index})
	r.proxy.Fail(followertest.Delay(200*time.Millisecond, 0)) // slows the backfill until the first walk is over
	f := r.start()
	followertest.Await(t, within, "first rows", func() bool { return rows(t, r.index, index.TransferType) > 0 })
	backfilling := 0
	for f.Status().State != follower.StateLive {
		walkBothWays(t, r.index, url)
		backfilling++
		r.proxy.Heal()
	}
	stop := r.live()
	for range 2 {
		walkBothWays(t, r.index, url)
	}
	stop()
	if backfilling == 0 {
		t.Error("the backfill was over at once")
	}
}

func walkBothWays(t *testing.T, idx index.Index, url string) {
	t.Helper()
	for _, kind := range []*index.Type{index.PacketType, index.TransferType} {
		for direction, from := range map[index.Direction]string{index.Older: "", index.Newer: "0"} {
			there := keys(t, idx, kind)
			listed, err := followertest.Walk(t.Context(), url, kind, from, direction, 90, nil)
			if err != nil {
				t.Fatal(err)
			}
			got := make(map[string]bool)
			for i, row := range listed {
				if got[row.Key] {
					t.Errorf("%s %s came twice", kind.Name, row.Key)
				}
				got[row.Key] = true
				if i > 0 && (direction == index.Newer) != (row.SortOrder > listed[i-1].SortOrder) {
					t.Errorf("%s %s came out of order", kind.Name, row.Key)
				}
			}
			missed := slices.DeleteFunc(there, func(key string) bool { return got[key] })
			if len(missed) > 0 {
				t.Errorf("%d %ss were missed, direction %d: %s, …", len(missed), kind.Name, direction, missed[0])
			}
		}
	}
}

// interrupted is an index that ends the follower during the first batch with rows.
type interrupted struct {
	index.Index
	end context.CancelFunc
}

func (i interrupted) Write(ctx context.Context, b index.Batch) (index.Written, error) {
	for _, row := range b.Rows {
		if row.Type() == index.PacketType {
			i.end()
			return index.Written{}, ctx.Err()
		}
	}
	return i.Index.Write(ctx, b)
}

func TestWhatWasNotWrittenIsReadAgain(t *testing.T) {
	r := newRig(t, 300)
	ctx, cancel := context.WithCancel(t.Context())
	f := newFollower(t, r.proxy.URL(), interrupted{r.index, cancel})
	if err := f.Run(ctx); err != nil {
		t.Fatal(err)
	}
	view(t, r.index, func(s index.Snapshot) error {
		at, found, err := s.Position(t.Context(), "follower.packet.live")
		if found {
			t.Errorf("the position %s is kept, of rows that are not written", at)
		}
		return err
	})
	r.sync(r.follower())
	followertest.Equal(t, r.upstream.Index, r.index)
}
