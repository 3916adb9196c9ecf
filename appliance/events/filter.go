package events

import (
	"slices"
	"strings"

	"github.com/attestd/attestd/appliance"
)

// Viewer says which events a reader may see.
type Viewer struct {
	Operator bool   // sees all events
	KeyID    string // sees the attestations of this API key; empty for none
	Packets  bool   // sees transfers and packets
}

// May reports whether the viewer may see an event.
func (v Viewer) May(e Event) bool {
	switch {
	case v.Operator:
		return true
	case e.Type == TransferUpdated || e.Type == PacketUpdated:
		return v.Packets
	}
	return v.KeyID != "" && e.KeyID == v.KeyID
}

// Filter selects events. An event must match each part that is not empty.
type Filter struct {
	Types     []string // a type, or all types of a group: transfer.*
	Addresses []string // lower-case; matches an event with one of them
	Chains    []string // universal chain ids; matches an event with one of them
	Subjects  []string // attestations by id, packets by lower-case hash
}

// MaxFiltered is how many values each part of a Filter may have.
const MaxFiltered = 100

// ParseFilter reads comma-separated lists.
//
// Errors: CodeInvalidField, of types, addresses, chains or subjects.
func ParseFilter(types, addresses, chains, subjects string) (f Filter, err error) {
	for _, part := range []struct {
		name, text string
		to         *[]string
		lower      bool
	}{
		{"types", types, &f.Types, false}, {"addresses", addresses, &f.Addresses, true},
		{"chains", chains, &f.Chains, false}, {"subjects", subjects, &f.Subjects, true},
	} {
		if part.text == "" {
			continue
		}
		if part.lower {
			part.text = lower(part.text)
		}
		*part.to = strings.Split(part.text, ",")
		if len(*part.to) > MaxFiltered || slices.Contains(*part.to, "") {
			return Filter{}, appliance.Errorf(appliance.CodeInvalidField,
				"must be 1 to %d values, separated by one comma", MaxFiltered).In(part.name)
		}
	}
	return f, f.Check()
}

// Check returns CodeInvalidField for a type that no event has.
func (f Filter) Check() error {
	for _, wanted := range f.Types {
		listed := slices.ContainsFunc(Types(), func(t Type) bool { return matches(wanted, t) })
		if !listed && !strings.HasPrefix(wanted, unlisted) {
			return appliance.Errorf(appliance.CodeInvalidField,
				"%q is no type of events: use one such as transfer.updated, or all of a group: transfer.*",
				wanted).In("types")
		}
	}
	return nil
}

// matches reports whether a value of Filter.Types selects a type.
func matches(wanted string, t Type) bool {
	group, all := strings.CutSuffix(wanted, ".*")
	return all && t.Group() == group || wanted == string(t)
}

// Allowed returns CodeScopeRequired if the filter names a type of which the viewer may see no event.
func (f Filter) Allowed(v Viewer) error {
	for _, wanted := range f.Types {
		if !slices.ContainsFunc(Types(), func(t Type) bool { return matches(wanted, t) && v.sees(t) }) {
			return appliance.Errorf(appliance.CodeScopeRequired, "this API key may not see events of type %s", wanted)
		}
	}
	return nil
}

// sees reports whether there may be an event of the type that the viewer may see.
func (v Viewer) sees(t Type) bool {
	switch t {
	case AttestationIssued, AttestationRefused, AttestationRedeemed:
		return v.Operator || v.KeyID != ""
	case TransferUpdated, PacketUpdated:
		return v.Operator || v.Packets
	}
	return v.Operator
}

// Matches reports whether the filter selects an event.
func (f Filter) Matches(e Event) bool {
	return f.takes(e.Type) && overlap(f.Addresses, e.Addresses) && overlap(f.Chains, e.Chains) &&
		(len(f.Subjects) == 0 || slices.Contains(f.Subjects, e.Subject))
}

// takes reports whether the filter selects events of a type.
func (f Filter) takes(t Type) bool {
	return len(f.Types) == 0 || slices.ContainsFunc(f.Types, func(wanted string) bool { return matches(wanted, t) })
}

// overlap reports whether a part of a filter selects an event with these values.
func overlap(wanted, has []string) bool {
	return len(wanted) == 0 || slices.ContainsFunc(has, func(s string) bool { return slices.Contains(wanted, s) })
}
