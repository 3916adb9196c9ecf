package webhooks

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/mod/sumdb/note"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/events"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/sinks"
)

// Most is the maximum number of webhooks.
const Most = 100

// Journal is the part of journal.Journal that webhooks need.
type Journal interface {
	sinks.Journal
	ByID(ctx context.Context, id uuid.UUID) (journal.Entry, error)
}

// Store stores webhooks by name: a definition, which operators change, and a state, which the appliance that delivers
// changes. Methods return CodeNotFound for a name that is not stored.
type Store interface {
	// HoldWebhooks makes this appliance the one that delivers, or keeps it that for some seconds more. held is false if
	// another appliance delivers.
	HoldWebhooks(ctx context.Context) (held bool, err error)
	// ReleaseWebhooks lets another appliance deliver at once.
	ReleaseWebhooks(ctx context.Context) error

	Webhooks(ctx context.Context, yield func(name string, definition, state []byte) error) error
	CreateWebhook(ctx context.Context, name string, definition, state []byte) error // CodeInvalidField if it exists
	ChangeWebhook(ctx context.Context, name string, definition []byte) error
	DeleteWebhook(ctx context.Context, name string) error
	// SaveWebhookState fails unless this appliance delivers.
	SaveWebhookState(ctx context.Context, name string, state []byte) error
}

// Options configure Hooks.
type Options struct {
	Store    Store
	Journal  Journal
	Verifier note.Verifier // verifies the journal's checkpoints
	Keys     appliance.Keys
	Events   *journal.Events // records that a webhook was disabled; nil records nothing
	Sender   *Sender
	Logger   *slog.Logger
	Now      func() time.Time

	changed func()
}

// Hooks are the webhooks of an appliance. All methods are safe for concurrent use.
type Hooks struct {
	opts    Options
	shipper *sinks.Shipper
	wake    chan struct{} // holds one element if run should look at the store
	stop    context.CancelFunc
	done    chan struct{}

	mu         sync.Mutex // protects the fields below
	deliveries map[string]*delivery
	loaded     map[string]string // definitions; nil while another appliance delivers
	warned     time.Time
}

const (
	holdInterval = time.Second
	holdTimeout  = 2 * time.Second
	warnInterval = time.Minute
	// HoldFor is for how long a Store keeps an appliance as the one that delivers after its last HoldWebhooks.
	HoldFor = 6 * time.Second
)

// Start delivers in the background until Close.
func Start(o Options) *Hooks {
	ctx, stop := context.WithCancel(context.Background())
	h := &Hooks{opts: o, wake: make(chan struct{}, 1), stop: stop, done: make(chan struct{})}
	h.opts.changed = h.signal
	h.shipper = sinks.New(sinks.Options{Journal: o.Journal, Verifier: o.Verifier, Cursors: cursors{h},
		Logger: o.Logger, Now: o.Now})
	go h.run(ctx)
	return h
}

// Close sends the remaining events until ctx ends, and lets another appliance deliver.
func (h *Hooks) Close(ctx context.Context) {
	h.stop()
	<-h.done
	h.shipper.Close(ctx)
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), holdTimeout)
	defer cancel()
	if err := h.opts.Store.ReleaseWebhooks(limited); err != nil {
		h.opts.Logger.Warn("webhooks: another appliance delivers some seconds later", "error", err.Error())
	}
}

func (h *Hooks) signal() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

func (h *Hooks) run(ctx context.Context) {
	defer close(h.done)
	tick := time.NewTicker(holdInterval)
	defer tick.Stop()
	var until time.Time // this appliance delivers
	for ctx.Err() == nil {
		asked := time.Now()
		held, err := h.hold(ctx)
		switch {
		case held:
			until = asked.Add(HoldFor - holdInterval)
			err = h.reload(ctx)
		case err == nil || time.Now().After(until):
			h.leave()
		}
		if err != nil && ctx.Err() == nil {
			h.warn(err)
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		case <-h.wake:
		}
	}
}

func (h *Hooks) hold(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, holdTimeout)
	defer cancel()
	return h.opts.Store.HoldWebhooks(ctx)
}

func (h *Hooks) warn(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now := h.opts.Now(); now.Sub(h.warned) >= warnInterval {
		h.warned = now
		h.opts.Logger.Warn("webhooks: they cannot be read; attesting continues", "error", err.Error())
	}
}

// leave ends the deliveries, because another appliance delivers.
func (h *Hooks) leave() {
	h.mu.Lock()
	idle := h.loaded == nil
	h.deliveries, h.loaded = nil, nil
	h.mu.Unlock()
	if !idle {
		h.shipper.Set(nil)
	}
}

