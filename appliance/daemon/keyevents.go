package daemon

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/attest"
	"github.com/attestd/attestd/appliance/journal"
)

// keysChanged makes the attestor sign with these keys, and records the changes as events.
func (r *running) keysChanged(keys []attest.AttestorKey) {
	r.attestor.SetAttestorKeys(keys)
	standard := r.attestor.DefaultKey().Signer.Address()
	r.signs.Store(standard.String())
	for _, event := range r.recordedKeys.changes(keys, standard) {
		r.events.Record(event)
	}
}

// recordedKeys holds the attestor keys as the journal has them: their addresses at the start, and each recorded change.
type recordedKeys struct {
	mu    sync.Mutex
	begun bool
	keys  map[string]map[string]string // details of each key, by address
}

// begin returns the addresses for the event of the start, separated by spaces.
func (t *recordedKeys) begin() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.begun = true
	return strings.Join(slices.Sorted(maps.Keys(t.keys)), " ")
}

// changes returns the events of all changes since the last call. It ignores keys whose address is not known yet.
func (t *recordedKeys) changes(keys []attest.AttestorKey, standard appliance.Address) (events []journal.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.keys
	t.keys = make(map[string]map[string]string)
	for _, k := range keys {
		address := k.Signer.Address()
		if address == (appliance.Address{}) {
			continue
		}
		details := map[string]string{journal.DetailAddress: address.String(), "state": string(k.State)}
		if k.Name != "" {
			details["name"] = k.Name
		}
		if address == standard {
			details["default"] = "true"
		}
		t.keys[address.String()] = details
		if old, known := before[address.String()]; !known {
			events = append(events, journal.Event{Kind: journal.EventSignerAdded, Details: details})
		} else if !maps.Equal(old, details) {
			events = append(events, journal.Event{Kind: journal.EventSignerChanged, Details: details})
		}
	}
	for _, address := range slices.Sorted(maps.Keys(before)) {
		if t.keys[address] == nil {
			events = append(events, journal.Event{Kind: journal.EventSignerRemoved, Details: before[address]})
		}
	}
	if !t.begun {
		return nil
	}
	return events
}
