package journal

import (
	"context"
	"fmt"
	"github.com/attestd/attestd/appliance"
	"log/slog"
	"maps"
	"strconv"
	"sync"
	"time"
)

// RecordedPerMinute is how many events of a kind are recorded per minute. The newest event beyond that limit is
// recorded when the minute is over, with the number of events left out before it.
func RecordedPerMinute(kind EventKind) int {
	if kind == EventRefused {
		return RefusalsPerMinute
	}
	return EventsPerMinute
}

// Refusal returns the event of an API key's request that screening or the policy refused. It omits the addresses,
// because a refused address often belongs to an uninvolved person.
func Refusal(keyID string, err error) Event {
	return Event{Kind: EventRefused, Details: map[string]string{"code": string(appliance.CodeOf(err)), "keyId": keyID}}
}

// EventsOptions configure Events. Only Journal is required.
type EventsOptions struct {
	Journal Journal
	Logger  *slog.Logger     // nil discards all messages
	Now     func() time.Time // nil means time.Now
	Member  string           // the appliance's name among appliances that share the journal; may be empty

}

const (
	// EventsPerMinute bounds the events that a recurring fault, such as an unstable token, adds to a journal.
	EventsPerMinute = 600
	// RefusalsPerMinute bounds the events that clients can cause.
	RefusalsPerMinute = 10
	// MaxQueuedEvents bounds the events that wait for the journal. Events of operators' actions may fill the queue to
	// twice this length, and the daemon's events about those actions to three times.
	MaxQueuedEvents = 1024

	eventTimeout   = 10 * time.Second // per attempt
	eventRetryMin  = 50 * time.Millisecond
	eventRetryMax  = 5 * time.Second
	eventDelayTold = time.Second // a longer delay is recorded as DetailAt
)

// Details that Events adds to an event.
const (
	DetailAt      = "at"      // when it happened, if it was recorded more than a second later
	DetailLeftOut = "leftOut" // how many events of this kind were left out before it
	DetailMember  = "member"  // EventsOptions.Member
)

// Events records events in a journal, independent of attestations. Record never blocks: one goroutine appends the
// queued events and retries while the journal is not available. Append and Keep are for operators' actions. All methods
// are safe for concurrent use and do nothing on nil.
type Events struct {
	opts EventsOptions
	stop context.CancelFunc
	wake chan struct{} // holds one element if run should look at the queue
	done chan struct{} // closed when run has returned

	mu      sync.Mutex // protects the fields below
	queue   []*queuedEvent
	kinds   map[EventKind]*eventWindow
	closing bool
}

// queuedEvent stays in the queue until it is in the journal.
type queuedEvent struct {
	event    Event
	at       time.Time
	recorded chan struct{} // closed when the event is in the journal or was dropped
}

// eventWindow counts one minute's events of one kind.
type eventWindow struct {
	begun time.Time
	count int          // recorded since begun
	held  *queuedEvent // the newest beyond the limit
	left  int          // how many other events were left out
}

// NewEvents returns a recorder. The caller must close it.
func NewEvents(o EventsOptions) *Events {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	ctx, stop := context.WithCancel(context.Background())
	e := &Events{opts: o, stop: stop, wake: make(chan struct{}, 1), done: make(chan struct{}),
		kinds: make(map[EventKind]*eventWindow)}
	go e.run(ctx)
	return e
}

// Record queues the event for the journal. Events are appended in the order of the calls, except for those beyond the
// limit of their kind. Operators' actions use Append and Keep, which have no such limit.
func (e *Events) Record(event Event) {
	if e == nil {
		return
	}
	q, err := e.prepare(event)
	if err != nil {
		e.opts.Logger.Error("an event was not recorded", "event", string(event.Kind), "error", err.Error())
		return
	}
	e.mu.Lock()
	if neverLeftOut(event.Kind) && len(e.queue) < 3*MaxQueuedEvents {
		e.queue = append(e.queue, q)
	} else {
		e.admit(q)
	}
	e.mu.Unlock()
	e.signal()
}

// neverLeftOut reports whether Record exempts a kind from its limit. It exempts the daemon's events that only an
// operator causes. Keep refuses the operator's action before such events fill the rest of the queue.
func neverLeftOut(kind EventKind) bool {
	switch kind {
	case EventStarted, EventStopped, EventPolicy, EventSignerAdded, EventSignerChanged, EventSignerRemoved:
		return true
	}
	return false
}

// Append records an action that an operator is about to take. It returns once the event is in the journal, after all
// events recorded before. After an error, which has the journal's code, the caller must not act.
func (e *Events) Append(ctx context.Context, event Event) error {
	if e == nil {
		return nil
	}
	q, err := e.prepare(event)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, eventTimeout)
	defer cancel()
	e.Flush(ctx)
	if _, err := e.opts.Journal.AppendEvent(ctx, q.event); err != nil {
		refused := appliance.Errorf(appliance.CodeOf(err),
			"the journal cannot record the event %s, so the action was not carried out; "+
				"repeat it when the journal is available", event.Kind)
		return refused.Because(err)
	}
	return nil
}

// RecordOrQueue queues the event of an operator's action and never leaves it out. It is for actions that must work
// while the journal is not available, such as a revocation. If too many events are queued, the error is CodeOverloaded
// and the caller must not act.
func (e *Events) RecordOrQueue(event Event) error {
	if e == nil {
		return nil
	}
	q, err := e.prepare(event)
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.queue) >= 2*MaxQueuedEvents {
		refused := appliance.Errorf(appliance.CodeOverloaded,
			"%d events wait for the journal, so the action was not carried out; repeat "+
				"it when the journal is available", len(e.queue))
		refused.RetryAfter = eventRetryMax
		return refused
	}
	e.queue = append(e.queue, q)
	e.signal()
	return nil
}

