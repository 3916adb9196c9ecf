package api

import (
	"context"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/witness"
)

// Witnesses is implemented by *witness.Gatherer.
type Witnesses interface {
	Published(ctx context.Context) ([]byte, error)
	Prove(ctx context.Context, index int64) (journal.InclusionProof, error)
	Status() witness.Status
}

// witnessTimeout bounds how long an operator's command waits for witnesses. It is shorter than adminTimeout, which
// bounds the request.
const witnessTimeout = adminTimeout * 2 / 3

// published returns the checkpoint that the server shows to clients.
func published(ctx context.Context, j journal.Journal, witnesses Witnesses) ([]byte, error) {
	if witnesses == nil {
		return j.Checkpoint(ctx)
	}
	return witnesses.Published(ctx)
}

func (a *Admin) published(c *fiber.Ctx) error {
	ctx, cancel := a.deadline()
	defer cancel()
	signed, err := published(ctx, a.attestor.Journal, a.opts.Witnesses)
	if err != nil {
		return err
	}
	c.Context().Response.Header.SetContentType("text/plain; charset=utf-8")
	return c.Send(signed)
}

func (a *Admin) witnesses(c *fiber.Ctx) error {
	if a.opts.Witnesses == nil {
		return sendJSON(c, fiber.StatusOK, witness.Status{})
	}
	return sendJSON(c, fiber.StatusOK, a.opts.Witnesses.Status())
}

func (a *Admin) proveWitnessed(c *fiber.Ctx) error {
	if a.opts.Witnesses == nil {
		return appliance.Errorf(appliance.CodeNotFound, "witnesses are not configured: set journal.witnesses")
	}
	ctx, cancel := a.deadline()
	defer cancel()
	e, err := a.find(ctx, c)
	if err != nil {
		return err
	}
	waiting, stop := context.WithTimeout(ctx, witnessTimeout)
	defer stop()
	proof, err := a.opts.Witnesses.Prove(waiting, e.Index)
	if err != nil {
		return err
	}
	return sendJSON(c, fiber.StatusOK, wire.ProvenEntry{Entry: wire.NewEntry(e), Proof: proof})
}
