// Package stop is the switch that stops attesting. An operator pauses attesting, the watchtower halts it, and only an
// operator resumes it. The switch keeps its state over restarts.
package stop

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/attestd/attestd/appliance"
)

// retryAfter is the Retry-After of refusals: operators take minutes rather than seconds.
const retryAfter = 30 * time.Second

// Keeper stores the state of the switch as text: in a File for one appliance, or in a database for several.
type Keeper interface {
	// Stopped returns the present text, at most a second old. It is "" if no state was stored. It is called for each
	// attestation.
	Stopped() string
	// ChangeStopped replaces the text by the result of change. It returns when the new text is on the disk and Stopped
	// returns it. Concurrent changes wait.
	ChangeStopped(ctx context.Context, change func(text string) (string, error)) error
}

// State is the state of the switch.
type State struct {
	Paused *Pause `json:"paused,omitempty"` // nil unless an operator has paused attesting
	Halted *Halt  `json:"halted,omitempty"` // nil unless the watchtower has halted attesting
	// Acknowledged names the redemptions of halts that an operator has ended. They do not halt attesting again.
	Acknowledged []string `json:"acknowledged,omitempty"`
}

// Pause is a pause by an operator.
type Pause struct {
	Reason string    `json:"reason"`
	By     string    `json:"by"`
	Time   time.Time `json:"time"`
}

// Halt is a halt by the watchtower.
type Halt struct {
	Reason      string    `json:"reason"`
	Time        time.Time `json:"time"`
	Redemptions []string  `json:"redemptions"`
}

// A Halt names the first mostHalting redemptions, and a State the newest mostAcknowledged. The limits keep invented
// redemptions from making the text long, or from rewriting it for each. The watchtower itself stores the redemptions
// for which it has halted attesting.
const (
	mostHalting      = 32
	mostAcknowledged = 1000
)

// mostNamed limits the redemptions in an event, which has a size limit. Each redemption also has its own event.
const mostNamed = 20

// Details returns the details of the event that ends a pause or a halt. It returns nil if neither is in effect.
func (s State) Details() map[string]string {
	details := make(map[string]string)
	if s.Paused != nil {
		details["paused"] = s.Paused.Time.Format(time.RFC3339)
	}
	if s.Halted != nil {
		named := s.Halted.Redemptions
		if more := len(named) - mostNamed; more > 0 {
			named = append(slices.Clone(named[:mostNamed]), fmt.Sprintf("and %d more", more))
		}
		details["halted"], details["redemptions"] = s.Halted.Time.Format(time.RFC3339), strings.Join(named, " ")
	}
	if len(details) == 0 {
		return nil
	}
	return details
}

// Switch stops and starts attesting. All methods are safe for concurrent use.
type Switch struct {
	keeper Keeper
	now    func() time.Time
	read   atomic.Pointer[reading]
}

// reading is a parsed text.
type reading struct {
	text  string
	state State
	err   error
}

// New returns the switch that a keeper stores. It returns an error if the stored text is invalid.
func New(k Keeper, now func() time.Time) (*Switch, error) {
	s := &Switch{keeper: k, now: now}
	return s, s.current().err
}

// current returns the keeper's present state. It parses the text only after a change.
func (s *Switch) current() *reading {
	text := s.keeper.Stopped()
	if known := s.read.Load(); known != nil && known.text == text {
		return known
	}
	state, err := parse(text)
	r := &reading{text: text, state: state, err: err}
	s.read.Store(r)
	return r
}

func parse(text string) (state State, err error) {
	if text == "" {
		return State{}, nil
	}
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(&state); err != nil {
		return State{}, fmt.Errorf("the stop state cannot be read: %w", err)
	}
	return state, nil
}

// State returns the state of the switch.
func (s *Switch) State() State { return s.current().state }

