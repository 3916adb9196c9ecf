package audit

import (
	"fmt"
	"strings"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/google/uuid"
)

// auditedKeys holds the state of each API key, by id, according to the events of a journal.
type auditedKeys struct {
	byID map[string]auditedKey

	// The journal of an attestd version that recorded no events starts with an attestation. API keys created before its
	// first event have no events.
	leaves     int64
	old        bool
	firstEvent time.Time // zero without events
}

type auditedKey struct {
	details map[string]string // of the newest key_created or key_bound event
	revoked bool
}

func (a *auditedKeys) add(e *journal.Event) {
	if e != nil && e.Kind == journal.EventLogContinued { // precedes the leaves of the old log
		return
	}
	a.old = a.old || e == nil && a.leaves == 0
	a.leaves++
	if e == nil {
		return
	}
	if a.firstEvent.IsZero() {
		a.firstEvent = e.Time
	}
	id := e.Details[appliance.DetailKeyID]
	known := a.byID[id]
	switch e.Kind {
	case journal.EventKeyCreated, journal.EventKeyBound:
		known.details = e.Details
	case journal.EventKeyRevoked:
		known.revoked = true
	default:
		return
	}
	a.byID[id] = known
}

// precedes reports whether a key may lack events because it was created before the first event.
func (a *auditedKeys) precedes(k appliance.APIKey) bool {
	return a.old && (a.firstEvent.IsZero() || k.Created.Before(a.firstEvent))
}

// Keys compares the API keys with the events, and reports each key that differs. before was listed before the audited
// tree was read, now after it. A key that matches in either list is good, because an event is recorded before its
// change is made.
func (a *Audit) Keys(before, now []appliance.APIKey) {
	current := make(map[string]appliance.APIKey)
	for _, k := range now {
		current[k.ID] = k
	}
	for _, k := range before {
		states := []appliance.APIKey{k}
		if later, found := current[k.ID]; found {
			states = append(states, later)
		}
		var fault string
		for _, s := range states {
			if fault = a.keys.fault(s); fault == "" {
				break
			}
		}
		if fault != "" {
			a.Report(Damage{Index: -1, ID: uuid.Nil, Part: "api_key",
				Detail: fmt.Sprintf("%s (%q): %s", k.ID, k.Name, fault)})
		}
	}
}

// fault describes how a key differs from its events. It is empty if the key matches.
func (a *auditedKeys) fault(k appliance.APIKey) string {
	known, named := a.byID[k.ID]
	switch {
	case !named && a.precedes(k):
		return ""
	case !named && k.Revoked.IsZero():
		return "no event records its creation: revoke it, and review its attestations (attestd log list --key)"
	case !named:
		return "no event records its creation or revocation: review its attestations (attestd log list --key)"
	case known.revoked && k.Revoked.IsZero():
		return "an event records its revocation, but it still works: revoke it again"
	case !k.Revoked.IsZero():
		return ""
	}
	var differ []string
	details := k.Details()
	if _, told := known.details["secretHash"]; !told { // an older attestd did not record it
		delete(details, "secretHash")
	}
	for _, name := range []string{"name", "secretHash", "scopes", "rate", "allowFrom", "expires", "attestor"} {
		if known.details[name] != details[name] {
			differ = append(differ, name)
		}
	}
	if len(differ) == 0 {
		return ""
	}
	return fmt.Sprintf("its %s differs from its newest event: revoke it", strings.Join(differ, ", "))
}
