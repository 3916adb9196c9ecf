package webhooks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/events"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/appliance/sinks"
)

const (
	batch        = 64
	batchBytes   = 1 << 20
	interval     = 500 * time.Millisecond // between reads of the journal
	batchTimeout = 5 * time.Minute
)

// delivery sends the events of one webhook. It is a sinks.Destination, and accepts an event once the receiver or the
// state has it.
type delivery struct {
	opts *Options
	hook Webhook

	saving sync.Mutex // held while the state is written, so that an older one does not replace a newer one

	mu    sync.Mutex // protects the fields below
	state State
	told  bool // that the webhook is disabled
}

func (d *delivery) sink() sinks.Sink {
	return sinks.Sink{Name: d.hook.Name, To: d, Batch: batch, Bytes: batchBytes, Interval: interval,
		Timeout: batchTimeout, Encode: d.encode, Before: d.retry}
}

// encode implements sinks.Sink.Encode.
func (d *delivery) encode(_ context.Context, entry journal.Entry) (m sinks.Message, ok bool, err error) {
	e, err := events.FromEntry(d.opts.Verifier.Name(), journal.LogName(d.opts.Verifier), entry)
	if err != nil || !d.hook.filter().Matches(e) || !d.hook.viewer().May(e) {
		return m, false, err
	}
	m, err = message(e)
	return m, true, err
}

func message(e events.Event) (sinks.Message, error) {
	text, err := json.Marshal(e)
	return sinks.Message{Index: e.Index, Kind: string(e.Type), Time: e.Time, Text: text, ID: e.ID, Subject: e.Subject}, err
}

// Send implements sinks.Destination. Events of one subject are sent in order, those of others at the same time.
func (d *delivery) Send(ctx context.Context, batch []sinks.Message) error {
	d.mu.Lock()
	waiting, disabled := len(d.state.Waiting), !d.state.Disabled.IsZero()
	d.mu.Unlock()
	switch {
	case disabled:
		return errDisabled
	case waiting >= maxWaiting:
		return fmt.Errorf("%d events wait to be sent again; newer ones follow when the receiver has accepted them", waiting)
	}
	return d.each(ctx, bySubject(batch), func(ctx context.Context, m sinks.Message) (bool, error) {
		if d.queued(m) {
			return true, nil // behind an earlier event of its subject
		}
		return true, d.attempt(ctx, m)
	})
}

var errDisabled = errors.New("the webhook is disabled")

// bySubject groups messages, in their order.
func bySubject(batch []sinks.Message) (groups [][]sinks.Message) {
	at := make(map[string]int)
	for _, m := range batch {
		i, known := at[m.Subject]
		if !known {
			i, at[m.Subject] = len(groups), len(groups)
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], m)
	}
	return groups
}

// each calls do with the messages of each group in order, until it returns more false. Groups run at the same time.
func (d *delivery) each(ctx context.Context, groups [][]sinks.Message,
	do func(context.Context, sinks.Message) (more bool, err error)) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for _, group := range groups {
		g.Go(func() error {
			for _, m := range group {
				if more, err := do(ctx, m); err != nil || !more {
					return err
				}
			}
			return nil
		})
	}
	err := g.Wait()
	d.tell()
	return err
}

// queued reports whether an event waits, after adding it if another event of its subject waits.
func (d *delivery) queued(m sinks.Message) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	behind := false
	for _, w := range d.state.Waiting {
		if w.ID.String() == m.ID {
			return true
		}
		behind = behind || w.Subject == m.Subject
	}
	if behind {
		d.state.Waiting = append(d.state.Waiting, Waiting{ID: uuid.MustParse(m.ID), Subject: m.Subject})
	}
	return behind
}

// attempt sends an event once and records the outcome. Its error is the end of ctx.
func (d *delivery) attempt(ctx context.Context, m sinks.Message) error {
	r := d.opts.Sender.send(ctx, d.hook, m.ID, m.Text)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	w := Waiting{ID: uuid.MustParse(m.ID), Subject: m.Subject}
	i := slices.IndexFunc(d.state.Waiting, func(other Waiting) bool { return other.ID == w.ID })
	if i >= 0 {
		w = d.state.Waiting[i]
	}
	again := d.state.record(m, &w, r, d.opts.Now())
	switch {
	case again && i >= 0:
		d.state.Waiting[i] = w
	case again:
		d.state.Waiting = append(d.state.Waiting, w)
	case i >= 0:
		d.state.Waiting = slices.Delete(d.state.Waiting, i, i+1)
	}
	return nil
}

