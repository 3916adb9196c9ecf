package chain_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/chain"
	"github.com/attestd/attestd/appliance/chain/chaintest"
)

// members are the other members of a quorum of three, of which two must sign.
type members struct {
	mu     sync.Mutex
	states map[string]string // proven, lacking or silent, by name
	asked  int
	until  time.Time // of the last question
}

func (m *members) Prove(_ context.Context, _ appliance.Digest, until time.Time, enough int,
	skip []string) (proven, lacking, silent []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked++
	m.until = until
	for name, state := range m.states {
		switch {
		case slices.Contains(skip, name) || state == "silent":
			silent = append(silent, name)
		case state == "proven":
			proven = append(proven, name)
		default:
			lacking = append(lacking, name)
		}
	}
	return proven, lacking, silent
}

// answer sets the answers of both members.
func (m *members) answer(geneva, tokyo string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.states = map[string]string{"geneva": geneva, "tokyo": tokyo}
}

func (m *members) questions() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.asked
}

// newMembersRig is a rig whose contract has redeemed an attestation that the journal lacks.
func newMembersRig(t *testing.T, geneva, tokyo string) (*rig, *members, *chaintest.Node) {
	t.Helper()
	node, key := attesting(t)
	node.Redeem(t, key.attest(t), 1)
	r, m := newRig(t, chain.Contract{RPCs: []string{node.URL}}), new(members)
	m.answer(geneva, tokyo)
	r.options.Members, r.options.Threshold, r.options.MemberPatience = m, 2, time.Hour
	return r, m, node
}

func (r *rig) verdict() chain.Verdict {
	r.t.Helper()
	if all := r.all(); len(all) == 1 {
		return all[0].Verdict
	}
	return ""
}

func (r *rig) alarms() int {
	return len(r.logged("level=ERROR")) + r.recorded(chain.EventUnknownRedemption) + r.recorded(chain.EventUnproven)
}

func TestTheJournalsOfEnoughMembersProveARedemption(t *testing.T) {
	t.Parallel()
	r, m, node := newMembersRig(t, "proven", "proven")
	r.start()
	r.eventually("it is proven", func() bool { return r.verdict() == chain.Proven })
	asked := m.questions()
	node.Mine(3)
	r.read(node.Head(t))
	r.stop()
	r.start() // a proof is not asked for again, not even after a restart
	node.Mine(1)
	r.read(node.Head(t))
	if s := r.status(); s.Unknown != 0 || r.halted() || r.alarms() != 0 || m.questions() != asked {
		t.Errorf("halted %t, %d questions after %d, %+v\n%s", r.halted(), m.questions(), asked, s, r.text())
	}
	if until := r.all()[0].Until(); !m.until.Equal(until.Add(chain.ClockTolerance)) {
		t.Errorf("the members were asked for attestations before %s, and the redemption is of %s", m.until, until)
	}
}

// A thief with m keys has no journal. If one of two members proves it, that is too few, too.
func TestARedemptionThatTooFewJournalsHaveIsAnAlarm(t *testing.T) {
	t.Parallel()
	for name, answers := range map[string][2]string{
		"none": {"lacking", "lacking"}, "one": {"proven", "lacking"},
		"one, and one does not answer": {"lacking", "silent"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, m, _ := newMembersRig(t, answers[0], answers[1])
			r.start()
			r.eventually("attesting is halted", func() bool { return r.halted() && r.verdict() == chain.Unknown })
			if s := r.status(); s.Unknown != 1 || s.Unproven != 0 || r.recorded(chain.EventUnknownRedemption) != 1 {
				t.Errorf("%+v", s)
			}
			m.answer("silent", "silent")
			asked := m.questions()
			r.eventually("it is asked again", func() bool { return m.questions() >= asked+3 })
			if r.verdict() != chain.Unknown {
				t.Errorf("members that fall silent end the alarm: %s", r.verdict())
			}
			m.answer("proven", "proven")
			r.eventually("the members have found it", func() bool { return r.verdict() == chain.Proven })
		})
	}
}

// Members that do not answer cause neither an alarm at once nor a halt.
func TestARedemptionWaitsForMembersThatDoNotAnswer(t *testing.T) {
	t.Parallel()
	r, m, node := newMembersRig(t, "proven", "silent")
	r.start()
	r.eventually("it is asked again", func() bool { return m.questions() >= 3 })
	if r.verdict() != "" || r.alarms() != 0 || r.halted() {
		t.Errorf("verdict %q, halted %t\n%s", r.verdict(), r.halted(), r.text())
	}
	r.stop()
	r.options.MemberPatience = time.Nanosecond
	r.start()
	r.eventually("it is unproven", func() bool { return r.status().Unproven == 1 && r.Metrics().Unproven == 1 })
	if s := r.status(); s.Unknown != 1 || r.halted() || r.recorded(chain.EventUnproven) != 1 ||
		r.recorded(chain.EventUnknownRedemption) != 0 {
		t.Errorf("halted %t, %+v\n%s", r.halted(), s, r.text())
	}
	node.Mine(1)
	m.answer("proven", "lacking")
	r.eventually("a member denies it", func() bool { return r.halted() && r.verdict() == chain.Unknown })
	if s := r.status(); s.Unknown != 1 || s.Unproven != 0 {
		t.Errorf("%+v", s)
	}
}

func TestMembersAreNotAskedAboutARedemptionThatTheJournalHas(t *testing.T) {
	t.Parallel()
	node, key := attesting(t)
	a := key.attest(t)
	node.Redeem(t, a, 1)
	r, m := newRig(t, chain.Contract{RPCs: []string{node.URL}}), new(members)
	m.answer("lacking", "lacking")
	r.options.Members, r.options.Threshold = m, 2
	r.journal.append(a)
	r.start()
	r.read(node.Head(t))
	if r.verdict() != chain.Known || m.questions() != 0 {
		t.Errorf("%s after %d questions", r.verdict(), m.questions())
	}
}
