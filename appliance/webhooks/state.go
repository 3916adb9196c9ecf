package webhooks

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/attestd/attestd/appliance/events"
	"github.com/attestd/attestd/appliance/sinks"
)

const (
	retryMin   = 5 * time.Second
	retryMax   = 30 * time.Minute
	retryFor   = 3 * 24 * time.Hour // after the first attempt
	maxWaiting = 250                // events that wait to be sent again; with more, no newer event is sent
	maxRecent  = 100
	parallel   = 8 // subjects whose events are sent at the same time
)

// State is the progress of a webhook. Only the appliance that delivers writes it.
type State struct {
	Cursor    *sinks.Cursor `json:"cursor,omitempty"`
	Waiting   []Waiting     `json:"waiting,omitempty"`   // in the order of the journal
	Failing   time.Time     `json:"failing,omitzero"`    // the first failure since the last success
	LastError string        `json:"lastError,omitempty"` // of the last failure; empty after a success
	Succeeded time.Time     `json:"succeeded,omitzero"`  // the last success
	Delivered uint64        `json:"delivered"`
	Failures  uint64        `json:"failures"` // attempts
	GivenUp   uint64        `json:"givenUp"`  // events
	Disabled  time.Time     `json:"disabled,omitzero"`
	Reason    string        `json:"reason,omitempty"` // of Disabled
	Resumed   time.Time     `json:"resumed,omitzero"` // the Webhook.Resumed that took effect
	Recent    []Delivery    `json:"recent,omitempty"` // attempts, oldest first
}

// Waiting is an event that waits to be sent again, or for an earlier event of its subject.
type Waiting struct {
	ID       uuid.UUID `json:"id"`
	Subject  string    `json:"subject,omitempty"`
	First    time.Time `json:"first,omitzero"` // its first attempt; zero if it waits for another event
	Attempts int       `json:"attempts"`
	Next     time.Time `json:"next,omitzero"`
}

// Outcome is the outcome of an attempt.
type Outcome string

// The outcomes.
const (
	Delivered Outcome = "delivered"
	Retrying  Outcome = "retrying"
	GivenUp   Outcome = "given up"
	Failed    Outcome = "failed" // an operator asked for it; it is not repeated
)

// Delivery is an attempt to deliver an event.
type Delivery struct {
	ID           string      `json:"id"` // of the event
	Type         events.Type `json:"type"`
	Subject      string      `json:"subject,omitempty"`
	Time         time.Time   `json:"time"`
	Attempt      int         `json:"attempt"` // from 1; 0 if an operator asked for it
	Status       int         `json:"status"`  // HTTP status; 0 without an answer
	Milliseconds int64       `json:"milliseconds"`
	Outcome      Outcome     `json:"outcome"`
	Error        string      `json:"error,omitempty"`
	Next         time.Time   `json:"next,omitzero"` // of the next attempt
}

func readState(text []byte) (s State, err error) {
	if len(text) > 0 {
		err = json.Unmarshal(text, &s)
	}
	return s, err
}

// backoff returns the delay after the given number of attempts: exponential, with a jitter of half.
func backoff(attempts int) time.Duration {
	full := min(retryMin<<min(attempts-1, 20), retryMax)
	return full/2 + rand.N(full/2+1)
}

// record takes the outcome of an attempt. w is the event's place in the queue, with its attempts so far. again reports
// whether the event stays there.
func (s *State) record(m sinks.Message, w *Waiting, r result, now time.Time) (again bool) {
	w.Attempts++
	if w.First.IsZero() {
		w.First = now
	}
	d := Delivery{ID: m.ID, Type: events.Type(m.Kind), Subject: m.Subject, Time: now, Attempt: w.Attempts,
		Status: r.status, Milliseconds: r.took.Milliseconds(), Outcome: Delivered}
	defer func() { s.remember(d) }()
	if r.err == nil {
		s.succeed(now)
		return false
	}
	s.fail(r.err, now)
	d.Error = r.err.Error()
	switch {
	case r.status == statusGone:
		s.disable(now, "the receiver answers 410 Gone")
	case now.Sub(w.First) < retryFor:
	case s.Succeeded.After(w.First): // the receiver refuses this event only
		s.GivenUp++
		d.Outcome = GivenUp
		return false
	default:
		s.disable(now, "the receiver has accepted nothing for three days: "+d.Error)
	}
	w.Next = now.Add(max(backoff(w.Attempts), r.after))
	d.Outcome, d.Next = Retrying, w.Next
	return true
}

const statusGone = 410

func (s *State) succeed(now time.Time) {
	s.Delivered++
	s.Succeeded, s.Failing, s.LastError = now, time.Time{}, ""
}

func (s *State) fail(err error, now time.Time) {
	s.Failures++
	if s.Failing.IsZero() {
		s.Failing = now
	}
	s.LastError = err.Error()
}

func (s *State) disable(now time.Time, reason string) {
	if s.Disabled.IsZero() {
		s.Disabled, s.Reason = now, reason
	}
}

// resume makes a webhook deliver again, at once.
func (s *State) resume(at time.Time) {
	s.Resumed, s.Disabled, s.Reason = at, time.Time{}, ""
	for i := range s.Waiting {
		s.Waiting[i].Next, s.Waiting[i].First, s.Waiting[i].Attempts = time.Time{}, time.Time{}, 0
	}
}

func (s *State) remember(d Delivery) {
	s.Recent = append(s.Recent, d)
	if n := len(s.Recent) - maxRecent; n > 0 {
		s.Recent = slices.Delete(s.Recent, 0, n)
	}
}
