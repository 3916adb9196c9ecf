package policy

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // makes time zones the same on machines without their own data

	"github.com/agnivade/levenshtein"
	"go.yaml.in/yaml/v3"

	"github.com/attestd/attestd/appliance"
)

// maxFile is the maximum size of a file in bytes. That is about 300,000 addresses.
const maxFile = 16 << 20

// Read reads a policy. Its error joins all faults of the file.
func Read(from io.Reader) (*Policy, error) {
	text, err := io.ReadAll(io.LimitReader(from, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxFile {
		return nil, fmt.Errorf("the policy has more than %d MiB: move denied addresses to "+
			"attestation.screening_list", maxFile>>20)
	}
	document, err := single(text)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(text)
	p := &Policy{
		Version: hex.EncodeToString(sum[:]), SecondBeneficiary: WarnOfSecond,
		Entries: values(document), Blank: len(bytes.TrimSpace(text)) == 0,
	}
	r := &reader{}
	if len(document.Content) > 0 { // otherwise the file is empty or has only comments
		r.policy(p, document.Content[0])
	}
	return p, errors.Join(r.failures...)
}

// single decodes the only document of a file. A second one is an error: its rules would not be in effect.
func single(text []byte) (*yaml.Node, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var document, second yaml.Node
	if err := decoder.Decode(&document); err != nil {
		if errors.Is(err, io.EOF) {
			return &document, nil
		}
		return nil, err
	}
	switch err := decoder.Decode(&second); {
	case err == nil:
		return nil,
			fmt.Errorf("line %d: a second YAML document begins with ---; a policy is one document", max(second.Line, 1))
	case !errors.Is(err, io.EOF):
		return nil, err
	}
	return &document, nil
}

// values counts the scalars other than the names of a mapping: addresses, counts, times and so on.
func values(n *yaml.Node) (count int) {
	if n.Kind == yaml.ScalarNode && n.Tag != "!!null" {
		return 1
	}
	for i, child := range n.Content {
		if n.Kind != yaml.MappingNode || i%2 == 1 {
			count += values(child)
		}
	}
	return count
}

// reader collects all faults of a file.
type reader struct{ failures []error }

func (r *reader) fail(n *yaml.Node, format string, args ...any) {
	r.failures = append(r.failures, fmt.Errorf("line %d: %w", n.Line, fmt.Errorf(format, args...)))
}

// member is a name of a mapping with the function that reads its value.
type member struct {
	name string
	read func(n *yaml.Node)
}

// mapping reads a mapping of known names.
func (r *reader) mapping(n *yaml.Node, what string, members ...member) {
	r.pairs(n, what, func(name, value *yaml.Node) {
		names := make([]string, len(members))
		for i, m := range members {
			if m.name == name.Value {
				m.read(value)
				return
			}
			names[i] = m.name
		}
		r.fail(name, "unknown name %q in %s; did you mean %s?", name.Value, what, nearest(name.Value, names))
	})
}

// nearest returns the name with the smallest edit distance.
func nearest(name string, names []string) string {
	return slices.MinFunc(names, func(a, b string) int {
		return levenshtein.ComputeDistance(name, a) - levenshtein.ComputeDistance(name, b)
	})
}

// pairs reads a mapping of arbitrary names. Each name may occur once. A mapping without content is empty.
func (r *reader) pairs(n *yaml.Node, what string, read func(name, value *yaml.Node)) {
	n = target(n)
	if n.Tag == "!!null" {
		return
	}
	if n.Kind != yaml.MappingNode {
		r.fail(n, "%s must be a mapping of names to values", what)
		return
	}
	seen := make(map[string]bool)
	for i := 0; i+1 < len(n.Content); i += 2 {
		name := n.Content[i]
		if seen[name.Value] {
			r.fail(name, "%q occurs twice", name.Value)
			continue
		}
		seen[name.Value] = true
		read(name, n.Content[i+1])
	}
}

// list reads a list.
func (r *reader) list(n *yaml.Node, what string, read func(n *yaml.Node)) {
	n = target(n)
	if n.Kind != yaml.SequenceNode {
		r.fail(n, "%s must be a list", what)
		return
	}
	for _, one := range n.Content {
		read(one)
	}
}

// target resolves an alias.
func target(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// text returns a scalar as it is written, because YAML would read an address as a number and 08:00 as seconds.
func (r *reader) text(n *yaml.Node, what string) (string, bool) {
	n = target(n)
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		r.fail(n, "%s is missing", what)
		return "", false
	}
	return n.Value, true
}

func (r *reader) policy(p *Policy, n *yaml.Node) {
	var rules []placed
	r.mapping(n, "the policy",
		member{"deny", func(n *yaml.Node) { p.Deny = r.sides(n, "deny") }},
		member{"allow", func(n *yaml.Node) { p.Allow = r.sides(n, "allow") }},
		member{"second_beneficiary", func(n *yaml.Node) { p.SecondBeneficiary = r.second(n) }},
		member{"time_zone", func(n *yaml.Node) { p.Zone = r.zone(n) }},
		member{"hours", func(n *yaml.Node) {
			r.list(n, "hours", func(n *yaml.Node) { p.Hours = append(p.Hours, r.opening(n)) })
		}},
		member{"caps", func(n *yaml.Node) { p.Caps = r.caps(n) }},
		member{"keys", func(n *yaml.Node) { p.Keys = r.keys(n) }},
		member{"approvals", func(n *yaml.Node) { rules = r.approvals(n) }},
	)
	r.complete(p, rules)
}

func (r *reader) sides(n *yaml.Node, what string) (s Sides) {
	r.mapping(n, what,
		member{"unspendable", func(n *yaml.Node) { s.Unspendable = r.addresses(n, what+".unspendable") }},
		member{"beneficiary", func(n *yaml.Node) { s.Beneficiary = r.addresses(n, what+".beneficiary") }},
	)
	return s
}

// addresses reads a list of addresses in the form of appliance.ParseAddress. The result is not nil, even for an empty
// list.
func (r *reader) addresses(n *yaml.Node, what string) AddressSet {
	set := make(AddressSet)
	r.list(n, what, func(n *yaml.Node) {
		text, ok := r.text(n, "an address")
		if !ok {
			return
		}
		a, err := appliance.ParseAddress(text)
		if err != nil {
			r.fail(n, "%.64q %w", text, err)
		}
		set[a] = struct{}{}
	})
	return set
}

func (r *reader) second(n *yaml.Node) SecondBeneficiary {
	text, _ := r.text(n, "second_beneficiary")
	switch s := SecondBeneficiary(text); s {
	case AllowSecond, WarnOfSecond, RefuseSecond:
		return s
	}
	r.fail(n, "second_beneficiary: %q is not refuse, warn or allow", text)
	return RefuseSecond
}

// zone reads a name of the IANA time zone database. It refuses "Local", which differs between machines.
func (r *reader) zone(n *yaml.Node) *time.Location {
	text, _ := r.text(n, "time_zone")
	zone, err := time.LoadLocation(text)
	if text == "" || text == "Local" || err != nil {
		r.fail(n, "time_zone: %q is not a name such as Europe/Berlin or UTC", text)
		return time.UTC
	}
	return zone
}

func (r *reader) caps(n *yaml.Node) []Cap {
	caps := []Cap{} // not nil, because an empty list replaces Policy.Caps
	var members []member
	for _, period := range Periods {
		members = append(members, member{string(period), func(n *yaml.Node) {
			text, _ := r.text(n, "caps."+string(period))
			count, err := strconv.ParseInt(text, 10, 64)
			if err != nil || count < 0 || count > math.MaxInt32 {
				r.fail(n, "caps.%s: %q is not a count from 0 to %d", period, text, math.MaxInt32)
			}
			caps = append(caps, Cap{Count: count, Per: period})
		}})
	}
	r.mapping(n, "caps", members...)
	return caps
}

// keyID matches the id of an API key.
var keyID = regexp.MustCompile(`^[a-z2-7]{16}$`)

func (r *reader) keys(n *yaml.Node) map[string]KeyRules {
	keys := make(map[string]KeyRules)
	r.pairs(n, "keys", func(name, value *yaml.Node) {
		if !keyID.MatchString(name.Value) {
			r.fail(name, "keys: %q is not an API key's id, as 'attestd key list' shows it", name.Value)
		}
		var k KeyRules
		r.mapping(value, "keys."+name.Value,
			member{"beneficiaries", func(n *yaml.Node) { k.Beneficiaries = r.addresses(n, "beneficiaries") }},
			member{"caps", func(n *yaml.Node) { k.Caps = r.caps(n) }},
		)
		keys[name.Value] = k
	})
	return keys
}

// days are the names of the days, indexed by time.Weekday.
var days = []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}

func (r *reader) opening(n *yaml.Node) Opening {
	o := Opening{From: -1, To: -1}
	for i := range o.Days {
		o.Days[i] = true // the default without days
	}
	before := len(r.failures)
	r.mapping(n, "hours",
		member{"days", func(n *yaml.Node) { o.Days = r.days(n) }},
		member{"from", func(n *yaml.Node) { o.From = r.minutes(n, "from") }},
		member{"to", func(n *yaml.Node) { o.To = r.minutes(n, "to") }},
	)
	if len(r.failures) > before {
		return o
	}
	switch {
	case o.From < 0 || o.To < 0:
		r.fail(n, "hours: from and to are required, such as 08:00 and 18:00")
	case o.From == o.To:
		r.fail(n, "hours: from and to are equal; for the whole day, use 00:00 and 24:00")
	case o.Check() != nil:
		r.fail(n, "hours: %w", o.Check())
	}
	return o
}

func (r *reader) days(n *yaml.Node) (on [7]bool) {
	r.list(n, "days", func(n *yaml.Node) {
		text, _ := r.text(n, "a day")
		for i, day := range days {
			if text == day {
				on[i] = true
				return
			}
		}
		r.fail(n, "unknown day %q; use one of %s", text, strings.Join(days, ", "))
	})
	return on
}

// clock matches a time of day in minutes; 24:00 is the end of the day.
var clock = regexp.MustCompile(`^(?:([01][0-9]|2[0-3]):([0-5][0-9])|24:00)$`)

func (r *reader) minutes(n *yaml.Node, what string) int {
	text, _ := r.text(n, what)
	if !clock.MatchString(text) {
		r.fail(n, "%s: %q is not a time of the day such as 08:00", what, text)
		return 0
	}
	hour, _ := strconv.Atoi(text[:2])
	minute, _ := strconv.Atoi(text[3:])
	return hour*60 + minute
}