// retry implements sinks.Sink.Before: it sends the events again whose time has come.
func (d *delivery) retry(ctx context.Context) error {
	if err := d.checkOwner(ctx); err != nil {
		return err
	}
	groups, err := d.due(ctx)
	if err != nil || len(groups) == 0 {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	err = d.each(ctx, groups, func(ctx context.Context, m sinks.Message) (bool, error) {
		if err := d.attempt(ctx, m); err != nil {
			return false, err
		}
		return !d.waits(m.ID), nil
	})
	return errors.Join(err, d.save(ctx))
}

func (d *delivery) waits(id string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.ContainsFunc(d.state.Waiting, func(w Waiting) bool { return w.ID.String() == id })
}

// checkOwner disables the webhook of an API key that is no longer valid.
func (d *delivery) checkOwner(ctx context.Context) error {
	if d.hook.KeyID == "" {
		return nil
	}
	key, err := d.opts.Keys.Key(ctx, d.hook.KeyID)
	if err != nil {
		return err
	}
	state := key.State(d.opts.Now())
	if state == appliance.KeyActive {
		return nil
	}
	d.mu.Lock()
	d.state.disable(d.opts.Now(), fmt.Sprintf("its API key is %s", state))
	d.mu.Unlock()
	d.tell()
	return errors.Join(errDisabled, d.save(ctx))
}

// due returns the events of the subjects whose first event is to be sent again.
func (d *delivery) due(ctx context.Context) ([][]sinks.Message, error) {
	now := d.opts.Now()
	d.mu.Lock()
	if !d.state.Disabled.IsZero() {
		d.mu.Unlock()
		return nil, errDisabled
	}
	var ids []uuid.UUID
	late := make(map[string]bool) // by subject
	for _, w := range d.state.Waiting {
		if _, known := late[w.Subject]; !known {
			late[w.Subject] = !now.Before(w.Next)
		}
		if late[w.Subject] {
			ids = append(ids, w.ID)
		}
	}
	d.mu.Unlock()
	var all []sinks.Message
	for _, id := range ids {
		m, err := d.load(ctx, id)
		switch {
		case appliance.CodeOf(err) == appliance.CodeNotFound: // the journal has lost it
			d.forget(id)
		case err != nil:
			return nil, fmt.Errorf("journal: %w", err)
		default:
			all = append(all, m)
		}
	}
	return bySubject(all), nil
}

// load returns the message of an event of the journal. The state in a database does not decide what the receiver may
// see.
func (d *delivery) load(ctx context.Context, id uuid.UUID) (sinks.Message, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	entry, err := d.opts.Journal.ByID(ctx, id)
	if err != nil {
		return sinks.Message{}, err
	}
	m, ok, err := d.encode(ctx, entry)
	if err == nil && !ok {
		err = appliance.Errorf(appliance.CodeNotFound, "the webhook %s does not get the event %s", d.hook.Name, id)
	}
	return m, err
}

func (d *delivery) forget(id uuid.UUID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.state.Waiting = slices.DeleteFunc(d.state.Waiting, func(w Waiting) bool { return w.ID == id })
}

// tell reports once that the webhook was disabled.
func (d *delivery) tell() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.told || d.state.Disabled.IsZero() {
		return
	}
	d.told = true
	d.opts.Logger.Warn("webhook: it is disabled; correct the receiver, then run: attestd webhook redeliver "+d.hook.Name,
		"webhook", d.hook.Name, "reason", d.state.Reason)
	d.opts.Events.Record(journal.Event{Kind: journal.EventWebhookDisabled, Details: map[string]string{
		"name": d.hook.Name, "reason": d.state.Reason}})
	d.opts.changed()
}

// writeCursor stores the cursor together with the events that wait.
func (d *delivery) writeCursor(ctx context.Context, c sinks.Cursor) error {
	d.mu.Lock()
	d.state.Cursor = &c
	d.mu.Unlock()
	return d.save(ctx)
}

// saveTimeout bounds a write of the state. A state is written after the context of its batch has ended, too.
const (
	saveTimeout = 5 * time.Second
	readTimeout = 10 * time.Second
)

func (d *delivery) save(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveTimeout)
	defer cancel()
	d.saving.Lock()
	defer d.saving.Unlock()
	d.mu.Lock()
	text, err := json.Marshal(d.state)
	d.mu.Unlock()
	if err != nil {
		return err
	}
	if err := d.opts.Store.SaveWebhookState(ctx, d.hook.Name, text); err != nil {
		return fmt.Errorf("state of the webhook: %w", err)
	}
	return nil
}

// note records an attempt that an operator asked for.
func (d *delivery) note(ctx context.Context, one Delivery) error {
	d.mu.Lock()
	d.state.remember(one)
	if one.Outcome == Delivered {
		d.state.succeed(one.Time)
		d.state.Waiting = slices.DeleteFunc(d.state.Waiting, func(w Waiting) bool { return w.ID.String() == one.ID })
	}
	d.mu.Unlock()
	return d.save(ctx)
}

// Close implements sinks.Destination.
func (d *delivery) Close() error { return nil }

// String returns the URL without its query, which may contain a key.
func (d *delivery) String() string { return withoutQuery(d.hook.URL) }

func withoutQuery(text string) string {
	at, err := url.Parse(text)
	if err != nil {
		address, _, _ := strings.Cut(text, "?")
		return address
	}
	at.RawQuery, at.ForceQuery = "", false
	return at.String()
}
