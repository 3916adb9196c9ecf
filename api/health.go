package api

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"sync"
	"time"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/attest"
)

// healthz reports only that the process answers.
func (s *Server) healthz(c *fiber.Ctx) error {
	return sendJSON(c, fiber.StatusOK, wire.Health{Status: "ok"})
}

const (
	// readyTimeout bounds one readiness check. It is about as long as load balancers wait.
	readyTimeout = 3 * time.Second
	// readyGrace is extra time for parts that answer only when readyTimeout ends.
	readyGrace = 100 * time.Millisecond
	// readyFor is how long the result of a check is reused.
	readyFor = time.Second
)

func (s *Server) readyz(c *fiber.Ctx) error {
	h := s.ready.now()
	if s.stopping.Load() {
		h.Status = "shutting down"
		c.Context().SetConnectionClose()
	}
	if h.Status == "ok" {
		return sendJSON(c, fiber.StatusOK, h)
	}
	c.Set(fiber.HeaderRetryAfter, "2")
	return sendJSON(c, fiber.StatusServiceUnavailable, h)
}

// readiness caches whether the parts are ready. It checks at most once per readyFor, with one goroutine, however many
// probes arrive. So probes put no load on the HSM.
type readiness struct {
	check  func(ctx context.Context) map[string]error
	base   context.Context
	clock  func() time.Time
	logger *slog.Logger

	mu      sync.Mutex
	health  wire.Health
	at      time.Time     // when health was found
	looking chan struct{} // closed when the running check ends; nil if none runs
	begun   time.Time     // start of the running check
}

// unanswered is the health of parts that did not answer in time.
func unanswered() wire.Health {
	return wire.Health{Status: "unavailable",
		Failing: map[string]appliance.Code{"hsm": appliance.CodeTimeout, "journal": appliance.CodeTimeout}}
}

// now returns a health that is less than readyFor old, or waits for a new check. If the check takes longer than
// readyTimeout, now reports that the parts are unavailable. Callers that join a running check wait only for its
// remaining time.
func (r *readiness) now() wire.Health {
	r.mu.Lock()
	if age := r.clock().Sub(r.at); !r.at.IsZero() && age >= 0 && age < readyFor {
		defer r.mu.Unlock()
		return r.health
	}
	if r.looking == nil {
		r.looking, r.begun = make(chan struct{}), time.Now()
		go r.refresh(r.looking)
	}
	looking, left := r.looking, readyTimeout+readyGrace-time.Since(r.begun)
	r.mu.Unlock()
	late := time.NewTimer(left)
	defer late.Stop()
	select {
	case <-looking:
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.health
	case <-late.C:
		return unanswered()
	}
}

func (r *readiness) refresh(done chan struct{}) {
	ctx, cancel := context.WithTimeout(r.base, readyTimeout)
	defer cancel()
	h := wire.Health{Status: "ok", Failing: map[string]appliance.Code{}}
	defer func() {
		if p := recover(); p != nil { // this goroutine has no handler that recovers
			r.logger.Error("panic", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			h = unanswered()
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.health, r.at, r.looking = h, r.clock(), nil
		close(done)
	}()
	for part, err := range r.check(ctx) {
		h.Status, h.Failing[part] = "unavailable", appliance.CodeOf(err)
	}
}

// failing returns the errors of the parts that are not ready, by the name of the part. It skips nil functions in
// others.
func failing(ctx context.Context, a *attest.Attestor, others map[string]func() error) map[string]error {
	errs := map[string]error{"hsm": a.DefaultKey().Signer.Ready(ctx), "journal": a.Journal.Ready(ctx)}
	if a.Stopped != nil {
		errs["stop"] = a.Stopped()
	}
	for part, ready := range others {
		if ready != nil {
			errs[part] = ready()
		}
	}
	maps.DeleteFunc(errs, func(_ string, err error) bool { return err == nil })
	return errs
}
