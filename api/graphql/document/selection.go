package document

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vektah/gqlparser/v2/ast"
)

// Field is a field of a selection set after spreading fragments and merging fields with the same response key (GraphQL,
// section 6.3.2).
type Field struct {
	Key    string // in the response
	Node   *ast.Field
	Def    *ast.FieldDefinition
	Meta   bool   // __schema or __type
	Access Access // of fields of rows; otherwise zero

	schema *ast.Schema
	prefix []byte // ,"Key":
	fields []*Field

	place        int           // of its first occurrence
	alternatives []alternative // its occurrences, if the first one is conditional (@skip or @include)
	always       bool          // the last occurrence is unconditional

	byKey     map[string]*Field
	arguments string // printed, for comparison
}

// alternative is an occurrence of a field. It is selected if all its guards hold, including the guards of the enclosing
// selections. The first selected occurrence determines the field's position in the response.
type alternative struct {
	place  int
	guards []guard
}

// guard is one @skip or @include. It holds if the variable has the given value.
type guard struct {
	condition *ast.Value
	value     bool
}

// merger implements CollectFields of GraphQL, section 6.3.2, once for all variable values. All composite types of the
// schema are objects, so fields with the same response key must be the same field with the same arguments (section
// 5.3.2). merger checks this in linear time, whereas gqlparser and graph-gophers compare pairs of fields.
type merger struct {
	schema    *ast.Schema
	places    int // number of visited fields
	conflicts []*Error
}

func (m *merger) merge(root *ast.Definition, set ast.SelectionSet) []*Field {
	top := &Field{byKey: make(map[string]*Field)}
	m.collect(top, root, set, nil)
	for _, f := range top.fields {
		f.resolveAccess(RowsOf(f.Def.Name))
	}
	return top.fields
}

func (m *merger) collect(into *Field, parent *ast.Definition, set ast.SelectionSet, when []guard) {
	for _, s := range set {
		switch s := s.(type) {
		case *ast.Field:
			f, inner := m.field(into, s), guards(when, s.Directives)
			f.addAlternative(m.places, inner)
			if len(s.SelectionSet) > 0 {
				m.collect(f, m.schema.Types[f.Def.Type.Name()], s.SelectionSet, inner)
			}
		case *ast.InlineFragment:
			m.collect(into, parent, s.SelectionSet, guards(when, s.Directives))
		case *ast.FragmentSpread:
			m.collect(into, parent, s.Definition.SelectionSet, guards(when, s.Directives))
		}
	}
}

// field returns the field with a node's response key, and adds it if it is new.
func (m *merger) field(into *Field, node *ast.Field) *Field {
	m.places++
	arguments := printArguments(node.Arguments)
	known, ok := into.byKey[node.Alias]
	if !ok {
		f := &Field{
			Key: node.Alias, place: m.places, prefix: []byte(`,"` + node.Alias + `":`), Node: node,
			Def: node.Definition, schema: m.schema,
			Meta: node.Name == "__schema" ||
				node.Name == "__type", byKey: make(map[string]*Field), arguments: arguments,
		}
		into.byKey[node.Alias] = f
		into.fields = append(into.fields, f)
		return f
	}
	if (known.Node.Name != node.Name || known.arguments != arguments) && len(m.conflicts) < maxErrors {
		conflict := NewError(CodeValidationFailed, fmt.Sprintf(
			`Fields %q conflict: they are different fields or have different arguments. Use different aliases to fetch both.`, node.Alias)).At(known.Node.Position)
		conflict.Locations = append(conflict.Locations,
			Location{Line: node.Position.Line, Column: node.Position.Column})
		m.conflicts = append(m.conflicts, conflict)
	}
	return known
}

// guards appends the conditions of directives to the enclosing ones.
func guards(around []guard, directives ast.DirectiveList) []guard {
	all := around
	for _, d := range directives {
		if d.Name == "skip" || d.Name == "include" {
			all = append(slices.Clip(all),
				guard{condition: d.Arguments.ForName("if").Value, value: d.Name == "include"})
		}
	}
	return all
}

func (f *Field) addAlternative(place int, guards []guard) {
	if f.always || len(guards) == 0 && len(f.alternatives) == 0 {
		f.always = true
		return
	}
	f.always = len(guards) == 0
	f.alternatives = append(f.alternatives, alternative{place: place, guards: guards})
}

