package follower_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/api/upstream"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/follower"
	"github.com/attestd/attestd/appliance/index/follower/followertest"
)

// refusing is an upstream that refuses each lookup of one packet.
type refusing struct {
	follower.Upstream
	hash string
}

func (u refusing) Query(ctx context.Context, query string, variables map[string]any) (json.RawMessage, error) {
	for _, value := range variables {
		if value == u.hash {
			return nil, &follower.QueryError{Errors: []follower.ResponseError{{Message: "the packet cannot be read"}}}
		}
	}
	return u.Upstream.Query(ctx, query, variables)
}

func TestAPacketThatIsRefusedDoesNotHoldUpOthers(t *testing.T) {
	r := newRig(t, 60)
	r.upstream.Grow(60, 0)
	r.sync(r.follower())
	var hash string // of the newest unfinished packet, which is looked up first
	view(t, r.index, func(s index.Snapshot) error {
		newest := ""
		return s.Unfinished(t.Context(), index.Row{}, func(packet index.Row) error {
			if packet.SortOrder() > newest {
				newest, hash = packet.SortOrder(), packet.Key()
			}
			return nil
		})
	})
	if hash == "" {
		t.Fatal("no packet is under way")
	}
	client, err := upstream.New(upstream.Options{URL: r.proxy.URL(), Timeout: within})
	if err != nil {
		t.Fatal(err)
	}
	run(t, follower.New(follower.Options{
		Index: r.index, Upstream: refusing{client, hash}, Address: r.proxy.URL(), PollInterval: 50 * time.Millisecond,
		RefreshInterval: time.Hour,
		Overlap:         time.Hour, LookupInterval: 400 * time.Millisecond,
	}))
	r.upstream.Grow(1, 2*time.Hour) // long enough for all to end
	followertest.Await(t, within, "the others", func() bool {
		for _, difference := range followertest.Differences(t, r.upstream.Index, r.index) {
			if kind, _, _ := strings.Cut(difference, " "); (kind == index.PacketType.Name ||
				kind == index.TransferType.Name) && !strings.Contains(difference, hash) {
				return false
			}
		}
		return true
	})
}
