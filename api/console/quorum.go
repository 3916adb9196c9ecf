package console

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/attestd/attestd/appliance/quorum"
	"github.com/attestd/attestd/appliance/text"
)

// quorumInterval is the time between two updates of the live page. Each asks all members and all RPCs.
const quorumInterval = 15 * time.Second

// quorumPage shows the other members of the quorum and its contract on chain. It is there with Options.Quorum only.
func quorumPage() page {
	return page{name: "quorum", path: "/quorum", title: "Quorum", least: Viewer, routes: []route{
		{"GET /quorum", Viewer, showQuorum},
		{"GET /quorum/live", Viewer, followQuorum},
	}}
}

// quorumView is the state of the quorum.
type quorumView struct {
	quorum.Status
	Well int // members that would sign, this appliance included
}

// All returns the number of members, this appliance included.
func (q quorumView) All() int { return len(q.Members) + 1 }

// State returns the mark of the quorum, and its state in words.
func (q quorumView) State() [2]string {
	switch {
	case q.Well < q.Threshold:
		return [2]string{"bad", "no attestation can be made"}
	case q.Refused():
		return [2]string{"bad", "the contract would refuse attestations"}
	case q.Well < q.All():
		return [2]string{"warn", fmt.Sprintf("%d of %d members would sign", q.Well, q.All())}
	}
	return [2]string{"good", "all members would sign"}
}

// Milliseconds returns a member's latency in words.
func (q quorumView) Milliseconds(m quorum.MemberStatus) string {
	return fmt.Sprintf("%.0f ms", m.Milliseconds)
}

// Refusal describes a member's last refusal.
func (q quorumView) Refusal(m quorum.MemberStatus) string {
	if m.LastRefusal == nil {
		return "none"
	}
	return fmt.Sprintf("%s %s", text.Time(m.LastRefusal.Time), m.LastRefusal.Code)
}

// Mark returns the mark of a comparison with the contract.
func (q quorumView) Mark(c quorum.ContractStatus) string {
	switch {
	case len(c.Refuses) > 0:
		return "bad"
	case !c.Matches():
		return "warn"
	}
	return "good"
}

func showQuorum(w http.ResponseWriter, v *visit) error {
	data, err := v.quorum(v.Context())
	if err != nil {
		return err
	}
	return v.show(w, data)
}

func (v *visit) quorum(ctx context.Context) (any, error) {
	s, err := v.Admin.QuorumStatus(ctx)
	data := quorumView{Status: s, Well: 1}
	for _, m := range s.Members {
		if m.Error == "" {
			data.Well++
		}
	}
	return data, err
}

func followQuorum(w http.ResponseWriter, v *visit) error {
	return v.followLive(w, quorumInterval, v.quorum)
}
