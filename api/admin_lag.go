package api

import (
	"context"
	"sync"
	"time"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance/index/follower"
)

// lagHistory keeps one hour of lag in memory.
const (
	lagStep  = 10 * time.Second
	lagSteps = 360
)

// lagHistory holds the replica's lag at each of the last steps. It is safe for concurrent use.
type lagHistory struct {
	mu    sync.Mutex
	steps []*float64 // in seconds, oldest first; nil if the lag was unknown
	last  time.Time  // time of the newest step
}

// run records the follower's lag at each step until ctx ends.
func (h *lagHistory) run(ctx context.Context, of *follower.Follower, now func() time.Time) {
	tick := time.NewTicker(lagStep)
	defer tick.Stop()
	for {
		h.add(now(), of.Status().LagSeconds)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (h *lagHistory) add(at time.Time, seconds *float64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.steps) == lagSteps {
		h.steps = append(h.steps[:0], h.steps[1:]...)
	}
	h.steps, h.last = append(h.steps, seconds), at
}

func (h *lagHistory) samples() wire.ReplicaLag {
	h.mu.Lock()
	defer h.mu.Unlock()
	return wire.ReplicaLag{StepSeconds: int64(lagStep.Seconds()), Until: h.last.UTC(),
		LagSeconds: append([]*float64{}, h.steps...)}
}

// replicaLag answers with the replica's lag over the past hour.
func (a *Admin) replicaLag(c *fiber.Ctx) error {
	if err := a.requireFollower(); err != nil {
		return err
	}
	return sendJSON(c, fiber.StatusOK, a.lag.samples())
}
