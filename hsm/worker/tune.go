package worker

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/attestd/attestd/hsm"
)

// A tuner finds how many sessions an HSM can use. It measures real requests and signs no extra ones.
//
// While all sessions are busy, it tries twice as many, one trial at a time. It keeps them if the rate rises enough.
// Otherwise it closes them, and the next trial is half of the sessions, which it keeps if the rate stays. After a
// failed trial it pauses, and the pause doubles each time, because HSMs and their other clients change. The thresholds
// for more and for fewer sessions differ, so that the number settles.
const (
	tuneRound = 150 * time.Millisecond // minimum time of a measurement
	tuneCalls = 20                     // minimum number of calls per session in a measurement
	busyPart  = 0.8                    // fraction of the time in which sessions are busy if all of them are needed

	growthPays  = 0.2  // minimum gain in rate for doubling the sessions
	shrinkCosts = 0.03 // maximum loss in rate for halving them

	leastRest = time.Second // after a failed trial
	mostRest  = 5 * time.Minute
)

// A nil *tuner does nothing.
type tuner struct {
	resize func(n int) (int, error)
	log    *slog.Logger
	began  time.Time // origin of the times below

	// Of the current round.
	done  *calls
	since atomic.Int64 // nanoseconds
	size  atomic.Int64 // sessions; 0 between rounds

	adaptive adaptiveSize // owned by the goroutine that has set size to 0
}

func newTuner(done *calls, resize func(int) (int, error), log *slog.Logger, u hsm.Usage) *tuner {
	t := &tuner{done: done, resize: resize, log: log, began: time.Now(),
		adaptive: adaptiveSize{size: u.Sessions, most: u.MostSessions, rest: leastRest}}
	t.begin()
	return t
}

func (t *tuner) begin() {
	t.done.number.Store(0)
	t.done.busy.Store(0)
	t.since.Store(int64(time.Since(t.began)))
	t.size.Store(int64(t.adaptive.size))
}

// update is called after each signature. If it ends a round, it changes the sessions in the background, because
// opening a session can take long.
func (t *tuner) update() {
	if t == nil {
		return
	}
	calls, size := t.done.number.Load(), t.size.Load()
	busy := time.Duration(t.done.busy.Load())
	if size == 0 || calls < tuneCalls*size {
		return
	}
	elapsed := time.Since(t.began) - time.Duration(t.since.Load())
	if elapsed < tuneRound || !t.size.CompareAndSwap(size, 0) {
		return
	}
	rate, part := float64(calls)/elapsed.Seconds(), float64(busy)/float64(elapsed)/float64(size)
	if next := t.adaptive.next(rate, part, time.Since(t.began)); next != int(size) {
		go t.change(int(size), next, rate)
		return
	}
	t.begin()
}

// change sets the number of sessions to n, or as many as the token gives.
func (t *tuner) change(from, n int, rate float64) {
	got, err := t.resize(n)
	t.log.Debug("HSM sessions", "from", from, "to", got, "signatures_per_second", int(rate), "error", err)
	t.adaptive.reached(got, time.Since(t.began))
	t.begin()
}

// adaptiveSize is the adaptive choice of the number of sessions.
type adaptiveSize struct {
	size, most int
	trial      trial
	down       bool // the next trial is half of the sessions
	rest       time.Duration
	until      time.Duration // no trial starts before
}

// trial is the state before the current trial; the zero trial means that none is running.
type trial struct {
	size int
	rate float64
}

// pays reports whether this number of sessions at this rate is better than before the trial.
func (before trial) pays(size int, rate float64) bool {
	if more := float64(size)/float64(before.size) - 1; more > 0 {
		return rate >= before.rate*(1+growthPays*more)
	}
	return rate >= before.rate*(1-shrinkCosts)
}

// next returns the number of sessions for the next round. rate and part are the rate of the last round and the fraction
// of its time in which the sessions were busy.
func (c *adaptiveSize) next(rate, part float64, now time.Duration) int {
	if before := c.trial; before.size != 0 {
		c.trial = trial{}
		if !before.pays(c.size, rate) {
			c.size = before.size
			c.reverse(now)
			return c.size
		}
		c.rest = leastRest
	}
	if part < busyPart || now < c.until {
		return c.size
	}
	n := min(2*c.size, c.most)
	if c.down {
		n = max(c.size/2, 1)
	}
	if n == c.size {
		c.reverse(now)
		return n
	}
	c.trial, c.size = trial{c.size, rate}, n
	return n
}

// reached records the actual number of sessions, since the token may give fewer than requested.
func (c *adaptiveSize) reached(n int, now time.Duration) {
	if n == c.trial.size {
		c.trial = trial{}
		c.reverse(now)
	}
	c.size = n
}

// reverse pauses, and then reverses the direction of trials.
func (c *adaptiveSize) reverse(now time.Duration) {
	c.until, c.rest, c.down = now+c.rest, min(2*c.rest, mostRest), !c.down
}
