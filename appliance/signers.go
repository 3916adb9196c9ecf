package appliance

import (
	"fmt"
	"regexp"
	"strings"
)

// AttestorKey is one of the keys with which an appliance attests.
type AttestorKey struct {
	Name   string // by which API keys are bound to it; empty for the only one of an appliance that names none
	State  AttestorKeyState
	Signer Signer
	// Concurrency tells how many signatures the signer can make at once: so many calls are let through to it, others wait in
	// turn. Nil lets all through.
	Concurrency func() int
}

// AttestorKeyState says for whom an attestor key signs.
type AttestorKeyState string

// The states of an attestor key.
const (
	AttestorKeyActive   AttestorKeyState = "active"   // for API keys bound to it; the first that is active is the default, also for all that are bound to none
	AttestorKeyRetiring AttestorKeyState = "retiring" // for API keys that are bound to it, and no other may be bound
)

// MostAttestorKeys is how many keys an appliance may have.
const MostAttestorKeys = 8

var attestorKeyName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// ValidAttestorKeyName says whether s can name an attestor key: 1 to 64 letters, digits, dots, dashes and underscores, the first a
// letter or a digit.
func ValidAttestorKeyName(s string) bool { return attestorKeyName.MatchString(s) }

// CheckBinding returns nil if an API key may be bound to the attestor key of that name, or to none where that is empty; else
// CodeInvalidField of attestor.
func CheckBinding(keys []AttestorKey, name string) error {
	if name == "" {
		return nil
	}
	var names []string
	for _, k := range keys {
		switch {
		case k.Name == name && k.State == AttestorKeyRetiring:
			return Errorf(CodeInvalidField, "%s is retiring: no API key can be bound to it", name).In("attestor")
		case k.Name == name:
			return nil
		case k.Name != "":
			names = append(names, k.Name)
		}
	}
	if len(names) == 0 {
		return Errorf(CodeInvalidField, "there is no attestor key with a name: hsm.keys names them").In("attestor")
	}
	return Errorf(CodeInvalidField, "there is no attestor key %.64q; there are %s", name, strings.Join(names, ", ")).In("attestor")
}

// seat is an attestor key with the calls that wait for it.
type seat struct {
	AttestorKey
	turns *turns
}

// seats are the attestor keys at one time. They are never changed.
type seats struct {
	all      []*seat
	standard *seat // for API keys that are bound to none
}

// SetAttestorKeys replaces the attestor keys, of which one must be active, and takes effect for calls that come later. Signers that are
// left out may be closed once the calls of before have ended.
func (a *Attestor) SetAttestorKeys(keys []AttestorKey) {
	before := a.seats.Load()
	next := new(seats)
	for _, k := range keys {
		one := &seat{k, new(turns)}
		if before != nil {
			for _, old := range before.all {
				if old.Signer == k.Signer {
					one.turns = old.turns // who waits there goes on waiting
				}
			}
		}
		next.all = append(next.all, one)
		if next.standard == nil && k.State == AttestorKeyActive {
			next.standard = one
		}
	}
	a.seats.Store(next)
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

// Addresses returns those of the attestor keys, in order.
func (a *Attestor) Addresses() (all []Address) {
	for _, k := range a.AttestorKeys() {
		all = append(all, k.Signer.Address())
	}
	return all
}

// DefaultKey returns the attestor key that signs for API keys bound to none.
func (a *Attestor) DefaultKey() AttestorKey { return a.now().standard.AttestorKey }

// now returns the attestor keys; before SetAttestorKeys that is Signer alone.
func (a *Attestor) now() *seats {
	if now := a.seats.Load(); now != nil {
		return now
	}
	only := &seat{AttestorKey{State: AttestorKeyActive, Signer: a.Signer, Concurrency: a.Concurrency}, new(turns)}
	a.seats.CompareAndSwap(nil, &seats{all: []*seat{only}, standard: only})
	return a.seats.Load()
}

// seatOf returns the attestor key that signs for an API key, and no other does.
//
// Errors: CodeAttestorKeyUnavailable.
func (a *Attestor) seatOf(key APIKey) (*seat, error) {
	now := a.now()
	if key.Attestor == "" {
		return now.standard, nil
	}
	for _, s := range now.all {
		if s.Name == key.Attestor {
			return s, nil
		}
	}
	return nil, Errorf(CodeAttestorKeyUnavailable, "this appliance does not have the attestor key to which the API key is bound").
		Because(fmt.Errorf("API key %s is bound to %q: name it in hsm.keys, or bind the API key to another (attestd key bind)", key.ID, key.Attestor))
}
