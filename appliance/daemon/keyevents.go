package daemon

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/attestd/attestd/appliance"
)

// keysChanged makes the attestor sign with these keys, and records the changes as events.
func (r *running) keysChanged(keys []appliance.AttestorKey) {
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
func (t *recordedKeys) changes(keys []appliance.AttestorKey, standard appliance.Address) (events []appliance.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.keys
	t.keys = make(map[string]map[string]string)
	for _, k := range keys {
		address := k.Signer.Address()
		if address == (appliance.Address{}) {
			continue
		}
		details := map[string]string{appliance.DetailAddress: address.String(), "state": string(k.State)}
		if k.Name != "" {
			details["name"] = k.Name
		}
		if address == standard {
			details["default"] = "true"
		}
		t.keys[address.String()] = details
		if old, known := before[address.String()]; !known {
			events = append(events, appliance.Event{Kind: appliance.EventSignerAdded, Details: details})
		} else if !maps.Equal(old, details) {
			events = append(events, appliance.Event{Kind: appliance.EventSignerChanged, Details: details})
		}
	}
	for _, address := range slices.Sorted(maps.Keys(before)) {
		if t.keys[address] == nil {
			events = append(events, appliance.Event{Kind: appliance.EventSignerRemoved, Details: before[address]})
		}
	}
	if !t.begun {
		return nil
	}
	return events
}
