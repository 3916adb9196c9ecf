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
	TokenSigns   = "signs"   // it is asked first
	TokenReady   = "ready"   // it is asked where those before it fail
	TokenFailing = "failing" // it is out of use until it signs trials again
	TokenRefused = "refused" // it has another key, or refused the PIN: for a person
)

// Standing is how one of several tokens stands.
type Standing struct {
	KeyName    string    `json:"keyName,omitempty"` // name of the attestor key that it holds, where keys have names
	Position   int       `json:"position"`          // in hsm.uris, from 1; among the tokens of all keys, where there are several
	Name       string    `json:"name"`              // the token's label or, without one in the URI, another name of it
	State      string    `json:"state"`             // TokenSigns, TokenReady, TokenFailing or TokenRefused
	Since      time.Time `json:"since"`             // of being well, or not
	Reason     string    `json:"reason,omitempty"`
	HandedOver uint64    `json:"handedOver"` // signatures that another token was asked for, since this one took too long
	Status               // its own
}

// Standings are those of all tokens, in order. It asks no token.
func (t *Tokens) Standings() []Standing {
	all := make([]Standing, len(t.places))
	signs := false
	for i, p := range t.places {
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

func (p *place) standing() Standing {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Standing{Position: p.number, Name: p.label(), State: TokenReady, Since: p.since.UTC(), HandedOver: p.handedOver}
	switch {
	case p.out != nil && serious(p.out):
		s.State, s.Reason = TokenRefused, p.out.Error()
	case p.out != nil:
		s.State, s.Reason = TokenFailing, p.out.Error()
	case p.signer == nil:
		s.State, s.Reason = TokenFailing, "it is still being opened"
	}
	if p.signer != nil {
		u := p.signer.Usage()
		s.Signatures, s.WrongSignatures, s.Repairs, s.Restarts = u.Signatures, u.WrongSignatures, u.Repairs, u.Restarts
		s.Session.Open, s.Session.InUse = u.Sessions, u.InUse
	}
	s.Ready = s.State == TokenReady
	return s
}

func (p *place) label() string { return p.URI.Label() }

// Label names the token for people and metrics.
func (u URI) Label() string {
	return strings.ToValidUTF8(cmp.Or(u.Token, u.Serial, u.Object, "unnamed"), "?")
}

// Status returns the status of the token that signs, with the counts of all, and with several tokens the standing of each.
func (t *Tokens) Status(ctx context.Context) (Status, error) {
	if t.single() {
		return t.places[0].signer.Status(ctx)
	}
	all := t.Standings()
	var asked sync.WaitGroup
	for i, p := range t.places {
		if signer := p.opened(); signer != nil {
			asked.Go(func() { all[i].ask(ctx, signer) })
		}
	}
	asked.Wait()
	status := all[t.first().number-1].Status
	usage := t.Usage()
	status.Ready = usage.Ready
	status.Signatures, status.WrongSignatures, status.Repairs, status.Restarts = usage.Signatures, usage.WrongSignatures, usage.Repairs, usage.Restarts
	status.Tokens = all
	return status, nil
}

// statusPatience bounds the wait for one token's status, so that one that hangs does not keep that of the others.
const statusPatience = 2 * time.Second

// ask fills in what the token itself tells. The last error stays where the token does not answer.
func (s *Standing) ask(ctx context.Context, signer TokenSigner) {
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

// Usage returns the counts of all tokens, and the sessions of the one that signs. It never waits.
func (t *Tokens) Usage() Usage {
	if t.single() {
		return t.places[0].signer.Usage()
	}
	var all Usage
	first := t.first()
	for _, p := range t.places {
		signer := p.opened()
		if signer == nil {
			continue
		}
		u := signer.Usage()
		all.Signatures += u.Signatures
		all.WrongSignatures += u.WrongSignatures
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
func (t *Tokens) first() *place {
	var open *place
	for _, p := range t.places {
		if p.well() {
			return p
		}
		if open == nil && p.opened() != nil {
			open = p
		}
	}
	return open // one is: OpenTokens saw to it
}

func (t *Tokens) anyWell() bool {
	for _, p := range t.places {
		if p.well() {
			return true
		}
	}
	return false
}

// countWell does not look for new faults, since it is used where one is told.
func (t *Tokens) countWell() (n int) {
	for _, p := range t.places {
		p.mu.Lock()
		if p.out == nil && p.signer != nil {
			n++
		}
		p.mu.Unlock()
	}
	return n
}

// whyNot is why no token is used.
func (t *Tokens) whyNot() error {
	var reasons []error
	for _, s := range t.Standings() {
		reasons = append(reasons, errors.New(s.Name+": "+s.Reason))
	}
	return errors.Join(reasons...)
}
