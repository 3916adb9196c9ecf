package follower_test

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/dataset"
	"github.com/attestd/attestd/appliance/index/follower/followertest"
)

func TestAnOlderUpstreamIsFollowedWithoutWhatItLacks(t *testing.T) {
	r := newRig(t, 300)
	r.proxy.Older("v2_transfer_type.fee_type", "v2_packet_type.packet_recv_maker", "v2_channel_type.sla")
	f := r.follower()
	r.sync(f)
	lacking := regexp.MustCompile(
		`^(transfer \S+: fee_type|packet \S+: packet_recv_maker|channel \S+: sla) is null, want "[^"]*"$`)
	differences := followertest.Differences(t, r.upstream.Index, r.index)
	for _, d := range differences {
		if !lacking.MatchString(d) {
			t.Errorf("differs: %s", d)
		}
	}
	if len(differences) < 300 {
		t.Errorf("only %d rows differ", len(differences))
	}
	missing := f.Status().Missing
	for i, field := range []string{".sla", ".packet_recv_maker", ".fee_type"} {
		if len(missing) != 3 || !strings.HasSuffix(missing[i], field) {
			t.Errorf("missing are %q", missing)
		}
	}
	r.upstream.Grow(20, time.Minute)
	r.sync(f)
	if n := rows(t, r.index, index.TransferType); n != rows(t, r.upstream.Index, index.TransferType) {
		t.Errorf("%d transfers", n)
	}
}

func TestAnEmptyUpstreamIsFollowedToItsFirstRow(t *testing.T) {
	r := newRig(t, 0)
	r.sync(r.follower())
	f := r.start()
	followertest.Await(t, within, "it is in step", func() bool { _, known := f.Lag(); return known })
	r.upstream.Grow(5, time.Minute)
	r.awaitEqual()
	r.upstream.Grow(150, time.Minute)
	r.awaitEqual()
}

// If an upstream counts more rows than it lists, the follower searches for them once, not again and again.
func TestAnUpstreamThatCountsMoreThanItListsIsFollowedAllTheSame(t *testing.T) {
	r := newRig(t, 150)
	r.proxy.Lie(followertest.AlterObjects(func(object map[string]any) {
		// This runs in the proxy's goroutine, which may outlive the test, so it must not use t.
		if listed, err := strconv.Atoi(fmt.Sprint(object["value"])); err == nil &&
			object["name"] == index.StatTransfers {
			object["value"] = strconv.Itoa(listed + 3)
		}
	}))
	f := r.start()
	inStep := func() bool { lag, known := f.Lag(); return known && lag < time.Second }
	followertest.Await(t, within, "it is in step", inStep)
	r.awaitEqual()
	if s := f.Status(); s.LagRows != 3 {
		t.Errorf("%d rows are missing, want 3", s.LagRows)
	}
	for range 3 {
		r.upstream.Grow(20, time.Minute)
		r.awaitEqual()
		followertest.Await(t, within, "it is in step again", inStep)
	}
	r.proxy.CheckManners(t)
}

// An upstream may itself be filled backwards. Its older rows are found, page by page.
func TestAnUpstreamThatIsFilledBackwardsIsFollowed(t *testing.T) {
	r := newRig(t, 0)
	var all []index.Row
	o := dataset.GenerateOptions{Transfers: 2000, Seed: 3, Now: time.Now(), Chains: 3}
	err := dataset.Generate(t.Context(), o, func(rows []index.Row) error {
		all = append(all, rows...)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	write := func(rows []index.Row) {
		if _, err := r.upstream.Index.Write(t.Context(), index.Batch{Rows: rows}); err != nil {
			t.Fatal(err)
		}
	}
	newest := len(all) * 4 / 5
	for all[newest].Type() != index.PacketType {
		newest++ // a packet and its transfers stay together
	}
	write(all[newest:])
	r.start()
	r.awaitEqual()
	write(all[:newest])
	r.awaitEqual()
	r.proxy.CheckManners(t)
}
