package worker

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// modelHSM is a model of an HSM. Each session takes the latency, engines signatures run concurrently, and the
// processors limit the rate per second.
type modelHSM struct {
	latency time.Duration
	engines int // 0 means one for each session
	most    int // sessions that the token gives; 0 means any number
	limit   float64
	noise   float64 // fraction of the rounds in which the machine is busy otherwise
}

func (m modelHSM) rate(sessions int, r *rand.Rand) float64 {
	atOnce := sessions
	if m.engines > 0 {
		atOnce = min(sessions, m.engines)
	}
	rate := min(float64(atOnce)/m.latency.Seconds(), m.limit)
	if r.Float64() < m.noise {
		rate *= 0.1 + 0.9*r.Float64()
	}
	return rate
}

// run lets climb choose the number of sessions for an hour, and returns how long it had each number.
func (m modelHSM) run(began time.Duration, c *adaptiveSize, r *rand.Rand) map[int]time.Duration {
	had := map[int]time.Duration{}
	for now := began; now < began+time.Hour; {
		was, rate := c.size, m.rate(c.size, r)
		round := max(tuneRound, time.Duration(tuneCalls*float64(was)/rate*float64(time.Second)))
		now += round
		had[was] += round
		if n := c.next(rate, 1, now); n != was {
			if m.most > 0 {
				n = min(n, m.most)
			}
			c.reached(n, now)
		}
	}
	return had
}

// within returns how long the number of sessions was in the range.
func within(had map[int]time.Duration, least, most int) (d time.Duration) {
	for n, during := range had {
		if n >= least && n <= most {
			d += during
		}
	}
	return d
}

// For every kind of HSM, the number of sessions is useful most of the time, even if every fifth measurement is
// disturbed.
func TestTheSessionsAreAsManyAsPay(t *testing.T) {
	t.Parallel()
	const all = math.MaxInt32
	for name, c := range map[string]struct {
		hsm         modelHSM
		least, most int // sessions, for nine tenths of an hour
	}{
		"many engines":                     {modelHSM{latency: 5 * time.Millisecond, limit: 20_000}, 64, 128},
		"many engines, few processors":     {modelHSM{latency: 5 * time.Millisecond, limit: 1600}, 8, 16},
		"one engine":                       {modelHSM{latency: 5 * time.Millisecond, engines: 1, limit: all}, 1, 2},
		"eight engines":                    {modelHSM{latency: 5 * time.Millisecond, engines: 8, limit: all}, 8, 8},
		"no latency":                       {modelHSM{latency: time.Microsecond, limit: 20_000}, 1, 2},
		"the token gives no more than 12":  {modelHSM{latency: 5 * time.Millisecond, limit: all, most: 12}, 12, 12},
		"the token gives no more than one": {modelHSM{latency: 5 * time.Millisecond, limit: all, most: 1}, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			for _, noise := range []float64{0, 0.2} {
				c.hsm.noise = noise
				for seed := range uint64(20) {
					r := rand.New(rand.NewPCG(seed, 1))
					climb := adaptiveSize{size: min(2, c.most), most: 128, rest: leastRest}
					had := c.hsm.run(0, &climb, r)
					if right := within(had, c.least, c.most); right < 54*time.Minute {
						t.Errorf("noise %v, seed %d: %d to %d sessions for %s of an hour: %v", noise, seed, c.least,
							c.most, right, had)
					}
				}
			}
		})
	}
}

// After an hour without success, trials happen every five minutes, alternately up and down.
func TestTheSessionsFollowAnHSMThatChanges(t *testing.T) {
	t.Parallel()
	r, began := rand.New(rand.NewPCG(1, 1)), time.Duration(0)
	climb := adaptiveSize{size: 2, most: 128, rest: leastRest}
	for _, c := range []struct{ engines, least, most int }{{0, 32, 128}, {2, 2, 4}, {0, 32, 128}} {
		hsm := modelHSM{latency: 20 * time.Millisecond, engines: c.engines, limit: 5000}
		had := hsm.run(began, &climb, r)
		if right := within(had, c.least, c.most); right < 45*time.Minute {
			t.Errorf("from %s on: %d to %d sessions for %s of an hour: %v", began, c.least, c.most, right, had)
		}
		began += time.Hour
	}
}
