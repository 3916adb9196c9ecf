package webhooks

import (
	"context"
	"slices"
	"time"
)

// Status is a webhook without its secrets.
type Status struct {
	Request
	Created time.Time   `json:"created"`
	By      string      `json:"by,omitempty"`
	Keys    []PublicKey `json:"keys"` // newest first
	Next    int64       `json:"next"` // index of the first record that was not read
	Waiting int         `json:"waiting"`

	Delivered uint64    `json:"delivered"`
	Failures  uint64    `json:"failures"` // failed attempts
	GivenUp   uint64    `json:"givenUp"`
	Succeeded time.Time `json:"succeeded,omitzero"` // the last success
	Failing   time.Time `json:"failing,omitzero"`   // the first failure since then; zero if an operator disabled the webhook
	LastError string    `json:"lastError,omitempty"`
	Disabled  time.Time `json:"disabled,omitzero"`
	Reason    string    `json:"reason,omitempty"`     // of Disabled
	Operator  bool      `json:"byOperator,omitempty"` // an operator disabled it, so it is not a failure
}

// ByOperator is the reason of a webhook that an operator disabled.
const ByOperator = "an operator disabled it"

// PublicKey verifies the v1a signatures of a webhook.
type PublicKey struct {
	Public string    `json:"publicKey"`      // whpk_ and base64
	Until  time.Time `json:"until,omitzero"` // it was replaced, and signs until then
}

// The states of a webhook in words.
const (
	Works    = "delivers"
	Fails    = "failing"
	Disabled = "disabled"
)

// State returns the state in words.
func (s Status) State() string {
	switch {
	case !s.Disabled.IsZero():
		return Disabled
	case !s.Failing.IsZero():
		return Fails
	}
	return Works
}

// Status returns the webhook without its secrets.
func (w Webhook) Status(s State) Status {
	status := Status{Request: w.Request, Created: w.Created, By: w.By, Keys: make([]PublicKey, len(w.Secrets)),
		Waiting: len(s.Waiting), Delivered: s.Delivered, Failures: s.Failures, GivenUp: s.GivenUp,
		Succeeded: s.Succeeded, Failing: s.Failing, LastError: s.LastError, Disabled: s.Disabled, Reason: s.Reason}
	if !w.Disabled.IsZero() {
		status.Disabled, status.Reason, status.Operator, status.Failing = w.Disabled, ByOperator, true, time.Time{}
	}
	for i, secret := range w.Secrets {
		status.Keys[i] = PublicKey{secret.Public, secret.Until}
	}
	if s.Cursor != nil {
		status.Next = s.Cursor.Next
	}
	return status
}

// List returns all webhooks, sorted by name.
func (h *Hooks) List(ctx context.Context) ([]Status, error) {
	all := []Status{}
	err := h.each(ctx, func(w Webhook, s State) error {
		all = append(all, w.Status(s))
		return nil
	})
	return all, err
}

// Delivering returns the webhooks that this appliance delivers, without asking the store.
func (h *Hooks) Delivering() (all []Status) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, d := range h.deliveries {
		d.mu.Lock()
		all = append(all, d.hook.Status(d.state))
		d.mu.Unlock()
	}
	return all
}

// Deliveries returns the newest attempts of a webhook, newest first, at most 100. Errors: CodeNotFound.
func (h *Hooks) Deliveries(ctx context.Context, name string) ([]Delivery, error) {
	_, state, err := h.Webhook(ctx, name)
	all := append([]Delivery{}, state.Recent...)
	slices.Reverse(all)
	return all, err
}
