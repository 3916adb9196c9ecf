package api

import (
	"math"
	"sync"
	"time"
)

const (
	pressureStep = time.Second // how often the factor changes, at most
	slower       = 0.5         // the factor of a step while saturated
	faster       = 1.25        // the factor of each second otherwise
	leastFactor  = 1.0 / 16
)

// pressure is the part of the usual rates that is allowed now. It shrinks with each second in which more is asked for than can be
// done, and grows again with each other one. It is safe for concurrent use.
type pressure struct {
	saturated func() bool

	mu   sync.Mutex
	part float64
	at   time.Time // of the last step
}

// factor returns the part that is allowed at now, between leastFactor and 1.
func (p *pressure) factor(now time.Time) float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	since := now.Sub(p.at)
	if since >= 0 && since < pressureStep {
		return p.part
	}
	p.at = now
	if p.saturated() {
		p.part = max(leastFactor, p.part*slower)
	} else {
		p.part = min(1, p.part*math.Pow(faster, max(1, since.Seconds())))
	}
	return p.part
}
