// Package stop is the switch with which attesting is stopped and started: an operator pauses it, the watchtower halts it, and only
// an operator lets it go on. What the switch says outlives restarts.
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

// retryAfter is what clients are told: operators take minutes rather than seconds.
const retryAfter = 30 * time.Second

// Keeper keeps what the switch says, as a text: File for one appliance, a database for several.
type Keeper interface {
	// Stopped returns the text as it is known now, which is at most a second old; "" where there is none. It is asked for each attestation.
	Stopped() string
	// ChangeStopped replaces the text by what change makes of it, and returns when that is on the disk and Stopped returns it. Nobody
	// else changes it meanwhile.
	ChangeStopped(ctx context.Context, change func(text string) (string, error)) error
}

// State is what the switch says.
type State struct {
	Paused *Pause `json:"paused,omitempty"` // nil while no operator has paused attesting
	Halted *Halt  `json:"halted,omitempty"` // nil while nothing has halted it
	// Acknowledged names the redemptions of halts that an operator has ended: they do not halt again.
	Acknowledged []string `json:"acknowledged,omitempty"`
}

// Pause is an operator's.
type Pause struct {
	Reason string    `json:"reason"`
	By     string    `json:"by"`
	Time   time.Time `json:"time"`
}

// Halt is the watchtower's.
type Halt struct {
	Reason      string    `json:"reason"`
	Time        time.Time `json:"time"`
	Redemptions []string  `json:"redemptions"`
}

// A Halt names the first mostHalting redemptions, and a State the newest mostAcknowledged: whoever makes redemptions up must not have
// a long text written again for each, nor one that takes long to read. The watchtower itself keeps for which it has halted attesting.
const (
	mostHalting      = 32
	mostAcknowledged = 1000
)

// mostNamed is how many redemptions an event names: it has a limit, and each redemption has an event of its own.
const mostNamed = 20

// Details are those of the event that a pause or a halt has ended; nil where there was neither.
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

// reading is a text as it was understood.
type reading struct {
	text  string
	state State
	err   error
}

// New returns the switch that a keeper keeps. The error is for a text that is none of a switch's.
func New(k Keeper, now func() time.Time) (*Switch, error) {
	s := &Switch{keeper: k, now: now}
	return s, s.look().err
}

// look returns what the keeper has now.
func (s *Switch) look() *reading {
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
		return State{}, fmt.Errorf("what says whether attesting is stopped cannot be read: %w", err)
	}
	return state, nil
}

// State returns what the switch says.
func (s *Switch) State() State { return s.look().state }

// Stopped returns nil while attesting may go on, else CodePaused or CodeHalted. Clients are not told the reason.
func (s *Switch) Stopped() error {
	r := s.look()
	switch {
	case r.err != nil:
		return refusal(appliance.CodePaused, "attesting is paused", r.err.Error())
	case r.state.Halted != nil:
		return refusal(appliance.CodeHalted, "attesting is halted", r.state.Halted.Reason+"; when that is cleared up: attestd resume")
	case r.state.Paused != nil:
		p := r.state.Paused
		return refusal(appliance.CodePaused, "attesting is paused", fmt.Sprintf("by %s since %s: %s; to go on: attestd resume", p.By, p.Time.Format(time.RFC3339), p.Reason))
	}
	return nil
}

func refusal(code appliance.Code, detail, cause string) error {
	return &appliance.Error{Code: code, Detail: detail, RetryAfter: retryAfter, Cause: errors.New(cause)}
}

// Pause stops attesting until Resume. A second pause changes reason and time. The error has CodeInvalidField for a reason that is none.
func (s *Switch) Pause(ctx context.Context, reason, by string) error {
	if err := CheckReason(reason); err != nil {
		return err
	}
	return s.change(ctx, func(state *State) {
		state.Paused = &Pause{Reason: reason, By: by, Time: s.now().UTC().Truncate(time.Second)}
	})
}

// Halt stops attesting because of a redemption, until Resume. It stops nothing for a redemption that an operator has
// acknowledged. A halt that names many is not written again for another. began reports whether this call halted
// attesting: on one appliance of several, and not if a halt was in effect before.
func (s *Switch) Halt(ctx context.Context, redemption, reason string) (began bool, err error) {
	known := s.State()
	if slices.Contains(known.Acknowledged, redemption) {
		return false, nil
	}
	if h := known.Halted; h != nil && (len(h.Redemptions) >= mostHalting || slices.Contains(h.Redemptions, redemption)) {
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

// Resume ends pause and halt, and returns what they were. The halt's redemptions are acknowledged.
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

// CheckReason returns CodeInvalidField for a reason that would not stay one line.
func CheckReason(reason string) error {
	if strings.TrimSpace(reason) == "" || len(reason) > maxReason || strings.ContainsFunc(reason, func(r rune) bool { return r < ' ' }) {
		return appliance.Errorf(appliance.CodeInvalidField, "must be one line of text, at most %d bytes", maxReason).In("reason")
	}
	return nil
}
