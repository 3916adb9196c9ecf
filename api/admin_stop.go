package api

import (
	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
)

func (a *Admin) stopped(c *fiber.Ctx) error {
	if a.opts.Stop == nil {
		return errNoStop()
	}
	return sendJSON(c, fiber.StatusOK, a.opts.Stop.State())
}

// pause answers once nothing is attested any more: what is appended later is refused, on all appliances that share the store.
func (a *Admin) pause(c *fiber.Ctx) error {
	if a.opts.Stop == nil {
		return errNoStop()
	}
	var request wire.Pause
	if err := wire.ReadObject(Body(c), &request); err != nil {
		return err
	}
	ctx, cancel := a.deadline()
	defer cancel()
	by := callerOf(c)
	if err := a.opts.Stop.Pause(ctx, request.Reason, by); err != nil {
		return err
	}
	a.logger.Warn("attesting is paused", "reason", request.Reason, "by", by)
	a.happened(c, appliance.EventPaused, map[string]string{"reason": request.Reason})
	return sendJSON(c, fiber.StatusOK, a.opts.Stop.State())
}

func (a *Admin) resume(c *fiber.Ctx) error {
	if a.opts.Stop == nil {
		return errNoStop()
	}
	ctx, cancel := a.deadline()
	defer cancel()
	ended, err := a.opts.Stop.Resume(ctx)
	if err != nil {
		return err
	}
	a.logger.Warn("attesting goes on", "by", callerOf(c), "was_paused", ended.Paused != nil, "was_halted", ended.Halted != nil)
	if details := ended.Details(); details != nil {
		a.happened(c, appliance.EventResumed, details)
	}
	return sendJSON(c, fiber.StatusOK, ended)
}

func errNoStop() error {
	return appliance.Errorf(appliance.CodeNotFound, "there is nothing to stop here")
}