// reload makes the deliveries those of the store, if it has changed.
func (h *Hooks) reload(ctx context.Context) error {
	now, err := h.definitions(ctx)
	if err != nil {
		return err
	}
	h.mu.Lock()
	same := h.loaded != nil && maps.Equal(now, h.loaded) && !h.stale()
	h.mu.Unlock()
	if same {
		return nil
	}
	h.shipper.Set(nil) // from here on, no state changes
	deliveries := make(map[string]*delivery)
	err = h.each(ctx, func(w Webhook, state State) error {
		d := &delivery{opts: &h.opts, hook: w, state: state, told: !state.Disabled.IsZero()}
		if w.Resumed.After(state.Resumed) {
			d.state.resume(w.Resumed)
			d.told = false
			if err := d.save(ctx); err != nil {
				return err
			}
		}
		deliveries[w.Name] = d
		return nil
	})
	if err != nil {
		return err
	}
	h.mu.Lock()
	h.deliveries, h.loaded = deliveries, now
	h.mu.Unlock()
	var all []sinks.Sink
	for _, name := range slices.Sorted(maps.Keys(deliveries)) {
		if d := deliveries[name]; d.hook.Disabled.IsZero() && d.state.Disabled.IsZero() {
			all = append(all, d.sink())
		}
	}
	h.shipper.Set(all)
	return nil
}

// stale reports whether a webhook was disabled since the last reload. The caller holds mu.
func (h *Hooks) stale() bool {
	for _, s := range h.shipper.Status() {
		if d := h.deliveries[s.Name]; d != nil && d.disabled() {
			return true
		}
	}
	return false
}

func (d *delivery) disabled() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.state.Disabled.IsZero()
}

func (h *Hooks) definitions(ctx context.Context) (map[string]string, error) {
	all := make(map[string]string)
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return all, h.opts.Store.Webhooks(ctx, func(name string, definition, _ []byte) error {
		all[name] = string(definition)
		return nil
	})
}

// each calls yield with each webhook in the store, sorted by name.
func (h *Hooks) each(ctx context.Context, yield func(Webhook, State) error) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return h.opts.Store.Webhooks(ctx, func(name string, definition, state []byte) error {
		var w Webhook
		if err := json.Unmarshal(definition, &w); err != nil {
			return fmt.Errorf("webhook %s: %w", name, err)
		}
		s, err := readState(state)
		if err != nil {
			return fmt.Errorf("state of the webhook %s: %w", name, err)
		}
		return yield(w, s)
	})
}

// cursors implements sinks.Cursors with the states of the deliveries.
type cursors struct{ *Hooks }

func (c cursors) delivery(name string) (*delivery, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if d := c.deliveries[name]; d != nil {
		return d, nil
	}
	return nil, fmt.Errorf("another appliance delivers the webhook %s", name)
}

