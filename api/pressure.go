package api

import (
	"math"
	"sync"
	"time"
)

const (
	pressureStep = time.Second // minimum time between two changes of the factor
	slower       = 0.5         // multiplies the factor at each step while saturated
	faster       = 1.25        // multiplies the factor for each second otherwise
	leastFactor  = 1.0 / 16
)

// pressure is the part of the default rates that is currently allowed. It shrinks with each second of saturation and
// grows back with each other second. It is safe for concurrent use.
type pressure struct {
	saturated func() bool

	mu   sync.Mutex
	part float64
	at   time.Time // time of the last step
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
