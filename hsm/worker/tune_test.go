package worker_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/attestd/attestd/hsm/hsmtest"
	"github.com/attestd/attestd/hsm/worker"
)

// Without a fixed number of sessions, a worker adapts it to the HSM. TestTheSessionsAreAsManyAsPay checks the exact
// numbers; measurements here are less precise on a busy machine.
func TestDrillTheNumberOfSessionsFollowsTheHSM(t *testing.T) {
	for name, c := range map[string]struct {
		hsm         hsmtest.FastOptions
		least, most int // sessions, in the end
	}{
		"many engines":                   {hsmtest.FastOptions{Latency: 20 * time.Millisecond}, 8, 64},
		"one engine":                     {hsmtest.FastOptions{Latency: 5 * time.Millisecond, Engines: 1}, 1, 2},
		"no latency":                     {hsmtest.FastOptions{}, 1, 4 * runtime.NumCPU()},
		"a maximum that the token tells": {hsmtest.FastOptions{Latency: 20 * time.Millisecond, Sessions: 6}, 6, 6},
		"a maximum that the token tells not": {hsmtest.FastOptions{Latency: 20 * time.Millisecond, Sessions: 6,
			Untold: true}, 6, 6},
		"a maximum of one": {hsmtest.FastOptions{Latency: 5 * time.Millisecond, Sessions: 1}, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // they wait for their HSMs
			token, fast := hsmtest.NewFast(t, c.hsm)
			s, _ := open(t, sessions(0, token.URI))
			underDemand(t, s, 64)
			eventually(t, "as many as pay", func() bool { return s.Usage().Sessions >= c.least })
			before, _ := fast.Spent()
			eventually(t, "measured once more", func() bool { n, _ := fast.Spent(); return n > before+300 })
			eventually(t, "no more than pay", func() bool {
				n := s.Usage().Sessions
				return n >= c.least && n <= c.most
			})
		})
	}
}

// The number of sessions follows an HSM that becomes slower or faster, or reduces its session limit.
func TestDrillTheNumberOfSessionsChangesWithTheHSM(t *testing.T) {
	t.Parallel()
	slow := hsmtest.FastOptions{Latency: 20 * time.Millisecond}
	token, fast := hsmtest.NewFast(t, slow)
	s, _ := open(t, sessions(0, token.URI))
	underDemand(t, s, 64)
	has := func(least, most int) {
		t.Helper()
		eventually(t, fmt.Sprintf("%d to %d sessions", least, most), func() bool {
			n := s.Usage().Sessions
			return n >= least && n <= most
		})
	}
	has(8, 64)
	slow.Engines = 1
	fast.Set(slow)
	has(1, 4)
	slow.Engines = 0
	fast.Set(slow)
	has(8, 64)
}

// A fixed number of sessions is kept.
func TestANumberOfSessionsThatIsSetStays(t *testing.T) {
	token, fast := hsmtest.NewFast(t, hsmtest.FastOptions{Latency: time.Millisecond})
	s, _ := open(t, sessions(3, token.URI))
	underDemand(t, s, 16)
	eventually(t, "in use", func() bool { n, _ := fast.Spent(); return n > 1500 })
	if u := s.Usage(); u.Sessions != 3 || u.MostSessions != 3 {
		t.Errorf("%d sessions of at most %d, not 3", u.Sessions, u.MostSessions)
	}
}

// underDemand signs on this many goroutines until the test ends.
func underDemand(t *testing.T, s *worker.Signer, clients int) {
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for ctx.Err() == nil {
				if _, err := s.Sign(ctx, randomDigest()); err != nil && ctx.Err() == nil {
					t.Error(err)
					return
				}
			}
		})
	}
	t.Cleanup(func() { cancel(); all.Wait() })
}
