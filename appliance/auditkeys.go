package appliance

import (
	"fmt"
	"strings"

	"github.com/google/uuid"
)

// auditedKeys is what a journal's events say of API keys, by their ids.
type auditedKeys map[string]auditedKey

type auditedKey struct {
	details map[string]string // of the newest event that made or bound it
	revoked bool
}

func (a auditedKeys) add(e *Event) {
	if e == nil {
		return
	}
	id := e.Details[detailKeyID]
	known := a[id]
	switch e.Kind {
	case EventKeyCreated, EventKeyBound:
		known.details = e.Details
	case EventKeyRevoked:
		known.revoked = true
	default:
		return
	}
	a[id] = known
}

// Keys compares API keys with what the events say of them, and reports those that can be used and differ. before is the list as it was
// before the audited head was read, now as it is after: an operator's change is recorded before it is made, and may be between the two.
func (a *Audit) Keys(before, now []APIKey) {
	current := make(map[string]APIKey)
	for _, k := range now {
		current[k.ID] = k
	}
	for _, k := range before {
		states := []APIKey{k}
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
			a.Report(Damage{Index: -1, ID: uuid.Nil, Part: "api_key", Detail: fmt.Sprintf("%s (%q): %s", k.ID, k.Name, fault)})
		}
	}
}

// fault is how a key differs from what the events say of it; "" where it does not.
func (a auditedKeys) fault(k APIKey) string {
	known, named := a[k.ID]
	switch {
	case !named && k.Revoked.IsZero():
		return "no event says that it was created: revoke it, and look for what it attested"
	case !named:
		return "no event says that it was created or revoked: look for what it attested"
	case known.revoked && k.Revoked.IsZero():
		return "it can be used, and an event says that it was revoked: revoke it again"
	case !k.Revoked.IsZero():
		return ""
	}
	var differ []string
	details := k.Details()
	for _, name := range []string{"name", "secretHash", "scopes", "rate", "allowFrom", "expires", "attestor"} {
		if known.details[name] != details[name] {
			differ = append(differ, name)
		}
	}
	if len(differ) == 0 {
		return ""
	}
	return fmt.Sprintf("its %s is not as the newest event about it says: revoke it", strings.Join(differ, ", "))
}