// placeWith reports whether the field is selected with the given variables, and its position.
//
// Errors: CodeInvalidVariable for a condition that is null.
func (f *Field) placeWith(variables map[string]any) (place int, asked bool, err *Error) {
	if len(f.alternatives) == 0 {
		return f.place, true, nil
	}
	for _, a := range f.alternatives {
		if asked, err = hold(a.guards, variables); asked || err != nil {
			return a.place, asked, err
		}
	}
	return 0, false, nil
}

// hold reports whether all guards hold. It evaluates them from the outermost inwards, and stops at the first that does
// not hold.
func hold(guards []guard, variables map[string]any) (bool, *Error) {
	for _, g := range guards {
		value, _ := g.condition.Value(variables)
		switch {
		case value == nil:
			return false, nullVariable(g.condition, "Boolean!")
		case value != g.value:
			return false, nil
		}
	}
	return true, nil
}

// nullVariable is the error for a null variable in a non-null position (GraphQL, section 6.4.1).
func nullVariable(v *ast.Value, wanted string) *Error {
	return NewError(CodeInvalidVariable,
		fmt.Sprintf(`Variable "$%s" must not be null where %q is expected.`, v.Raw, wanted)).At(v.Position)
}

// Selection is a selected field with the values of its arguments.
type Selection struct {
	*Field
	Args     map[string]any // coerced, without missing ones
	Children []*Selection

	place int // sort key of the selections
}

// AppendKey appends the response key as a member name, preceded by a comma unless i is zero.
func (f *Field) AppendKey(dst []byte, i int) []byte {
	if i == 0 {
		return append(dst, f.prefix[1:]...)
	}
	return append(dst, f.prefix...)
}

// bind returns the selections for the given variables.
func bind(fields []*Field, variables map[string]any) ([]*Selection, []*Error) {
	set := make([]*Selection, 0, len(fields))
	block := make([]Selection, len(fields)) // one allocation for all
	moved := false
	for i, f := range fields {
		place, asked, err := f.placeWith(variables)
		switch {
		case err != nil:
			return nil, []*Error{err.WithPath(f.Key)}
		case !asked:
			continue
		}
		s := &block[i]
		s.Field, s.place = f, place
		moved = moved || place != f.place
		if s.Args, err = f.bindArguments(variables); err != nil {
			return nil, []*Error{err}
		}
		if len(f.fields) > 0 {
			var errs []*Error
			if s.Children, errs = bind(f.fields, variables); len(errs) > 0 {
				for _, err := range errs {
					err.Path = slices.Insert(err.Path, 0, any(f.Key))
				}
				return nil, errs
			}
		}
		set = append(set, s)
	}
	if moved {
		slices.SortFunc(set, func(a, b *Selection) int { return a.place - b.place })
	}
	return set, nil
}

func (f *Field) bindArguments(variables map[string]any) (map[string]any, *Error) {
	if len(f.Node.Arguments) == 0 {
		return nil, nil
	}
	args := make(map[string]any, len(f.Node.Arguments))
	for _, a := range f.Node.Arguments {
		if isAbsent(a.Value, variables) {
			continue
		}
		value, err := coerceLiteral(f.schema, f.Def.Arguments.ForName(a.Name).Type, a.Value, variables)
		if err != nil {
			return nil, err.WithPath(f.Key)
		}
		args[a.Name] = value
	}
	return args, nil
}

// PositionOf returns the position of an argument, or of a member of one. If neither exists, it returns the position of
// the field.
func (f *Field) PositionOf(argument string) *ast.Position {
	for _, a := range f.Node.Arguments {
		if a.Name == argument {
			return a.Position
		}
		for _, member := range a.Value.Children {
			if member.Name == argument {
				return member.Position
			}
		}
	}
	return f.Node.Position
}

// printArguments prints arguments sorted by name.
func printArguments(args ast.ArgumentList) string {
	if len(args) == 0 {
		return ""
	}
	printed := make([]string, len(args))
	for i, a := range args {
		printed[i] = a.Name + ":" + a.Value.String()
	}
	slices.Sort(printed)
	return strings.Join(printed, ",")
}
