package api

import (
	"strings"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/attest"
	"github.com/attestd/attestd/appliance/journal"
)

func (a *Admin) createKey(c *fiber.Ctx) error {
	var request appliance.KeyRequest
	if err := wire.ReadObject(Body(c), &request); err != nil {
		return err
	}
	if err := attest.CheckBinding(a.attestor.AttestorKeys(), request.Attestor); err != nil {
		return err
	}
	key, token, err := appliance.NewAPIKey(request, a.now())
	if err != nil {
		return err
	}
	ctx, cancel := a.deadline()
	defer cancel()
	keys, err := a.attestor.Keys.List(ctx)
	if err != nil {
		return err
	}
	if err := appliance.CheckNewName(keys, key.Name, a.now()); err != nil {
		return err
	}
	if err := a.recordFirst(ctx, c, journal.EventKeyCreated, key.Details()); err != nil {
		return err
	}
	if err := a.attestor.Keys.Create(ctx, key); err != nil {
		return err
	}
	return sendJSON(c, fiber.StatusCreated, wire.CreatedKey{Key: wire.NewKey(key), Token: token})
}

func (a *Admin) listKeys(c *fiber.Ctx) error {
	ctx, cancel := a.deadline()
	defer cancel()
	keys, err := a.attestor.Keys.List(ctx)
	if err != nil {
		return err
	}
	answer := wire.Keys{Keys: make([]wire.Key, len(keys))}
	for i, k := range keys {
		answer.Keys[i] = wire.NewKey(k)
	}
	return sendJSON(c, fiber.StatusOK, answer)
}

func (a *Admin) keyUse(c *fiber.Ctx) error {
	counts, until := a.attestor.Uses.Days(a.now())
	return sendJSON(c, fiber.StatusOK,
		wire.KeyUse{StepSeconds: int64(attest.KeyUseStep.Seconds()), Until: until, Keys: counts})
}

func (a *Admin) revokeKey(c *fiber.Ctx) error {
	ctx, cancel := a.deadline()
	defer cancel()
	key, err := a.attestor.Keys.Key(ctx, strings.Clone(c.Params("id")))
	if err != nil {
		return err
	}
	if err := a.recordOrQueue(c, journal.EventKeyRevoked, key.Details()); err != nil {
		return err
	}
	if key, err = a.attestor.Keys.Revoke(ctx, key.ID, a.now()); err != nil {
		return err
	}
	return sendJSON(c, fiber.StatusOK, wire.ChangedKey{Key: wire.NewKey(key)})
}

func (a *Admin) bindKey(c *fiber.Ctx) error {
	var request wire.BindKey
	if err := wire.ReadObject(Body(c), &request); err != nil {
		return err
	}
	if err := attest.CheckBinding(a.attestor.AttestorKeys(), request.Attestor); err != nil {
		return err
	}
	ctx, cancel := a.deadline()
	defer cancel()
	key, err := a.attestor.Keys.Key(ctx, strings.Clone(c.Params("id")))
	if err != nil {
		return err
	}
	key.Attestor = request.Attestor
	if err := a.recordFirst(ctx, c, journal.EventKeyBound, key.Details()); err != nil {
		return err
	}
	if key, err = a.attestor.Keys.Bind(ctx, key.ID, request.Attestor); err != nil {
		return err
	}
	return sendJSON(c, fiber.StatusOK, wire.ChangedKey{Key: wire.NewKey(key)})
}
