package follower

import (
	"slices"
	"strings"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index"
)

// plan is how an upstream is queried. It is derived from the upstream's schema.
type plan struct {
	queries map[*index.Type]*query // of the types that can be read
	counts  bool                   // the upstream counts its rows
	missing []string               // fields that the upstream lacks, as type.field
}

// query is how the rows of a type are requested.
type query struct {
	rootQuery
	args   graphType // the members that its args may have
	fields []selected
	// Selections without braces, for a page, a lookup, a lookup of a packet that the index has, and a comparison.
	page, lookup, onward, brief string
	related                     bool // a field is found by a relation; see selected
	// the argument that filters by flag; empty if GraphQL shows flag or has no such argument
	filter string
}

// selected is a row field as it is requested.
type selected struct {
	f *index.Field
	// relation and key are set for a field that GraphQL does not show but that is the key of a related row. It is
	// requested as field: relation { key }.
	relation, key string
	inner         []selected // fields of an object, or of a list of objects
}

// newPlan plans the queries.
//
// Errors: appliance.CodeUpstreamUnavailable if packets or transfers cannot be read.
func newPlan(s *schema) (*plan, error) {
	p := &plan{queries: make(map[*index.Type]*query)}
	_, p.counts = s.types[s.queries][countQuery]
	if !p.counts {
		p.miss(s.queries, countQuery)
	}
	for _, root := range rootQueries {
		q, lack := p.query(s, root)
		switch {
		case lack == "":
			p.queries[root.t] = q
		case root.t == index.PacketType || root.t == index.TransferType:
			return nil, appliance.Errorf(appliance.CodeUpstreamUnavailable,
				"the upstream cannot be followed: it lacks %s", lack)
		}
	}
	slices.Sort(p.missing)
	p.missing = slices.Compact(p.missing)
	return p, nil
}

func (p *plan) miss(graphType, field string) { p.missing = append(p.missing, graphType+"."+field) }

// query plans how a type's rows are requested. lack names a required part of the schema that the upstream does not
// have.
func (p *plan) query(s *schema, root rootQuery) (q *query, lack string) {
	field, ok := s.types[s.queries][root.name]
	if !ok {
		p.miss(s.queries, root.name)
		return nil, root.name
	}
	q = &query{rootQuery: root, args: s.types[field.args]}
	q.rows = field.named
	if root.t == index.PacketType || root.t == index.TransferType {
		for _, arg := range []string{argLimit, argCursor, argComparison, argHash} {
			if !q.takes(arg) {
				return nil, root.name + "(args: {" + arg + "})"
			}
		}
	}
	if q.fields, lack = p.selection(s, root.t, q.rows); lack != "" {
		p.miss(s.queries, root.name)
		return nil, lack
	}
	if _, shown := s.types[q.rows][root.flag]; root.flag != "" && !shown {
		q.filter = "p_" + root.flag
		if !q.takes(q.filter) {
			p.miss(q.rows, root.flag)
			q.filter = ""
		}
	}
	q.page = selectionText(q.fields, func(f *index.Field) bool { return f.Kind != index.FieldJSON })
	q.lookup = selectionText(q.fields, func(*index.Field) bool { return true })
	q.onward = selectionText(q.fields, func(f *index.Field) bool { return needed(f) || movesOn(f) })
	q.brief = selectionText(q.fields, func(f *index.Field) bool { return needed(f) || f.Name == "status" })
	q.related = related(q.fields)
	return q, ""
}

func (q *query) takes(arg string) bool {
	_, ok := q.args[arg]
	return ok
}

// selection chooses which fields of a type are requested. lack is the first required field that the upstream does not
// have.
func (p *plan) selection(s *schema, t *index.Type, graphType string) (set []selected, lack string) {
	for i := range t.Fields {
		f := &t.Fields[i]
		if field, ok := p.field(s, t, f, graphType); ok {
			set = append(set, field)
			continue
		}
		if needed(f) && lack == "" {
			lack = graphType + "." + f.Name
		}
		if !madeOtherwise(t, f) {
			p.miss(graphType, f.Name)
		}
	}
	return set, lack
}

// needed reports whether rows are unreadable without the field.
func needed(f *index.Field) bool { return f.Required && f.Elem == nil }

// movesOn reports whether a packet's field changes while the packet is in progress. The other fields are read again
// once it has ended.
func movesOn(f *index.Field) bool {
	if slices.Contains([]string{"status", "success", "acknowledgement", "traces"}, f.Name) {
		return true
	}
	return slices.ContainsFunc([]string{"packet_recv_", "write_ack_", "packet_ack_", "packet_timeout_"},
		func(step string) bool {
			return strings.HasPrefix(f.Name, step)
		})
}

// madeOtherwise reports whether a field is available although GraphQL does not show it. A transfer's status comes from
// its packet. A flag comes from a filter; a missing filter is reported separately.
func madeOtherwise(t *index.Type, f *index.Field) bool {
	if t == index.TransferType && f.Name == "status" {
		return true
	}
	return slices.ContainsFunc(rootQueries, func(q rootQuery) bool { return q.t == t && q.flag == f.Name })
}

// field plans how one field is requested, if that is possible.
func (p *plan) field(s *schema, t *index.Type, f *index.Field, graphType string) (selected, bool) {
	shown, ok := s.types[graphType][f.Name]
	_, isObject := s.types[shown.named]
	switch {
	case ok && isObject && f.Elem != nil:
		inner, lack := p.selection(s, f.Elem, shown.named)
		return selected{f: f, inner: inner}, lack == "" && len(inner) > 0
	case ok && !isObject && f.Elem == nil:
		return selected{f: f}, true
	}
	for _, r := range t.Relations {
		to, ok := s.types[graphType][r.Name]
		if !ok || len(r.By) != 1 || r.By[0] != f.Number {
			continue
		}
		key := r.To.Fields[r.To.Key[0]].Name
		if _, ok := s.types[to.named][key]; ok {
			return selected{f: f, relation: r.Name, key: key}, true
		}
	}
	return selected{}, false
}

func related(set []selected) bool {
	return slices.ContainsFunc(set, func(s selected) bool { return s.relation != "" || related(s.inner) })
}

// selectionText prints the wanted fields. Fields nested in them are printed whole.
func selectionText(set []selected, wanted func(*index.Field) bool) string {
	var names []string
	for _, s := range set {
		switch {
		case !wanted(s.f):
			continue
		case s.relation != "":
			names = append(names, s.f.Name+":"+s.relation+"{"+s.key+"}")
		case len(s.inner) > 0:
			names = append(names, s.f.Name+"{"+selectionText(s.inner, func(*index.Field) bool { return true })+"}")
		default:
			names = append(names, s.f.Name)
		}
	}
	return strings.Join(names, " ")
}
