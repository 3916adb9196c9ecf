package api

import (
	"bytes"
	"runtime/pprof"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/sinks"
)

func (a *Admin) hsm(c *fiber.Ctx) error {
	if a.opts.HSMStatus == nil {
		return appliance.Errorf(appliance.CodeNotFound, "this daemon does not use an HSM")
	}
	ctx, cancel := a.deadline()
	defer cancel()
	status, err := a.opts.HSMStatus(ctx)
	if err != nil {
		return err
	}
	return sendJSON(c, fiber.StatusOK, status)
}

func (a *Admin) cluster(c *fiber.Ctx) error {
	if a.opts.Cluster == nil {
		return appliance.Errorf(appliance.CodeNotFound,
			"not clustered: the journal is a local file (store.url is not set)")
	}
	ctx, cancel := a.deadline()
	defer cancel()
	status, err := a.opts.Cluster(ctx)
	if err != nil {
		return err
	}
	status.Failing = make(map[string]string)
	for part, err := range failing(ctx, a.attestor, nil) {
		status.Failing[part] = err.Error()
	}
	return sendJSON(c, fiber.StatusOK, status)
}

// sinks answers with the state of each audit sink.
func (a *Admin) sinks(c *fiber.Ctx) error {
	answer := wire.Sinks{Sinks: []sinks.Status{}}
	if a.opts.Sinks != nil {
		answer.Sinks = a.opts.Sinks()
	}
	return sendJSON(c, fiber.StatusOK, answer)
}

// reload loads the configuration again. It answers once the configuration is in effect or refused.
func (a *Admin) reload(c *fiber.Ctx) error {
	if a.opts.Reload == nil {
		return appliance.Errorf(appliance.CodeNotFound, "this daemon cannot reload its configuration")
	}
	needRestart, err := a.opts.Reload(callerOf(c))
	switch appliance.CodeOf(err) {
	case "":
	// The caller may retry unchanged.
	case appliance.CodeJournalUnavailable, appliance.CodeJournalLost, appliance.CodeOverloaded:
		return err
	default:
		return appliance.Errorf(CodeReloadRefused,
			"the configuration is invalid; the old one stays in effect").Because(err)
	}
	if needRestart == nil {
		needRestart = []string{}
	}
	return sendJSON(c, fiber.StatusOK, wire.Reloaded{NeedRestart: needRestart})
}

// profile answers with a profile of the daemon as text: goroutine or heap. It holds names of functions and counts, but
// no contents of memory.
func (a *Admin) profile(c *fiber.Ctx) error {
	name := c.Params("name")
	if name != "goroutine" && name != "heap" {
		return appliance.Errorf(appliance.CodeNotFound, "there is no such profile: use goroutine or heap")
	}
	var text bytes.Buffer
	if err := pprof.Lookup(name).WriteTo(&text, 1); err != nil {
		return err
	}
	c.Context().Response.Header.SetContentType("text/plain; charset=utf-8")
	return c.Send(text.Bytes())
}
