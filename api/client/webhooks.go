package client

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/google/uuid"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance/webhooks"
)

// Webhooks returns all webhooks, sorted by name.
func (a *Admin) Webhooks(ctx context.Context) ([]webhooks.Status, error) {
	var answer wire.Webhooks
	err := a.do(ctx, call{method: http.MethodGet, path: "/webhooks", into: &answer})
	return answer.Webhooks, err
}

// CreateWebhook makes a webhook and returns it with its secret. The secret cannot be retrieved again.
func (a *Admin) CreateWebhook(ctx context.Context, r webhooks.Request) (made wire.WebhookSecret, err error) {
	err = a.do(ctx, call{method: http.MethodPost, path: "/webhooks", body: r, into: &made})
	return made, err
}

// RotateWebhook replaces the secret. The previous one signs, too, until the overlap is over.
func (a *Admin) RotateWebhook(ctx context.Context, name string,
	overlap time.Duration) (made wire.WebhookSecret, err error) {
	err = a.do(ctx, call{method: http.MethodPost, path: webhookPath(name) + "/rotate",
		body: wire.RotateWebhook{OverlapSeconds: int64(overlap / time.Second)}, into: &made})
	return made, err
}

// DeleteWebhook deletes a webhook. Events that wait are not sent.
func (a *Admin) DeleteWebhook(ctx context.Context, name string) (deleted webhooks.Status, err error) {
	err = a.do(ctx, call{method: http.MethodDelete, path: webhookPath(name), into: &deleted})
	return deleted, err
}

// TestWebhook sends an event of the type webhook.test.
func (a *Admin) TestWebhook(ctx context.Context, name string) (made webhooks.Delivery, err error) {
	err = a.do(ctx, call{method: http.MethodPost, path: webhookPath(name) + "/test", into: &made})
	return made, err
}

// DisableWebhook makes a webhook send no events until ResumeWebhook.
func (a *Admin) DisableWebhook(ctx context.Context, name string) (disabled webhooks.Status, err error) {
	err = a.do(ctx, call{method: http.MethodPost, path: webhookPath(name) + "/disable", into: &disabled})
	return disabled, err
}

// ResumeWebhook makes a webhook deliver again if it is disabled, and sends the events that wait at once.
func (a *Admin) ResumeWebhook(ctx context.Context, name string) (resumed webhooks.Status, err error) {
	err = a.do(ctx, call{method: http.MethodPost, path: webhookPath(name) + "/resume", into: &resumed})
	return resumed, err
}

// Deliveries returns the newest attempts of a webhook, newest first.
func (a *Admin) Deliveries(ctx context.Context, name string) ([]webhooks.Delivery, error) {
	var answer wire.Deliveries
	err := a.do(ctx, call{method: http.MethodGet, path: webhookPath(name) + "/deliveries", into: &answer})
	return answer.Deliveries, err
}

// Redeliver sends an event of the journal again.
func (a *Admin) Redeliver(ctx context.Context, name string, id uuid.UUID) (made webhooks.Delivery, err error) {
	err = a.do(ctx, call{method: http.MethodPost, path: webhookPath(name) + "/deliveries/" + id.String(), into: &made})
	return made, err
}

func webhookPath(name string) string { return "/webhooks/" + url.PathEscape(name) }
