package hsm

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync"
	"time"
)

// States of a token among several.
const (
	TokenSigns   = "signs"   // asked first
	TokenReady   = "ready"   // asked if the tokens before it fail
	TokenFailing = "failing" // out of use until it signs trials again
	TokenRefused = "refused" // it has a different key, or refused the PIN: needs an operator
)

// Standing is the state of one of several tokens.
type Standing struct {
	KeyName  string    `json:"keyName,omitempty"` // name of the attestor key that it holds, if keys have names
	Position int       `json:"position"`          // in hsm.uris, from 1; counts the tokens of all keys
	Name     string    `json:"name"`              // see URI.Label
	State    string    `json:"state"`             // TokenSigns, TokenReady, TokenFailing or TokenRefused
	Since    time.Time `json:"since"`             // start of the state
	Reason   string    `json:"reason,omitempty"`
	// signatures for which another token was also asked because this one took too long
	HandedOver uint64 `json:"handedOver"`
	Status            // of this token
}

// Standings returns the states of all tokens, in order. It asks no token.
func (t *Tokens) Standings() []Standing {
	all := make([]Standing, len(t.slots))
	signs := false
	for i, p := range t.slots {
		well := p.well()
		all[i] = p.standing()
		switch {
		case well && !signs:
			all[i].State, signs = TokenSigns, true
		case !well && t.single():
			all[i].State, all[i].Reason, all[i].Ready = TokenFailing, knownFault(p.opened()).Error(), false
		}
	}
	return all
}

func (p *tokenSlot) standing() Standing {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Standing{Position: p.number, Name: p.label(), State: TokenReady, Since: p.since.UTC(),
		HandedOver: p.handedOver}
	switch {
	case p.out != nil && serious(p.out):
		s.State, s.Reason = TokenRefused, p.out.Error()
	case p.out != nil:
		s.State, s.Reason = TokenFailing, p.out.Error()
	case p.signer == nil:
		s.State, s.Reason = TokenFailing, "the token is still being opened"
	}
	if p.signer != nil {
		u := p.signer.Usage()
		s.Signatures, s.WrongSignatures, s.Repairs, s.Restarts = u.Signatures, u.WrongSignatures, u.Repairs, u.Restarts
		s.Session.Open, s.Session.InUse = u.Sessions, u.InUse
	}
	s.Ready = s.State == TokenReady
	return s
}

func (p *tokenSlot) label() string { return p.URI.Label() }

// Label names the token for people and metrics.
func (u URI) Label() string {
	return strings.ToValidUTF8(cmp.Or(u.Token, u.Serial, u.Object, "unnamed"), "?")
}

// Status returns the status of the token that signs, with the counts of all tokens. With several tokens it includes the
// state of each.
func (t *Tokens) Status(ctx context.Context) (Status, error) {
	if t.single() {
		return t.slots[0].signer.Status(ctx)
	}
	all := t.Standings()
	var asked sync.WaitGroup
	for i, p := range t.slots {
		if signer := p.opened(); signer != nil {
			asked.Go(func() { all[i].queryStatus(ctx, signer) })
		}
	}
	asked.Wait()
	status := all[t.first().number-1].Status
	usage := t.Usage()
	status.Ready = usage.Ready
	status.Signatures, status.WrongSignatures, status.Repairs, status.Restarts = usage.Signatures,
		usage.WrongSignatures, usage.Repairs, usage.Restarts
	status.Tokens = all
	return status, nil
}

// statusPatience bounds the wait for one token's status, so that a hung token does not delay the others.
const statusPatience = 2 * time.Second

// queryStatus fills in the token's own status. If the token fails, ask records the error.
func (s *Standing) queryStatus(ctx context.Context, signer TokenSigner) {
	ctx, cancel := context.WithTimeout(ctx, statusPatience)
	defer cancel()
	status, err := signer.Status(ctx)
	if err != nil {
		s.LastError = err.Error()
		return
	}
	status.Ready = s.Ready && status.Ready
	s.Status = status
}

// Usage returns the counts of all tokens, and the sessions of the token that signs. It never waits.
func (t *Tokens) Usage() Usage {
	if t.single() {
		return t.slots[0].signer.Usage()
	}
	var all Usage
	first := t.first()
	for _, p := range t.slots {
		signer := p.opened()
		if signer == nil {
			continue
		}
		u := signer.Usage()
		all.Signatures += u.Signatures
		all.WrongSignatures += u.WrongSignatures
		all.SignTime += u.SignTime
		all.Repairs += u.Repairs
		all.Restarts += u.Restarts
		if p == first {
			all.Sessions, all.MostSessions, all.InUse, all.AtOnce = u.Sessions, u.MostSessions, u.InUse, u.AtOnce
		}
	}
	all.Ready = t.anyWell()
	return all
}

// first returns the token that is asked first.
func (t *Tokens) first() *tokenSlot {
	var open *tokenSlot
	for _, p := range t.slots {
		if p.well() {
			return p
		}
		if open == nil && p.opened() != nil {
			open = p
		}
	}
	return open // OpenTokens guarantees an open token
}

func (t *Tokens) anyWell() bool {
	for _, p := range t.slots {
		if p.well() {
			return true
		}
	}
	return false
}

// countWell does not check for new faults, because it is called while one is logged.
func (t *Tokens) countWell() (n int) {
	for _, p := range t.slots {
		p.mu.Lock()
		if p.out == nil && p.signer != nil {
			n++
		}
		p.mu.Unlock()
	}
	return n
}

// whyNot returns why no token is in use.
func (t *Tokens) whyNot() error {
	var reasons []error
	for _, s := range t.Standings() {
		reasons = append(reasons, errors.New(s.Name+": "+s.Reason))
	}
	return errors.Join(reasons...)
}
