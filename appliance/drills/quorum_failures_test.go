package drills

import (
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/daemontest"
	"github.com/attestd/attestd/appliance/passkeytest"
)

// quorumLoad asks members for attestations without pause.
type quorumLoad struct {
	*quorumRig
	next, made atomic.Int64
	stop       chan struct{}
	clients    sync.WaitGroup
}

// under starts clients of these members. Each request must succeed.
func (q *quorumRig) under(from ...*quorumMember) *quorumLoad {
	l := &quorumLoad{quorumRig: q, stop: make(chan struct{})}
	var signers []appliance.Address
	for _, m := range q.members {
		signers = append(signers, m.signer)
	}
	for i := range 6 {
		l.clients.Go(func() {
			for n := i; ; n++ {
				select {
				case <-l.stop:
					return
				default:
				}
				m := from[n%len(from)]
				a, err := m.attestAs(q.T, int(l.next.Add(1)), "")
				if err == nil && a.status == http.StatusOK {
					err = a.VerifyQuorum(signers, q.threshold)
				}
				if err != nil || a.status != http.StatusOK {
					q.Errorf("%s: %v, %d %s", m.name, err, a.status, a.text)
					return
				}
				l.made.Add(1)
			}
		})
	}
	return l
}

// goesOn waits for 30 more answers.
func (l *quorumLoad) goesOn(what string) {
	l.Helper()
	from := l.made.Load()
	daemontest.Await(l.T, what+": the load goes on", func() (bool, string) {
		return l.Failed() || l.made.Load() >= from+30, ""
	})
}

func (l *quorumLoad) end() int64 {
	close(l.stop)
	l.clients.Wait()
	return l.made.Load()
}

// cutOff delays the member's answers for the others until the network is restored.
func (m *quorumMember) cutOff() (restore func()) {
	cut := make(chan struct{})
	hang := func(*http.Response) error {
		<-cut
		return errors.New("cut off")
	}
	m.network.Store(&hang)
	return func() { m.network.Store(nil); close(cut) }
}

// Each member in turn is killed, stopped and cut off under load on the other two. No request fails.
func TestDrillAnyMemberFailsUnderLoad(t *testing.T) {
	q := startQuorum(t, 2)
	for i, m := range q.members {
		for fault, begin := range map[string]func() (end func()){
			"killed": func() func() { m.Kill(t); return func() { m.Start(t) } },
			"stopped": func() func() {
				m.signal(t, syscall.SIGSTOP)
				return func() { m.signal(t, syscall.SIGCONT) }
			},
			"cut off": m.cutOff,
		} {
			load := q.under(q.members[(i+1)%3], q.members[(i+2)%3])
			load.goesOn(m.name + " is well")
			end := begin()
			load.goesOn(m.name + " is " + fault)
			end()
			load.goesOn(m.name + " is back")
			t.Logf("%s was %s: %d attestations, no failed request", m.name, fault, load.end())
		}
	}
	q.auditAll()
}

// clustered makes the last member a cluster: another appliance on its database, which the other members know.
func (q *quorumRig) clustered() (first *quorumMember, second *daemontest.Daemon) {
	q.Helper()
	first = q.members[2]
	second = first.Twin(q.T)
	second.Environ = append(append(second.Environ, first.Environ...), "ATTESTD_CLUSTER_NAME=b")
	second.Start(q.T)
	q.Cleanup(second.End)
	for _, m := range q.members[:2] {
		for i, value := range m.Environ {
			m.Environ[i] = strings.ReplaceAll(value, `"`+first.proxy.URL+`"`, `"`+first.URL+","+second.URL+`"`)
		}
		m.restart(q.T)
	}
	return first, second
}

// startClusteredQuorum starts a quorum of three, all of which must sign, each with a database.
func startClusteredQuorum(t *testing.T) (q *quorumRig, first *quorumMember, second *daemontest.Daemon) {
	t.Helper()
	q = startQuorumOf(t, 3, func() *daemontest.Daemon { return daemontest.NewMembers(t, 1)[0] })
	first, second = q.clustered()
	return q, first, second
}

