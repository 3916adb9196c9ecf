package console

import (
	"strings"
	"testing"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance/health"
	"github.com/attestd/attestd/appliance/index/follower"
)

// An upstream that fails has the same colour in the Overview's answer and card, on the page Replica, and among the parts
// of status.
func TestAnUpstreamThatFailsHasOneColour(t *testing.T) {
	t.Parallel()
	l, err := newLooks(pages(true, true, []Part{Watchtower, Witnesses, Cluster, Sinks, Policy}))
	if err != nil {
		t.Fatal(err)
	}
	for _, failing := range []bool{true, false} {
		lag := 1.0
		f := follower.Status{Failing: failing, LastError: "connection refused", State: follower.StateLive, LagSeconds: &lag}
		var s wire.Status
		s.Reads.Source, s.Reads.Replica = "replica", &wire.ReplicaStatus{Follower: &f}
		want := finding{health.Follower(f)}.Looks()
		if (want == good) == failing {
			t.Errorf("failing %t: %s", failing, want)
		}
		if got := isFresh(s).State; got != want {
			t.Errorf("failing %t: the answer is %s, the check %s", failing, got, want)
		}
		card, err := l.part("overview", "now", overviewNow{Status: s})
		if err != nil || !strings.Contains(card, `<span class="state `+want+`">live</span>`) {
			t.Errorf("failing %t: the card is not %s: %v", failing, want, err)
		}
		page, err := l.part("replica", "live", replicaView{Status: *s.Reads.Replica})
		if err != nil || !strings.Contains(page, `<span class="state `+want+`">`) ||
			failing && !strings.Contains(page, `<p class="notice `+want+`">connection refused`) {
			t.Errorf("failing %t: the page is not %s: %v", failing, want, err)
		}
	}
}
