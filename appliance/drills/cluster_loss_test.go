package drills

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/daemontest"
	"github.com/attestd/attestd/store/postgres/postgrestest"
)

// An asynchronous standby that lacks records takes over. Every appliance notices, and none signs until an operator
// decides. Then the standby's records continue under a new log identity.
func TestDrillClusterNoticesALostTail(t *testing.T) {
	c := startCluster(t, postgrestest.NewServer(t, nil))
	c.standby.Detach(c)                // no commit is answered from here on
	time.Sleep(100 * time.Millisecond) // the load has received all answers
	kept, ids, _ := c.load.sofar()
	c.primary.Synchronous(c)
	c.backWithin(time.Now(), afterPromotion, c.members...)
	c.watch.await(c.size(c.standby) + 100)
	c.watch.end()
	c.primary.Kill(c)
	c.standby.Promote(c)
	promoted := time.Now()
	c.signsNothing(promoted, longer(3*time.Second, 10*time.Second))
	c.load.lose(kept, ids)

	c.primary, c.standby = c.standby, c.primary
	before := c.verifierKey(c.members[0])
	c.acceptLoss(c.members[1])
	back := c.backWithin(time.Now(), afterPromotion, c.members...)
	t.Logf("after log accept-loss all attest again after %s", back.Round(time.Millisecond))
	if after := c.verifierKey(c.members[0]); after == before {
		t.Errorf("it signs on as the same log, %s", after)
	}
	c.watch = watchCheckpoints(c)
	c.watch.await(c.size(c.primary) + 10)
	c.check(c.members[2])
}

// acceptLoss is the operator's decision, at one appliance. The others follow: they exit, and the service manager
// restarts them.
func (c *cluster) acceptLoss(at *member) {
	c.Helper()
	for _, m := range c.members {
		m.take()
	}
	at.Kill(c)
	at.Run(c, "log", "accept-loss", "--reason", "an asynchronous standby was promoted")
	at.Start(c)
	for _, m := range c.others(at) {
		ended := make(chan struct{})
		go func() { defer close(ended); _ = m.Cmd.Wait() }() // its exit status asks for a restart
		select {
		case <-ended:
			m.Start(c)
		case <-time.After(daemontest.Patience):
			c.Fatalf("%s does not follow\n%s", m.name, m.Events())
		}
	}
	for _, m := range c.members {
		m.give()
	}
}

// signsNothing waits until each member reports the loss, and expects it not to attest.
func (c *cluster) signsNothing(since time.Time, during time.Duration) {
	c.Helper()
	for _, m := range c.members {
		daemontest.Await(c.T, m.name+" has noticed", func() (bool, string) {
			events := m.Events()
			return bytes.Contains(events, []byte(`"level":"ERROR"`)) && m.readiness(c.T) == 503, string(events)
		})
	}
	took := time.Since(since)
	c.Logf("all have noticed after %s", took.Round(time.Millisecond))
	if took > longer(daemontest.Patience, 5*time.Second) {
		c.Errorf("that is late")
	}
	for began := time.Now(); time.Since(began) < during; {
		for _, m := range c.members {
			if m.newest.Load() > since.UnixNano() {
				c.Fatalf("%s signs on\n%s", m.name, m.Events())
			}
			if status := m.readiness(c.T); status != 503 {
				c.Errorf("%s: /readyz is %d", m.name, status)
			}
		}
		time.Sleep(100 * time.Millisecond) // between two polls
	}
}

// lose forgets all answers but these.
func (l *clusterLoad) lose(kept map[uuid.UUID]appliance.Attestation, ids map[string]uuid.UUID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answered, l.ids = kept, ids
}
