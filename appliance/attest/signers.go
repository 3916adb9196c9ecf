package attest

import (
	"fmt"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/fairqueue"
	"strings"
)

// AttestorKey is one of the keys that sign an appliance's attestations.
type AttestorKey struct {
	Name   string // API keys are bound to it by this name; empty if the appliance has one unnamed key
	State  AttestorKeyState
	Signer Signer
	// Concurrency returns how many signatures the signer can make at once. That many calls are admitted; other calls
	// are queued. Nil admits all.
	Concurrency func() int
}

// AttestorKeyState says for which API keys an attestor key signs.
type AttestorKeyState string

// The states of an attestor key.
const (
	AttestorKeyActive   AttestorKeyState = "active"   // signs for API keys bound to it; the first one also for unbound
	AttestorKeyRetiring AttestorKeyState = "retiring" // signs for API keys bound to it; no other API key can be bound
)

// MostAttestorKeys is how many keys an appliance may have.
const MostAttestorKeys = 8

// CheckBinding returns nil if an API key may be bound to the named attestor key. An empty name means unbound and is
// always valid. The error is CodeInvalidField of attestor.
func CheckBinding(keys []AttestorKey, name string) error {
	if name == "" {
		return nil
	}
	var names []string
	for _, k := range keys {
		switch {
		case k.Name == name && k.State == AttestorKeyRetiring:
			return appliance.Errorf(appliance.CodeInvalidField, "%s is retiring and cannot be bound to API keys",
				name).In("attestor")
		case k.Name == name:
			return nil
		case k.Name != "":
			names = append(names, k.Name)
		}
	}
	if len(names) == 0 {
		return appliance.Errorf(appliance.CodeInvalidField, "attestor keys have names only if hsm.keys is set").In("attestor")
	}
	return appliance.Errorf(appliance.CodeInvalidField, "unknown attestor key %.64q; use one of %s", name,
		strings.Join(names, ", ")).In("attestor")
}

// attestorKey is an attestor key with its fair queue.
type attestorKey struct {
	AttestorKey
	queue *fairqueue.Queue
}

// attestorKeys is an immutable snapshot of the attestor keys.
type attestorKeys struct {
	all      []*attestorKey
	standard *attestorKey // signs for unbound API keys
}

// SetAttestorKeys replaces the attestor keys for later calls. At least one key must be active. The caller may close a
// signer that is left out once the earlier calls have ended.
func (a *Attestor) SetAttestorKeys(keys []AttestorKey) {
	before := a.attestorKeys.Load()
	next := new(attestorKeys)
	for _, k := range keys {
		one := &attestorKey{k, new(fairqueue.Queue)}
		if before != nil {
			for _, old := range before.all {
				if old.Signer == k.Signer {
					one.queue = old.queue // queued calls keep their place
				}
			}
		}
		next.all = append(next.all, one)
		if next.standard == nil && k.State == AttestorKeyActive {
			next.standard = one
		}
	}
	a.attestorKeys.Store(next)
}

// AttestorKeys returns the attestor keys in order.
func (a *Attestor) AttestorKeys() []AttestorKey {
	now := a.now()
	keys := make([]AttestorKey, len(now.all))
	for i, s := range now.all {
		keys[i] = s.AttestorKey
	}
	return keys
}

// Addresses returns the addresses of the attestor keys, in order.
func (a *Attestor) Addresses() (all []appliance.Address) {
	for _, k := range a.AttestorKeys() {
		all = append(all, k.Signer.Address())
	}
	return all
}

// DefaultKey returns the attestor key that signs for unbound API keys.
func (a *Attestor) DefaultKey() AttestorKey { return a.now().standard.AttestorKey }

// now returns the attestor keys. Before SetAttestorKeys, the only one is Signer.
func (a *Attestor) now() *attestorKeys {
	if now := a.attestorKeys.Load(); now != nil {
		return now
	}
	only := &attestorKey{AttestorKey{State: AttestorKeyActive, Signer: a.Signer, Concurrency: a.Concurrency},
		new(fairqueue.Queue)}
	a.attestorKeys.CompareAndSwap(nil, &attestorKeys{all: []*attestorKey{only}, standard: only})
	return a.attestorKeys.Load()
}

// journal.SignerOf returns the address of the attestor key that signs for an API key.
//
// Errors: CodeAttestorKeyUnavailable.
func (a *Attestor) SignerOf(key appliance.APIKey) (appliance.Address, error) {
	signer, err := a.seatOf(key)
	if err != nil {
		return appliance.Address{}, err
	}
	return signer.Signer.Address(), nil
}

// seatOf returns the attestor key that signs for an API key.
//
// Errors: CodeAttestorKeyUnavailable.
func (a *Attestor) seatOf(key appliance.APIKey) (*attestorKey, error) {
	now := a.now()
	if key.Attestor == "" {
		return now.standard, nil
	}
	for _, s := range now.all {
		if s.Name == key.Attestor {
			return s, nil
		}
	}
	return nil,
		appliance.Errorf(appliance.CodeAttestorKeyUnavailable,
			"this appliance lacks the attestor key to which the API key is bound").
			Because(
				fmt.Errorf("API key %s is bound to %q: add that key to hsm.keys, or bind the API key to another one "+
					"(attestd key bind)", key.ID, key.Attestor))
}
