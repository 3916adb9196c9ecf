package appliance

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"strconv"
	"sync"
	"time"
)

// RecordedPerMinute is how many events of a kind are recorded a minute. The newest of those beyond is recorded when the minute is over,
// and says how many were left out before it.
func RecordedPerMinute(kind EventKind) int {
	if kind == EventRefused {
		return RefusalsPerMinute
	}
	return EventsPerMinute
}

// Refusal is the event of a request of an API key that was refused for what it asked. It has no addresses: a refused one is often
// that of somebody who has nothing to do with it.
func Refusal(keyID string, err error) Event {
	return Event{Kind: EventRefused, Details: map[string]string{"code": string(CodeOf(err)), "keyId": keyID}}
}

// EventsOptions are how Events records. Only Journal is required.
type EventsOptions struct {
	Journal Journal
	Logger  *slog.Logger     // nil means none
	Now     func() time.Time // nil means time.Now
	Member  string           // the appliance's name among others that share the journal; empty where there are none

}

const (
	// EventsPerMinute bounds what a fault, such as a token that comes and goes, adds to a journal.
	EventsPerMinute = 600
	// RefusalsPerMinute is for what clients cause.
	RefusalsPerMinute = 10
	// MaxQueuedEvents bounds how many events wait for the journal. Beyond them as many of operators' actions wait.
	MaxQueuedEvents = 1024

	eventTimeout   = 10 * time.Second // of one try
	eventRetryMin  = 50 * time.Millisecond
	eventRetryMax  = 5 * time.Second
	eventDelayTold = time.Second // from here on an event says when it happened
)

// What Events adds to an event's details.
const (
	DetailAt      = "at"      // when it happened, where it was recorded more than a second later
	DetailLeftOut = "leftOut" // how many of this kind were left out before it
	DetailMember  = "member"  // EventsOptions.Member
)

// Events records events in a journal beside attesting. Record never blocks: one goroutine appends what is queued, and tries again
// while the journal is not available. Append and Keep are for what operators do. All methods are safe for concurrent use, and do nothing on nil.
type Events struct {
	opts EventsOptions
	stop context.CancelFunc
	wake chan struct{} // has one element when there may be something to do
	done chan struct{} // closed when run has returned

	mu      sync.Mutex // protects all below
	queue   []*queuedEvent
	kinds   map[EventKind]*eventWindow
	closing bool
}

// queuedEvent stays in the queue until it is in the journal.
type queuedEvent struct {
	event    Event
	at       time.Time
	recorded chan struct{} // closed when it is in the journal, or cannot be
}

// eventWindow is a minute of a kind.
type eventWindow struct {
	begun time.Time
	count int          // recorded since
	held  *queuedEvent // the newest beyond the limit
	left  int          // others beyond the limit
}

// NewEvents returns a recorder. It is to be closed.
func NewEvents(o EventsOptions) *Events {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	ctx, stop := context.WithCancel(context.Background())
	e := &Events{opts: o, stop: stop, wake: make(chan struct{}, 1), done: make(chan struct{}), kinds: make(map[EventKind]*eventWindow)}
	go e.run(ctx)
	return e
}

// Record has the event appended to the journal soon: in the order of the calls, but for those beyond a limit. What operators do is for
// Append and Keep, which know no limit.
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
	if neverLeftOut(event.Kind) {
		e.queue = append(e.queue, q)
	} else {
		e.admit(q)
	}
	e.mu.Unlock()
	e.signal()
}

// neverLeftOut says whether Record has each event of a kind recorded: those of the daemon that only an operator causes.
func neverLeftOut(kind EventKind) bool {
	switch kind {
	case EventStarted, EventStopped, EventPolicy, EventSignerAdded, EventSignerChanged, EventSignerRemoved:
		return true
	}
	return false
}

// Append records what an operator is about to do. It returns once the event is in the journal, behind those recorded before. After an
// error the caller must not do it. The error has the journal's code.
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
		refused := Errorf(CodeOf(err), "the journal does not take the event %s, so nothing was done; repeat it when the journal is available", event.Kind)
		return refused.Because(err)
	}
	return nil
}

// Keep has the event of an operator's action appended soon, and never leaves it out. It is for actions that must be possible while the
// journal is not available, such as a revocation. If too many events wait, the error has CodeOverloaded and the caller must not act.
func (e *Events) Keep(event Event) error {
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
		refused := Errorf(CodeOverloaded, "%d events wait for the journal, so nothing was done; repeat it when the journal is available", len(e.queue))
		refused.RetryAfter = eventRetryMax
		return refused
	}
	e.queue = append(e.queue, q)
	e.signal()
	return nil
}

func (e *Events) prepare(event Event) (*queuedEvent, error) {
	event.Details = maps.Clone(event.Details) // the caller may change its own
	if err := event.Prepare(); err != nil {
		return nil, err
	}
	q := &queuedEvent{event: event, at: e.opts.Now(), recorded: make(chan struct{})}
	if e.opts.Member != "" {
		q.set(DetailMember, e.opts.Member)
	}
	return q, nil
}

// admit queues an event or holds it back. The lock must be held.
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

// release begins the next minute of a kind where the last is over, or at once, with the event that was held back. The lock must be held.
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

// next returns the event to be appended, after those that are due were released, and how long until the next is; nil ends it.
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

// woken receives when there is something to do before a wait is over: not while an event is to be tried again.
func (e *Events) woken(retried *queuedEvent) <-chan struct{} {
	if retried != nil {
		return nil
	}
	return e.wake
}

// append tries once. It returns false where the event must be tried again.
func (e *Events) append(ctx context.Context, q *queuedEvent, failures int) bool {
	if delay := e.opts.Now().Sub(q.at); delay > eventDelayTold {
		q.set(DetailAt, q.at.UTC().Format(time.RFC3339))
	}
	limited, cancel := context.WithTimeout(ctx, eventTimeout)
	_, err := e.opts.Journal.AppendEvent(limited, q.event)
	cancel()
	if err != nil && CodeOf(err) != CodeInternal {
		if CodeOf(err) == CodeJournalLost && e.isClosing() {
			e.stop() // only an operator can mend that, who may be waiting for the end
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

// Flush waits until what was recorded before is in the journal, but no longer than ctx. What is held back by a limit it does not wait
// for.
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

// Close records what is queued or held back and ends, but no later than ctx. The error tells how many events were not recorded.
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
		return fmt.Errorf("%d events were not recorded, the first of them %s: the journal is not available", n, e.queue[0].event.Kind)
	}
	return nil
}

func (e *Events) signal() {
	select {
	case e.wake <- struct{}{}:
	default: // there is a signal already
	}
}

// set gives the event another detail. A try that was given up may still read those it had.
func (q *queuedEvent) set(name, value string) {
	details := maps.Clone(q.event.Details)
	if details == nil {
		details = make(map[string]string)
	}
	details[name] = value
	q.event.Details = details
}
