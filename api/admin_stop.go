package api

import (
	"maps"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/stop"
)

func (a *Admin) stopped(c *fiber.Ctx) error {
	if a.opts.Stop == nil {
		return errNoStop()
	}
	return sendJSON(c, fiber.StatusOK, a.opts.Stop.State())
}

// pause answers once attesting has stopped. Every later append is refused, on all appliances that share the store.
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
	if err := stop.CheckReason(request.Reason); err != nil {
		return err
	}
	if err := a.recordOrQueue(c, journal.EventPaused, map[string]string{"reason": request.Reason}); err != nil {
		return err
	}
	if err := a.opts.Stop.Pause(ctx, request.Reason, by); err != nil {
		return err
	}
	a.logger.Warn("attesting is paused", "reason", request.Reason, "by", by)
	return sendJSON(c, fiber.StatusOK, a.opts.Stop.State())
}

func (a *Admin) resume(c *fiber.Ctx) error {
	if a.opts.Stop == nil {
		return errNoStop()
	}
	ctx, cancel := a.deadline()
	defer cancel()
	recorded := a.opts.Stop.State().Details()
	if recorded != nil {
		if err := a.recordFirst(ctx, c, journal.EventResumed, recorded); err != nil {
			return err
		}
	}
	ended, err := a.opts.Stop.Resume(ctx)
	if err != nil {
		return err
	}
	a.logger.Warn("attesting resumed", "by", callerOf(c), "was_paused", ended.Paused != nil,
		"was_halted", ended.Halted != nil)
	// stopped again since recorded was read
	if details := ended.Details(); details != nil && !maps.Equal(details, recorded) {
		if err := a.recordOrQueue(c, journal.EventResumed, details); err != nil {
			return err
		}
	}
	return sendJSON(c, fiber.StatusOK, ended)
}

func errNoStop() error {
	return appliance.Errorf(appliance.CodeNotFound, "this daemon cannot pause attesting")
}
