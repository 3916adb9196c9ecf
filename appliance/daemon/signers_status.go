package daemon

import (
	"context"
	"slices"

	"github.com/attestd/attestd/appliance/attest"
	"github.com/attestd/attestd/hsm"
)

// keyState is a snapshot of a key.
type keyState struct {
	signerKey
	standard bool // it is the default key
	position int  // of its first token among the tokens of all keys, from 1
}

// states returns snapshots of all keys, in order.
func (s *signers) states() []keyState {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]keyState, len(s.keys))
	standard := slices.IndexFunc(s.keys, func(k *signerKey) bool { return k.State == attest.AttestorKeyActive })
	for i, position := 0, 1; i < len(all); i++ {
		all[i] = keyState{*s.keys[i], i == standard, position}
		position += len(s.keys[i].uris)
	}
	return all
}

// standings returns the state of each token of the key.
func (k keyState) standings() []hsm.Standing {
	if k.tokens != nil {
		all := k.tokens.Standings()
		for i := range all {
			all[i].KeyName, all[i].Position = k.Name, k.position+i
		}
		return all
	}
	all := make([]hsm.Standing, len(k.uris))
	for i, uri := range k.uris {
		all[i] = hsm.Standing{KeyName: k.Name, Position: k.position + i, Name: uri.Label(), State: hsm.TokenFailing,
			Reason: k.fault.Error()}
	}
	return all
}

// Standings returns the state of each token of all keys. It calls no token.
func (s *signers) Standings() (all []hsm.Standing) {
	for _, k := range s.states() {
		all = append(all, k.standings()...)
	}
	return all
}

// Status returns the status of the default key and, if keys have names, of each key.
func (s *signers) Status(ctx context.Context) (status hsm.Status, err error) {
	var keys []hsm.NamedStatus
	for _, k := range s.states() {
		one := hsm.NamedStatus{Name: k.Name, State: string(k.State), Default: k.standard}
		if k.tokens == nil {
			one.LastError = k.fault.Error()
			one.Key.Address, _ = k.Expected()
		} else if one.Status, err = k.tokens.Status(ctx); err != nil {
			return status, err
		}
		for i := range one.Tokens {
			one.Tokens[i].KeyName, one.Tokens[i].Position = k.Name, k.position+i
		}
		if k.standard {
			status = one.Status
		}
		keys = append(keys, one)
	}
	if keys[0].Name != "" {
		status.Keys = keys
	}
	return status, nil
}