// Stopped returns nil while attesting is allowed. Otherwise the error has CodePaused or CodeHalted; a damaged state
// counts as paused. The reason is in Cause, which clients do not see.
func (s *Switch) Stopped() error {
	r := s.current()
	switch {
	case r.err != nil:
		return refusal(appliance.CodePaused, "attesting is paused", r.err.Error())
	case r.state.Halted != nil:
		return refusal(appliance.CodeHalted, "attesting is halted", r.state.Halted.Reason+"; once this is resolved: "+
			"attestd resume")
	case r.state.Paused != nil:
		p := r.state.Paused
		return refusal(appliance.CodePaused, "attesting is paused", fmt.Sprintf("by %s since %s: %s; to continue: "+
			"attestd resume", p.By, p.Time.Format(time.RFC3339), p.Reason))
	}
	return nil
}

func refusal(code appliance.Code, detail, cause string) error {
	return &appliance.Error{Code: code, Detail: detail, RetryAfter: retryAfter, Cause: errors.New(cause)}
}

// Pause stops attesting until Resume. A second pause replaces the reason and the time. The error has CodeInvalidField
// for an invalid reason.
func (s *Switch) Pause(ctx context.Context, reason, by string) error {
	if err := CheckReason(reason); err != nil {
		return err
	}
	return s.change(ctx, func(state *State) {
		state.Paused = &Pause{Reason: reason, By: by, Time: s.now().UTC().Truncate(time.Second)}
	})
}

// Halt stops attesting because of a redemption, until Resume. It does not halt for a redemption that an operator has
// acknowledged. Once a halt names mostHalting redemptions, others do not change it. began reports whether this call
// halted attesting. Of several appliances, only one gets true, and none if a halt was in effect.
func (s *Switch) Halt(ctx context.Context, redemption, reason string) (began bool, err error) {
	known := s.State()
	if slices.Contains(known.Acknowledged, redemption) {
		return false, nil
	}
	if h := known.Halted; h != nil &&
		(len(h.Redemptions) >= mostHalting || slices.Contains(h.Redemptions, redemption)) {
		return false, nil
	}
	err = s.change(ctx, func(state *State) {
		if slices.Contains(state.Acknowledged, redemption) {
			return
		}
		if began = state.Halted == nil; began {
			state.Halted = &Halt{Reason: reason, Time: s.now().UTC().Truncate(time.Second)}
		}
		if !slices.Contains(state.Halted.Redemptions, redemption) {
			state.Halted.Redemptions = append(state.Halted.Redemptions, redemption)
		}
	})
	return began && err == nil, err
}

// Resume ends pause and halt, and returns the previous state. The halt's redemptions are acknowledged.
func (s *Switch) Resume(ctx context.Context) (ended State, err error) {
	err = s.change(ctx, func(state *State) {
		ended = *state
		if h := state.Halted; h != nil {
			state.Acknowledged = append(slices.Clone(state.Acknowledged), h.Redemptions...)
			state.Acknowledged = state.Acknowledged[max(0, len(state.Acknowledged)-mostAcknowledged):]
		}
		state.Paused, state.Halted = nil, nil
	})
	return ended, err
}

func (s *Switch) change(ctx context.Context, change func(*State)) error {
	return s.keeper.ChangeStopped(ctx, func(text string) (string, error) {
		state, err := parse(text)
		if err != nil {
			return "", err
		}
		change(&state)
		next, err := json.Marshal(state)
		return string(next), err
	})
}

// maxReason bounds a reason, in bytes.
const maxReason = 1000

// CheckReason returns CodeInvalidField for a reason that is empty, too long, or not a single line.
func CheckReason(reason string) error {
	if strings.TrimSpace(reason) == "" || len(reason) > maxReason || strings.ContainsFunc(reason, func(r rune) bool {
		return r < ' '
	}) {
		return appliance.Errorf(appliance.CodeInvalidField, "must be one line of text, at most %d bytes",
			maxReason).In("reason")
	}
	return nil
}