// ReadCursor implements sinks.Cursors.
func (c cursors) ReadCursor(_ context.Context, name string) (at sinks.Cursor, ok bool, err error) {
	d, err := c.delivery(name)
	if err != nil {
		return at, false, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.state.Cursor == nil {
		return at, false, nil
	}
	return *d.state.Cursor, true, nil
}

// WriteCursor implements sinks.Cursors.
func (c cursors) WriteCursor(ctx context.Context, name string, at sinks.Cursor) error {
	d, err := c.delivery(name)
	if err != nil {
		return err
	}
	return d.writeCursor(ctx, at)
}

// New returns a new webhook, which is not stored yet.
//
// Errors: CodeInvalidField, CodeScopeRequired, and CodeNotFound for an unknown API key.
func (h *Hooks) New(ctx context.Context, r Request, by string) (Webhook, error) {
	r.Types, r.Addresses = slices.Clone(r.Types), slices.Clone(r.Addresses)
	if err := r.check(h.opts.Sender.opts.PlainHTTP); err != nil {
		return Webhook{}, err
	}
	if r.KeyID != "" {
		key, err := h.opts.Keys.Key(ctx, r.KeyID)
		if err != nil {
			return Webhook{}, err
		}
		if state := key.State(h.opts.Now()); state != appliance.KeyActive {
			return Webhook{}, invalid("keyId", "the API key is %s", state)
		}
	}
	all, err := h.List(ctx)
	if err != nil {
		return Webhook{}, err
	}
	switch {
	case slices.ContainsFunc(all, func(s Status) bool { return s.Name == r.Name }):
		return Webhook{}, Exists(r.Name)
	case len(all) >= Most:
		return Webhook{}, invalid("name", "there are %d webhooks, which is the maximum", Most)
	}
	return Webhook{Request: r, Created: h.opts.Now().UTC().Truncate(time.Second), By: by,
		Secrets: []Secret{newSecret()}}, nil
}

// Exists is the error for the name of a webhook that is stored already.
func Exists(name string) error { return invalid("name", "a webhook %s exists already", name) }

// Details returns the details of the events about a webhook.
func (w Webhook) Details() map[string]string {
	details := map[string]string{"name": w.Name, "url": withoutQuery(w.URL)}
	if len(w.Types) > 0 {
		details["types"] = strings.Join(w.Types, " ")
	}
	if w.KeyID != "" {
		details["keyId"] = w.KeyID
	}
	return details
}

// Create stores a webhook of New. It gets the events from now on.
func (h *Hooks) Create(ctx context.Context, w Webhook) error {
	tail := sinks.Tail{Journal: h.opts.Journal, Verifier: h.opts.Verifier}
	size, err := tail.Size(ctx)
	if err != nil {
		return err
	}
	definition, errDefinition := json.Marshal(w)
	state, errState := json.Marshal(State{Cursor: &sinks.Cursor{Log: tail.Log(), Next: size}})
	if errDefinition != nil || errState != nil {
		return appliance.Errorf(appliance.CodeInternal, "the webhook cannot be stored").Because(errDefinition)
	}
	defer h.signal()
	return h.opts.Store.CreateWebhook(ctx, w.Name, definition, state)
}

// Webhook returns a webhook and its state, or CodeNotFound.
func (h *Hooks) Webhook(ctx context.Context, name string) (w Webhook, state State, err error) {
	found := false
	err = h.each(ctx, func(one Webhook, s State) error {
		if one.Name == name {
			w, state, found = one, s, true
		}
		return nil
	})
	if err == nil && !found {
		err = NotFound(name)
	}
	return w, state, err
}

// NotFound is the error for the name of a webhook that is not stored.
func NotFound(name string) error {
	return appliance.Errorf(appliance.CodeNotFound, "no webhook %q; list them with: attestd webhook list", name)
}

// Rotate replaces the secret of a webhook. The previous one signs, too, until the overlap is over.
func (h *Hooks) Rotate(ctx context.Context, name string, overlap time.Duration) (Webhook, error) {
	if overlap < 0 || overlap > maxOverlap {
		return Webhook{}, invalid("overlap", "must be 0s to %s", maxOverlap)
	}
	return h.change(ctx, name, func(w *Webhook) { w.rotate(h.opts.Now(), overlap) })
}

// Disable makes a webhook send no events until Resume, which sends those of the meantime, too. The appliance that
// delivers may send events for a second more.
func (h *Hooks) Disable(ctx context.Context, name string) error {
	_, err := h.change(ctx, name, func(w *Webhook) {
		if w.Disabled.IsZero() {
			w.Disabled = h.opts.Now()
		}
	})
	return err
}

// Resume makes a webhook deliver again if it is disabled, and sends the events that wait at once.
func (h *Hooks) Resume(ctx context.Context, name string) error {
	_, err := h.change(ctx, name, func(w *Webhook) { w.Resumed, w.Disabled = h.opts.Now(), time.Time{} })
	return err
}

func (h *Hooks) change(ctx context.Context, name string, change func(*Webhook)) (Webhook, error) {
	w, _, err := h.Webhook(ctx, name)
	if err != nil {
		return w, err
	}
	change(&w)
	definition, err := json.Marshal(w)
	if err != nil {
		return w, err
	}
	defer h.signal()
	return w, h.opts.Store.ChangeWebhook(ctx, name, definition)
}

// Delete deletes a webhook. Events that wait are not sent.
func (h *Hooks) Delete(ctx context.Context, name string) error {
	defer h.signal()
	return h.opts.Store.DeleteWebhook(ctx, name)
}

// Test sends an event of the type webhook.test, which is not in the journal.
func (h *Hooks) Test(ctx context.Context, name string) (Delivery, error) {
	w, _, err := h.Webhook(ctx, name)
	if err != nil {
		return Delivery{}, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return Delivery{}, err
	}
	data, err := json.Marshal(map[string]string{"webhook": name})
	if err != nil {
		return Delivery{}, err
	}
	m, err := message(events.Event{ID: id.String(), Source: h.opts.Verifier.Name(), Type: "webhook.test",
		Time: h.opts.Now().UTC(), Subject: name, Data: data, Index: -1})
	if err != nil {
		return Delivery{}, err
	}
	return h.sendNow(ctx, w, m)
}

// Redeliver sends an event of the journal again. Errors: CodeNotFound, also for an event that the webhook does not get.
func (h *Hooks) Redeliver(ctx context.Context, name string, id uuid.UUID) (Delivery, error) {
	w, _, err := h.Webhook(ctx, name)
	if err != nil {
		return Delivery{}, err
	}
	m, err := (&delivery{opts: &h.opts, hook: w}).load(ctx, id)
	if err != nil {
		return Delivery{}, err
	}
	return h.sendNow(ctx, w, m)
}

// sendNow sends an event outside the queue. If another appliance delivers, the list of deliveries does not have it.
func (h *Hooks) sendNow(ctx context.Context, w Webhook, m sinks.Message) (Delivery, error) {
	r := h.opts.Sender.send(ctx, w, m.ID, m.Text)
	one := Delivery{ID: m.ID, Type: events.Type(m.Kind), Subject: m.Subject, Time: h.opts.Now().UTC(), Status: r.status,
		Milliseconds: r.took.Milliseconds(), Outcome: Delivered}
	if r.err != nil {
		one.Outcome, one.Error = Failed, r.err.Error()
	}
	h.mu.Lock()
	d := h.deliveries[w.Name]
	h.mu.Unlock()
	if d == nil {
		return one, nil
	}
	return one, d.note(ctx, one)
}
