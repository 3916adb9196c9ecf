package api

import (
	"context"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/quorum"
)

// Quorum asks the other members of a quorum; see quorum.Quorum.
type Quorum interface {
	Status(ctx context.Context) quorum.Status
	Test(ctx context.Context) quorum.Status
}

func (a *Admin) quorumRoutes() []Route {
	return []Route{
		{Method: fiber.MethodGet, Path: "/quorum", Handler: a.quorum(Quorum.Status)},
		{Method: fiber.MethodPost, Path: "/quorum/test", Handler: a.quorum(Quorum.Test)},
	}
}

func (a *Admin) quorum(ask func(Quorum, context.Context) quorum.Status) fiber.Handler {
	return func(c *fiber.Ctx) error {
		if a.opts.Quorum == nil {
			return appliance.Errorf(appliance.CodeNotFound, "this appliance signs alone (quorum.threshold)")
		}
		ctx, cancel := a.deadline()
		defer cancel()
		return sendJSON(c, fiber.StatusOK, ask(a.opts.Quorum, ctx))
	}
}
