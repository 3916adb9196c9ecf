package api

import (
	"strings"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/appliance"
)

// keyView is an APIKey as it may be shown: without the hash of its secret.
type keyView struct {
	appliance.APIKey
	SecretHash struct{} `json:"secretHash,omitzero"` // hides the embedded one
}

func view(k appliance.APIKey) keyView { return keyView{APIKey: k} }

func (a *Admin) createKey(c *fiber.Ctx) error {
	var request appliance.KeyRequest
	if err := unmarshalStrict(c.Body(), &request); err != nil {
		return err
	}
	key, token, err := appliance.NewAPIKey(request, a.now())
	if err != nil {
		return err
	}
	ctx, cancel := a.deadline()
	defer cancel()
	if err := a.attestor.Keys.Create(ctx, key); err != nil {
		return err
	}
	return sendJSON(c, fiber.StatusCreated, struct {
		Key   keyView `json:"key"`
		Token string  `json:"token"`
	}{view(key), token})
}

func (a *Admin) listKeys(c *fiber.Ctx) error {
	ctx, cancel := a.deadline()
	defer cancel()
	keys, err := a.attestor.Keys.List(ctx)
	if err != nil {
		return err
	}
	views := make([]keyView, len(keys))
	for i, k := range keys {
		views[i] = view(k)
	}
	return sendJSON(c, fiber.StatusOK, struct {
		Keys []keyView `json:"keys"`
	}{views})
}

func (a *Admin) revokeKey(c *fiber.Ctx) error {
	ctx, cancel := a.deadline()
	defer cancel()
	key, err := a.attestor.Keys.Revoke(ctx, strings.Clone(c.Params("id")), a.now())
	if err != nil {
		return err
	}
	return sendJSON(c, fiber.StatusOK, struct {
		Key keyView `json:"key"`
	}{view(key)})
}