// The third member is two appliances on one database. The quorum, which needs all three members, goes on while one of
// the two is dead, and gets the signature that the other one has recorded.
func TestAMemberOfAQuorumCanBeACluster(t *testing.T) {
	q, first, second := startClusteredQuorum(t)
	a, b := q.members[0], q.members[1]
	made := q.attests(1, a, a, b, first)
	first.Kill(t)
	q.attests(2, a, a, b, first)
	q.attests(3, b, a, b, first)
	// a has no record of this request, and the dead appliance's cluster has one.
	order, err := b.attestAs(t, 4, "order-4")
	if err != nil || order.status != http.StatusOK {
		t.Fatalf("%v %s", err, order.text)
	}
	first.Start(t)
	second.Kill(t)
	q.attests(5, a, a, b, first)
	if again, err := b.attestAs(t, 4, "order-4"); err != nil || again.text != order.text {
		t.Errorf("a repeat: %v\n%s\n%s", err, again.text, order.text)
	}
	for _, one := range []quorumAnswer{made, order} {
		if records := first.recordsOf(t, one.Hash); len(records) != 1 {
			t.Errorf("the cluster has signed %d times: %v", len(records), records)
		}
	}
	q.auditAll()
}

// The appliances of the third member are killed and stopped in turn, under load. No request fails.
func TestDrillAnApplianceOfAMemberFailsUnderLoad(t *testing.T) {
	q, first, second := startClusteredQuorum(t)
	load := q.under(q.members[0], q.members[1])
	load.goesOn("both are well")
	for _, one := range []*daemontest.Daemon{first.Daemon, second} {
		one.Kill(t)
		load.goesOn("one is killed")
		one.Start(t)
		load.goesOn("it is back")
	}
	t.Logf("%d attestations, no failed request", load.end())
	q.auditAll()
}

// Two appliances share a database. A request waits at one, is approved at the other, and both answer with the same
// attestation.
func TestAppliancesOfADatabaseShareApprovals(t *testing.T) {
	one := &quorumMember{Daemon: daemontest.NewMembers(t, 1)[0], name: "a"}
	one.BeginLog(t, "shared.example/attestd")
	one.Start(t)
	defer one.Kill(t)
	alice := one.demand(t)
	two := one.Twin(t)
	two.Environ = append(append(two.Environ, one.Environ...), "ATTESTD_CLUSTER_NAME=b")
	two.Start(t)
	defer two.Kill(t)
	other := &quorumMember{Daemon: two, name: "b"}
	for i, order := range []string{"approved", "denied"} {
		by := []*passkeytest.Passkey{alice, nil}[i]
		asked, err := one.attestAs(t, i, order)
		if err != nil || asked.Code != appliance.CodeApprovalRequired {
			t.Fatalf("%v %s", err, asked.text)
		}
		if again, err := other.attestAs(t, i, order); err != nil || again.ApprovalID != asked.ApprovalID {
			t.Errorf("the other asks again: %v %s", err, again.text)
		}
		decide(t, two, by)
		first, err := one.attestAs(t, i, order)
		if err != nil || (first.status == http.StatusOK) != (by != nil) || by == nil &&
			first.Code != appliance.CodeApprovalDenied {
			t.Errorf("%s: %v %s\n%s", order, err, first.text, one.Log())
		}
		if second, err := other.attestAs(t, i, order); err != nil || second.status != first.status ||
			second.ID != first.ID || second.Code != first.Code {
			t.Errorf("%s: %v\n%s\n%s", order, err, first.text, second.text)
		}
	}
	if out := two.Run(t, "log", "verify"); !strings.Contains(out, "Journal integrity: verified") {
		t.Error(out)
	}
}
