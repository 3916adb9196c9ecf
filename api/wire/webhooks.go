package wire

import "github.com/attestd/attestd/appliance/webhooks"

// Webhooks is the answer of GET /webhooks, sorted by name.
type Webhooks struct {
	Webhooks []webhooks.Status `json:"webhooks"`
}

// WebhookSecret is the answer of POST /webhooks and POST /webhooks/:name/rotate: the only answers with a secret.
type WebhookSecret struct {
	webhooks.Status
	Secret string `json:"secret"` // whsec_ and base64; verifies v1
}

// RotateWebhook is the body of POST /webhooks/:name/rotate.
type RotateWebhook struct {
	OverlapSeconds int64 `json:"overlapSeconds"` // for which the previous secret signs, too
}

// Deliveries is the answer of GET /webhooks/:name/deliveries, newest first.
type Deliveries struct {
	Deliveries []webhooks.Delivery `json:"deliveries"`
}
