package api

import (
	"context"
	"strings"
	"time"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/webhooks"
)

func (a *Admin) webhookRoutes() []Route {
	return []Route{
		{Method: fiber.MethodGet, Path: "/webhooks", Handler: a.listWebhooks},
		{Method: fiber.MethodPost, Path: "/webhooks", BodyLimit: adminBodyLimit, Handler: a.createWebhook},
		{Method: fiber.MethodDelete, Path: "/webhooks/:name", Handler: a.deleteWebhook},
		{Method: fiber.MethodPost, Path: "/webhooks/:name/rotate", BodyLimit: adminBodyLimit, Handler: a.rotateWebhook},
		{Method: fiber.MethodPost, Path: "/webhooks/:name/test", Handler: a.testWebhook},
		{Method: fiber.MethodPost, Path: "/webhooks/:name/disable", Handler: a.disableWebhook},
		{Method: fiber.MethodPost, Path: "/webhooks/:name/resume", Handler: a.resumeWebhook},
		{Method: fiber.MethodGet, Path: "/webhooks/:name/deliveries", Handler: a.deliveries},
		{Method: fiber.MethodPost, Path: "/webhooks/:name/deliveries/:id", Handler: a.redeliver},
	}
}

// onWebhooks calls do with the webhooks and the name in the path, and answers with its result.
func (a *Admin) onWebhooks(c *fiber.Ctx, status int,
	do func(ctx context.Context, hooks *webhooks.Hooks, name string) (answer any, err error)) error {
	if a.opts.Webhooks == nil {
		return appliance.Errorf(appliance.CodeNotFound, "this daemon has no webhooks")
	}
	ctx, cancel := a.deadline()
	defer cancel()
	answer, err := do(ctx, a.opts.Webhooks, strings.Clone(c.Params("name")))
	if err != nil {
		return err
	}
	return sendJSON(c, status, answer)
}

func (a *Admin) listWebhooks(c *fiber.Ctx) error {
	return a.onWebhooks(c, fiber.StatusOK, func(ctx context.Context, h *webhooks.Hooks, _ string) (any, error) {
		all, err := h.List(ctx)
		return wire.Webhooks{Webhooks: all}, err
	})
}

func (a *Admin) createWebhook(c *fiber.Ctx) error {
	var request webhooks.Request
	if err := wire.ReadObject(Body(c), &request); err != nil {
		return err
	}
	return a.onWebhooks(c, fiber.StatusCreated, func(ctx context.Context, h *webhooks.Hooks, _ string) (any, error) {
		w, err := h.New(ctx, request, callerOf(c))
		if err == nil {
			err = a.recordFirst(ctx, c, journal.EventWebhookCreated, w.Details())
		}
		if err == nil {
			err = h.Create(ctx, w)
		}
		return secretOf(w), err
	})
}

func secretOf(w webhooks.Webhook) wire.WebhookSecret {
	answer := wire.WebhookSecret{Status: w.Status(webhooks.State{})}
	if len(w.Secrets) > 0 {
		answer.Secret = w.Secrets[0].Symmetric
	}
	return answer
}

func (a *Admin) rotateWebhook(c *fiber.Ctx) error {
	var request wire.RotateWebhook
	if err := wire.ReadObject(Body(c), &request); err != nil {
		return err
	}
	return a.onWebhooks(c, fiber.StatusOK, func(ctx context.Context, h *webhooks.Hooks, name string) (any, error) {
		if err := a.recordWebhook(ctx, c, h, journal.EventWebhookRotated, name); err != nil {
			return nil, err
		}
		w, err := h.Rotate(ctx, name, time.Duration(request.OverlapSeconds)*time.Second)
		return secretOf(w), err
	})
}

// recordWebhook records what is about to be done with a webhook, or returns CodeNotFound.
func (a *Admin) recordWebhook(ctx context.Context, c *fiber.Ctx, h *webhooks.Hooks, kind journal.EventKind,
	name string) error {
	w, _, err := h.Webhook(ctx, name)
	if err != nil {
		return err
	}
	return a.recordFirst(ctx, c, kind, w.Details())
}

func (a *Admin) deleteWebhook(c *fiber.Ctx) error {
	return a.onWebhooks(c, fiber.StatusOK, func(ctx context.Context, h *webhooks.Hooks, name string) (any, error) {
		w, state, err := h.Webhook(ctx, name)
		if err != nil && appliance.CodeOf(err) != appliance.CodeNotFound {
			w.Name, err = name, nil // a definition that cannot be read can be deleted
		}
		if err == nil {
			err = a.recordFirst(ctx, c, journal.EventWebhookDeleted, w.Details())
		}
		if err == nil {
			err = h.Delete(ctx, name)
		}
		return w.Status(state), err
	})
}

func (a *Admin) disableWebhook(c *fiber.Ctx) error {
	return a.switchWebhook(c, journal.EventWebhookDisabled, (*webhooks.Hooks).Disable)
}

func (a *Admin) resumeWebhook(c *fiber.Ctx) error {
	return a.switchWebhook(c, journal.EventWebhookResumed, (*webhooks.Hooks).Resume)
}

// switchWebhook records that a webhook is disabled or enabled, then does it.
func (a *Admin) switchWebhook(c *fiber.Ctx, kind journal.EventKind,
	do func(*webhooks.Hooks, context.Context, string) error) error {
	return a.onWebhooks(c, fiber.StatusOK, func(ctx context.Context, h *webhooks.Hooks, name string) (any, error) {
		if err := a.recordWebhook(ctx, c, h, kind, name); err != nil {
			return nil, err
		}
		if err := do(h, ctx, name); err != nil {
			return nil, err
		}
		w, state, err := h.Webhook(ctx, name)
		return w.Status(state), err
	})
}

func (a *Admin) testWebhook(c *fiber.Ctx) error {
	return a.onWebhooks(c, fiber.StatusOK, func(ctx context.Context, h *webhooks.Hooks, name string) (any, error) {
		return h.Test(ctx, name)
	})
}

func (a *Admin) deliveries(c *fiber.Ctx) error {
	return a.onWebhooks(c, fiber.StatusOK, func(ctx context.Context, h *webhooks.Hooks, name string) (any, error) {
		all, err := h.Deliveries(ctx, name)
		return wire.Deliveries{Deliveries: all}, err
	})
}

func (a *Admin) redeliver(c *fiber.Ctx) error {
	id, err := parseID(c.Params("id"))
	if err != nil {
		return err
	}
	return a.onWebhooks(c, fiber.StatusOK, func(ctx context.Context, h *webhooks.Hooks, name string) (any, error) {
		return h.Redeliver(ctx, name, id)
	})
}