func (e *Events) prepare(event Event) (*queuedEvent, error) {
	event.Details = maps.Clone(event.Details) // the caller may change its map later
	if err := event.Prepare(); err != nil {
		return nil, err
	}
	q := &queuedEvent{event: event, at: e.opts.Now(), recorded: make(chan struct{})}
	if e.opts.Member != "" {
		q.set(DetailMember, e.opts.Member)
	}
	return q, nil
}

// admit queues an event or holds it back. The caller holds e.mu.
func (e *Events) admit(q *queuedEvent) {
	w := e.kinds[q.event.Kind]
	if w == nil {
		w = &eventWindow{begun: q.at}
		e.kinds[q.event.Kind] = w
	}
	e.release(w, q.at, false)
	if w.count < RecordedPerMinute(q.event.Kind) && len(e.queue) < MaxQueuedEvents && w.held == nil {
		w.count++
		e.queue = append(e.queue, q)
		return
	}
	if w.held != nil {
		w.left++
		close(w.held.recorded)
	}
	w.held = q
}

// release starts the next minute of a kind and queues the event that was held back. It does so if the last minute is
// over, or at once if atOnce is set. The caller holds e.mu.
func (e *Events) release(w *eventWindow, now time.Time, atOnce bool) {
	since := now.Sub(w.begun)
	if !atOnce && (since >= 0 && since < time.Minute || len(e.queue) >= MaxQueuedEvents) {
		return
	}
	w.begun, w.count = now, 0
	if w.held == nil {
		return
	}
	if w.left > 0 {
		w.held.set(DetailLeftOut, strconv.Itoa(w.left))
	}
	e.queue = append(e.queue, w.held)
	w.count, w.held, w.left = 1, nil, 0
}

// next returns the next event to append, after releasing the events that are due, and how long until the next release.
// ended means that the recorder is closing and the queue is empty.
func (e *Events) next() (first *queuedEvent, wait time.Duration, ended bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	wait = time.Hour
	now := e.opts.Now()
	for _, w := range e.kinds {
		e.release(w, now, e.closing)
		if w.held != nil {
			wait = min(wait, max(time.Millisecond, time.Minute-now.Sub(w.begun)))
		}
	}
	if len(e.queue) > 0 {
		return e.queue[0], wait, false
	}
	return nil, wait, e.closing
}

func (e *Events) run(ctx context.Context) {
	defer close(e.done)
	for failures := 0; ctx.Err() == nil; {
		first, wait, ended := e.next()
		switch {
		case ended:
			return
		case first == nil:
		case e.append(ctx, first, failures):
			failures = 0
			continue
		default:
			wait = min(eventRetryMin<<min(failures, 10), eventRetryMax)
			failures++
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-e.woken(first):
		}
		timer.Stop()
	}
}

// woken returns the channel that ends a wait early. It is nil while an event waits for its retry.
func (e *Events) woken(retried *queuedEvent) <-chan struct{} {
	if retried != nil {
		return nil
	}
	return e.wake
}

// append tries to append an event once. It returns false if the event must be retried.
func (e *Events) append(ctx context.Context, q *queuedEvent, failures int) bool {
	if delay := e.opts.Now().Sub(q.at); delay > eventDelayTold {
		q.set(DetailAt, q.at.UTC().Format(time.RFC3339))
	}
	limited, cancel := context.WithTimeout(ctx, eventTimeout)
	_, err := e.opts.Journal.AppendEvent(limited, q.event)
	cancel()
	if err != nil && appliance.CodeOf(err) != appliance.CodeInternal {
		if appliance.CodeOf(err) == appliance.CodeJournalLost && e.isClosing() {
			e.stop() // only an operator can fix a lost journal, so Close does not wait
		}
		if failures == 0 {
			e.opts.Logger.Warn("an event waits for the journal", "event", string(q.event.Kind), "error", err.Error())
		}
		return false
	}
	if err != nil {
		e.opts.Logger.Error("an event was not recorded", "event", string(q.event.Kind), "error", err.Error())
	}
	e.mu.Lock()
	e.queue = e.queue[1:]
	e.mu.Unlock()
	close(q.recorded)
	return true
}

func (e *Events) isClosing() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.closing
}

// Flush waits until the events queued so far are in the journal, or until ctx ends. It does not wait for events that a
// limit holds back.
func (e *Events) Flush(ctx context.Context) {
	if e == nil {
		return
	}
	e.mu.Lock()
	var last *queuedEvent
	if n := len(e.queue); n > 0 {
		last = e.queue[n-1]
	}
	e.mu.Unlock()
	if last == nil {
		return
	}
	select {
	case <-last.recorded:
	case <-e.done:
	case <-ctx.Done():
	}
}

// Close records all queued and held events and stops the recorder, at the latest when ctx ends. The error gives the
// number of events that were not recorded.
func (e *Events) Close(ctx context.Context) error {
	if e == nil {
		return nil
	}
	e.mu.Lock()
	e.closing = true
	e.mu.Unlock()
	e.signal()
	select {
	case <-e.done:
	case <-ctx.Done():
	}
	e.stop()
	<-e.done
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := len(e.queue); n > 0 {
		return fmt.Errorf("%d events were not recorded (first: %s): the journal is not available", n,
			e.queue[0].event.Kind)
	}
	return nil
}

func (e *Events) signal() {
	select {
	case e.wake <- struct{}{}:
	default: // a signal is pending already
	}
}

// set adds a detail to a copy of the map, because an abandoned attempt may still read the old map.
func (q *queuedEvent) set(name, value string) {
	details := maps.Clone(q.event.Details)
	if details == nil {
		details = make(map[string]string)
	}
	details[name] = value
	q.event.Details = details
}
