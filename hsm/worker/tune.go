package worker

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/attestd/attestd/hsm"
)

// A tuner finds how many sessions an HSM has use for, from the requests that are made anyway: nothing is signed to measure.
//
// While all sessions are busy, it tries twice as many, one trial at a time. They stay if the HSM then answers more in
// proportion; else they are closed, and the next trial is half of them, which stays if the HSM answers as many. What ends in
// vain is tried again after a pause that doubles each time, for HSMs and their other clients change. Between what it takes to
// have more sessions and to have fewer there is room, so that the number rests.
const (
	tuneRound = 150 * time.Millisecond // that a number of sessions is measured, at least
	tuneCalls = 20                     // for each session, likewise
	busyPart  = 0.8                    // of the time that sessions are busy when they are all needed

	growthPays  = 0.2  // what doubling the sessions must add to the rate
	shrinkCosts = 0.03 // what halving them may take from it

	leastRest = time.Second // after a trial in vain
	mostRest  = 5 * time.Minute
)

// A nil *tuner does nothing.
type tuner struct {
	resize func(n int) (int, error)
	log    *slog.Logger
	began  time.Time // of the process: what the clock counts from

	// Of the round that is measured.
	done  *loopWords   // calls, and how long sessions were busy with them
	since atomic.Int64 // nanoseconds
	size  atomic.Int64 // sessions; 0 while there is no round

	climb climb // owned by whoever has set size to 0
}

func newTuner(done *loopWords, resize func(int) (int, error), log *slog.Logger, u hsm.Usage) *tuner {
	t := &tuner{done: done, resize: resize, log: log, began: time.Now(), climb: climb{size: u.Sessions, most: u.MostSessions, rest: leastRest}}
	t.begin()
	return t
}

func (t *tuner) begin() {
	t.done.calls.Store(0)
	t.done.busy.Store(0)
	t.since.Store(int64(time.Since(t.began)))
	t.size.Store(int64(t.climb.size))
}

// look is called after a few requests. When it ends a round, it goes on in the background: opening a session can take its time.
func (t *tuner) look() {
	if t == nil {
		return
	}
	calls, size := t.done.calls.Load(), t.size.Load()
	busy := time.Duration(t.done.busy.Load())
	if size == 0 || calls < tuneCalls*size {
		return
	}
	elapsed := time.Since(t.began) - time.Duration(t.since.Load())
	if elapsed < tuneRound || !t.size.CompareAndSwap(size, 0) {
		return
	}
	rate, part := float64(calls)/elapsed.Seconds(), float64(busy)/float64(elapsed)/float64(size)
	if next := t.climb.next(rate, part, time.Since(t.began)); next != int(size) {
		go t.change(int(size), next, rate)
		return
	}
	t.begin()
}

// change makes the sessions n, or as many as the token gives.
func (t *tuner) change(from, n int, rate float64) {
	got, err := t.resize(n)
	t.log.Debug("HSM sessions", "from", from, "to", got, "signatures_per_second", int(rate), "error", err)
	t.climb.reached(got, time.Since(t.began))
	t.begin()
}

// climb decides how many sessions there are.
type climb struct {
	size, most int
	trial      trial
	down       bool // the next trial is half of the sessions
	rest       time.Duration
	until      time.Duration // nothing is tried before
}

// trial is what was before the trial under way; the zero trial is none.
type trial struct {
	size int
	rate float64
}

// pays says whether it is better to have so many sessions, at that rate.
func (before trial) pays(size int, rate float64) bool {
	if more := float64(size)/float64(before.size) - 1; more > 0 {
		return rate >= before.rate*(1+growthPays*more)
	}
	return rate >= before.rate*(1-shrinkCosts)
}

// next returns how many sessions there shall be after a round at that rate, in which they were busy for that part of the time.
func (c *climb) next(rate, part float64, now time.Duration) int {
	if before := c.trial; before.size != 0 {
		c.trial = trial{}
		if !before.pays(c.size, rate) {
			c.size = before.size
			c.turn(now)
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
		c.turn(now)
		return n
	}
	c.trial, c.size = trial{c.size, rate}, n
	return n
}

// reached tells how many sessions there are, if the token does not give as many as there should be.
func (c *climb) reached(n int, now time.Duration) {
	if n == c.trial.size {
		c.trial = trial{}
		c.turn(now)
	}
	c.size = n
}

// turn rests, and then tries the other way.
func (c *climb) turn(now time.Duration) {
	c.until, c.rest, c.down = now+c.rest, min(2*c.rest, mostRest), !c.down
}
