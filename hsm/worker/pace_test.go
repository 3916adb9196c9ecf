package worker

import (
	"testing"
	"time"
)

// A slow HSM gets twice as many requests as sessions. A fast HSM gets enough requests to stay busy for a while.
func TestAFastHSMHasMoreRequestsOnHand(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name        string
		every       time.Duration
		least, most int // in addition to those
	}{
		{"a hardware token", 50 * time.Millisecond, 0, 0},
		{"slower than what is on hand", 5 * time.Millisecond, 0, 0},
		{"a network HSM with 64 sessions", 80 * time.Microsecond, 45, 50},
		{"a fast one", 20 * time.Microsecond, 190, 200},
		{"as fast as can be", 0, mostPending, mostPending},
	} {
		p := &process{sessions: 4}
		if n := p.most(); n != 8 {
			t.Errorf("%s: %d requests before the first answer, want 8", c.name, n)
		}
		now := time.Now()
		for range 200 {
			now = now.Add(c.every)
			p.pace.tick(now)
		}
		if n := p.most(); n < min(8+c.least, mostPending) || n > min(8+c.most, mostPending) {
			t.Errorf("%s: %d requests, want 8 and %d to %d", c.name, n, c.least, c.most)
		}
	}
}

// During a long outage in which logins succeed and every other call fails, the next worker starts within five seconds,
// and not more often than every two seconds.
func TestALongOutageIsProbedEveryFewSeconds(t *testing.T) {
	t.Parallel()
	var counts restarter
	loggedIn := new(process)
	loggedIn.logins.Store(true)
	for vain := 1; vain <= 3; vain++ {
		if counts.countEnded(loggedIn); counts.failedLogins != vain {
			t.Errorf("%d logins that came to nothing are counted as %d", vain, counts.failedLogins)
		}
	}
	for vain := range 1000 {
		m := restarter{quick: vain, failedLogins: vain}
		if d := m.pause(); d > 5*time.Second {
			t.Errorf("after %d logins that came to nothing: a pause of %s", vain, d)
		} else if vain > 10 && d < 2*time.Second {
			t.Errorf("after %d logins that came to nothing: a pause of %s only", vain, d)
		}
	}
}
