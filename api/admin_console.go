package api

import (
	"context"
	"sync"
	"time"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
)

func (a *Admin) consoleRoutes() []Route {
	return []Route{
		{Method: fiber.MethodPost, Path: "/console/links", BodyLimit: adminBodyLimit, Handler: a.consoleLink},
		{Method: fiber.MethodGet, Path: "/settings", Handler: a.settings},
		{Method: fiber.MethodGet, Path: "/doctor", Handler: a.doctor},
	}
}

func (a *Admin) consoleLink(c *fiber.Ctx) error {
	if a.opts.ConsoleLink == nil {
		return appliance.Errorf(appliance.CodeNotFound, "the console is off: set console.listen, for example to "+
			"127.0.0.1:9465, and restart attestd")
	}
	var request wire.ConsoleRole
	if err := wire.ReadObject(Body(c), &request); err != nil {
		return err
	}
	link, err := a.opts.ConsoleLink(request.Role, callerOf(c))
	if err != nil {
		return err
	}
	return sendJSON(c, fiber.StatusCreated, link)
}

func (a *Admin) settings(c *fiber.Ctx) error {
	if a.opts.Settings == nil {
		return appliance.Errorf(appliance.CodeNotFound, "this daemon does not show its settings")
	}
	return sendJSON(c, fiber.StatusOK, wire.Settings{Settings: a.opts.Settings()})
}

const (
	doctorTimeout = 2 * time.Minute
	doctorBeat    = time.Second
)

// doctor ends when its client disconnects, or after doctorTimeout. Only a write shows that a client has disconnected,
// so the stream gets a line each second.
func (a *Admin) doctor(c *fiber.Ctx) error {
	if a.opts.Doctor == nil {
		return appliance.Errorf(appliance.CodeNotFound, "this daemon does not run doctor")
	}
	return streamReport(a, c, func(ctx context.Context, progress func(done, total int64)) (any, error) {
		ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
		defer cancel()
		found := make(chan struct{})
		var beats sync.WaitGroup
		beats.Go(func() {
			beat := time.NewTicker(doctorBeat)
			defer beat.Stop()
			for {
				select {
				case <-beat.C:
					progress(0, -1)
				case <-found:
					return
				}
			}
		})
		defer beats.Wait() // the report must not be written at the same time as a line of progress
		defer close(found)
		return a.opts.Doctor(ctx), nil
	})
}
