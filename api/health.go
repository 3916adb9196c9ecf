package api

import (
	"context"
	"maps"
	"time"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
)

// healthz tells only that the process answers.
func (s *Server) healthz(c *fiber.Ctx) error {
	return sendJSON(c, fiber.StatusOK, wire.Health{Status: "ok"})
}

// readyTimeout bounds a probe. It is about as long as load balancers wait.
const readyTimeout = 3 * time.Second

func (s *Server) readyz(c *fiber.Ctx) error {
	ctx, cancel := context.WithTimeout(s.base, readyTimeout)
	defer cancel()
	h := readiness(ctx, s.attestor, s.opts.ReplicaReady)
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

func readiness(ctx context.Context, a *appliance.Attestor, replica func() error) wire.Health {
	h := wire.Health{Status: "ok", Failing: map[string]appliance.Code{}}
	for part, err := range failing(ctx, a, replica) {
		h.Status, h.Failing[part] = "unavailable", appliance.CodeOf(err)
	}
	return h
}

// failing returns the errors of the parts that are not ready, by the name of the part. replica may be nil.
func failing(ctx context.Context, a *appliance.Attestor, replica func() error) map[string]error {
	errs := map[string]error{"hsm": a.Signer.Ready(ctx), "journal": a.Journal.Ready(ctx)}
	if replica != nil {
		errs["replica"] = replica()
	}
	maps.DeleteFunc(errs, func(_ string, err error) bool { return err == nil })
	return errs
}
