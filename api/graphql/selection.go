package graphql

import (
	"fmt"
	"slices"

	"github.com/vektah/gqlparser/v2/ast"
)

// field is a field of a selection set after fragments were spread and fields of the same response key merged
// (GraphQL, section 6.3.2): each key is there once, in the order of the response.
type field struct {
	key    string // in the response
	prefix []byte // ,"key":
	node   *ast.Field
	def    *ast.FieldDefinition
	schema *ast.Schema
	meta   bool // __schema or __type
	access access
	fields []*field

	place        int           // where the field is written first
	alternatives []alternative // where and when it is asked for; none means always, in its place
	always       bool          // the last alternative is unconditional

	byKey     map[string]*field
	arguments string // printed, to compare
}

// alternative is one of the places where a field is written, under @skip or @include. It holds, and the field stands
// there in the response, when all its guards do, those of the selections around it too.
type alternative struct {
	place  int
	guards []guard
}

// guard is one @skip or @include: it holds when the variable has that value.
type guard struct {
	condition *ast.Value
	value     bool
}

// merger collects fields as the executor of GraphQL, section 6.3.2, does, once for all values of variables. All
// types are objects, so fields of one response key must be the same field with the same arguments
// (section 5.3.2): that is found here on the way, without comparing pairs.
type merger struct {
	schema    *ast.Schema
	places    int // counts fields in the order of the document, with fragments where they are spread
	conflicts []*Error
}

func (m *merger) merge(root *ast.Definition, set ast.SelectionSet) []*field {
	top := &field{byKey: make(map[string]*field)}
	m.collect(top, root, set, nil)
	for _, f := range top.fields {
		f.resolveAccess(rowQueries[f.def.Name].rows)
	}
	return top.fields
}

func (m *merger) collect(into *field, parent *ast.Definition, set ast.SelectionSet, when []guard) {
	for _, s := range set {
		switch s := s.(type) {
		case *ast.Field:
			f, inner := m.field(into, s), guards(when, s.Directives)
			f.addAlternative(m.places, inner)
			if len(s.SelectionSet) > 0 {
				m.collect(f, m.schema.Types[f.def.Type.Name()], s.SelectionSet, inner)
			}
		case *ast.InlineFragment:
			m.collect(into, parent, s.SelectionSet, guards(when, s.Directives))
		case *ast.FragmentSpread:
			m.collect(into, parent, s.Definition.SelectionSet, guards(when, s.Directives))
		}
	}
}

// field returns the field of a node's response key, a new one for a new key.
func (m *merger) field(into *field, node *ast.Field) *field {
	m.places++
	arguments := printArguments(node.Arguments)
	known, ok := into.byKey[node.Alias]
	if !ok {
		f := &field{
			key: node.Alias, place: m.places, prefix: []byte(`,"` + node.Alias + `":`), node: node, def: node.Definition, schema: m.schema,
			meta: node.Name == "__schema" || node.Name == "__type", byKey: make(map[string]*field), arguments: arguments,
		}
		into.byKey[node.Alias] = f
		into.fields = append(into.fields, f)
		return f
	}
	if (known.node.Name != node.Name || known.arguments != arguments) && len(m.conflicts) < maxErrors {
		conflict := newError(CodeValidationFailed, fmt.Sprintf(
			`Fields %q conflict: they are different fields or have different arguments. Use different aliases to fetch both.`, node.Alias)).at(known.node.Position)
		conflict.Locations = append(conflict.Locations, Location{Line: node.Position.Line, Column: node.Position.Column})
		m.conflicts = append(m.conflicts, conflict)
	}
	return known
}

// guards adds the conditions of directives to those around them.
func guards(around []guard, directives ast.DirectiveList) []guard {
	all := around
	for _, d := range directives {
		if d.Name == "skip" || d.Name == "include" {
			all = append(slices.Clip(all), guard{condition: d.Arguments.ForName("if").Value, value: d.Name == "include"})
		}
	}
	return all
}

func (f *field) addAlternative(place int, guards []guard) {
	if f.always || len(guards) == 0 && len(f.alternatives) == 0 {
		f.always = true
		return
	}
	f.always = len(guards) == 0
	f.alternatives = append(f.alternatives, alternative{place: place, guards: guards})
}

// placeWith tells whether the field is asked for with these variables, and where.
func (f *field) placeWith(variables map[string]any) (place int, asked bool) {
	if len(f.alternatives) == 0 {
		return f.place, true
	}
	for _, a := range f.alternatives {
		if !slices.ContainsFunc(a.guards, func(g guard) bool {
			value, _ := g.condition.Value(variables)
			return value != g.value
		}) {
			return a.place, true
		}
	}
	return 0, false
}

// selection is a field that is asked for, with its arguments: what is executed.
type selection struct {
	*field
	place    int            // in the document; selections are in this order
	args     map[string]any // coerced; those that are absent are not there
	children []*selection
}

// appendKey appends the field's key, with a comma unless it is the first of its object.
func (f *field) appendKey(dst []byte, i int) []byte {
	if i == 0 {
		return append(dst, f.prefix[1:]...)
	}
	return append(dst, f.prefix...)
}

// bind gives variables their values.
func bind(fields []*field, variables map[string]any) ([]*selection, []*Error) {
	set := make([]*selection, 0, len(fields))
	block := make([]selection, len(fields)) // one allocation for all
	moved := false
	for i, f := range fields {
		place, asked := f.placeWith(variables)
		if !asked {
			continue
		}
		s := &block[i]
		s.field, s.place = f, place
		moved = moved || place != f.place
		var err *Error
		if s.args, err = f.bindArguments(variables); err != nil {
			return nil, []*Error{err}
		}
		if len(f.fields) > 0 {
			var errs []*Error
			if s.children, errs = bind(f.fields, variables); len(errs) > 0 {
				return nil, errs
			}
		}
		set = append(set, s)
	}
	if moved {
		slices.SortFunc(set, func(a, b *selection) int { return a.place - b.place })
	}
	return set, nil
}

func (f *field) bindArguments(variables map[string]any) (map[string]any, *Error) {
	if len(f.node.Arguments) == 0 {
		return nil, nil
	}
	args := make(map[string]any, len(f.node.Arguments))
	for _, a := range f.node.Arguments {
		if isAbsent(a.Value, variables) {
			continue
		}
		value, err := coerceLiteral(f.schema, f.def.Arguments.ForName(a.Name).Type, a.Value, variables)
		if err != nil {
			return nil, err.under(f.key)
		}
		args[a.Name] = value
	}
	return args, nil
}
