package graphql

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"
	"github.com/vektah/gqlparser/v2/validator/core"
)

// Two arguments are written by clients in more ways than one GraphQL type can say. p_comparison, a String here and
// an enum in the hosted schema, is written "gt", gt, or as a variable of either type; p_addresses_canonical, jsonb,
// also as a variable of a list of strings. The schema shows what the documentation writes; loosen and
// variablesInAllowedPosition let the other forms pass. What they mean is checked like any other value.
const (
	argComparison = "p_comparison"
	enumOp        = "ComparisonOp"
	scalarJSONB   = "jsonb"
)

// loosen turns a bare gt or lt into a string.
func loosen(doc *ast.QueryDocument) {
	var walk func(set ast.SelectionSet)
	walk = func(set ast.SelectionSet) {
		for _, s := range set {
			switch s := s.(type) {
			case *ast.Field:
				if args := s.Arguments.ForName("args"); args != nil {
					if v := args.Value.Children.ForName(argComparison); v != nil && v.Kind == ast.EnumValue {
						v.Kind = ast.StringValue
					}
				}
				walk(s.SelectionSet)
			case *ast.InlineFragment:
				walk(s.SelectionSet)
			}
		}
	}
	for _, op := range doc.Operations {
		walk(op.SelectionSet)
	}
	for _, f := range doc.Fragments {
		walk(f.SelectionSet)
	}
}

// variablesInAllowedPosition is the rule of GraphQL, section 5.8.5, but for the two arguments. Values are visited
// before the object that they are in, so a variable of type ComparisonOp is remembered until its object is seen.
var variablesInAllowedPosition = core.Rule{Name: "VariablesInAllowedPosition", RuleFunc: func(observers *core.Events, addError core.AddErrFunc) {
	refuse := func(v *ast.Value) {
		addError(core.Message(`Variable "%s" of type "%s" used in position expecting type "%s".`,
			v, v.VariableDefinition.Type.String(), v.ExpectedType.String()), core.At(v.Position))
	}
	pending := make(map[*ast.Value]bool)
	observers.OnValue(func(w *core.Walker, v *ast.Value) {
		if v.Kind == ast.Variable && w.CurrentOperation != nil && v.VariableDefinition != nil && v.ExpectedType != nil && !allowed(v) {
			if v.VariableDefinition.Type.NamedType == enumOp && v.ExpectedType.NamedType == "String" {
				pending[v] = true
			} else {
				refuse(v)
			}
		}
		for _, member := range v.Children {
			if pending[member.Value] && member.Name == argComparison {
				delete(pending, member.Value)
			}
		}
	})
	observers.OnOperation(func(*core.Walker, *ast.OperationDefinition) {
		for _, v := range sortedByPosition(pending) {
			refuse(v)
		}
		clear(pending)
	})
}}

// allowed is AreTypesCompatible and IsVariableUsageAllowed of GraphQL, section 5.8.5; a list of strings is jsonb too.
func allowed(v *ast.Value) bool {
	expected := *v.ExpectedType
	given := v.VariableDefinition
	if v.ExpectedTypeHasDefault || given.DefaultValue != nil && given.DefaultValue.Kind != ast.NullValue {
		expected.NonNull = false
	}
	if expected.NamedType == scalarJSONB && given.Type.Elem != nil && given.Type.Elem.NamedType == "String" {
		return !expected.NonNull || given.Type.NonNull
	}
	return given.Type.IsCompatible(&expected)
}

func sortedByPosition(values map[*ast.Value]bool) []*ast.Value {
	var sorted []*ast.Value
	for v := range values {
		sorted = append(sorted, v)
	}
	slices.SortFunc(sorted, func(a, b *ast.Value) int { return a.Position.Start - b.Position.Start })
	return sorted
}

// validationError makes an error of what a rule reports. The response path is not part of a rule's report: it is
// that of the last field that begins before the error's place, where a place in an operation tells it.
func validationError(doc *ast.QueryDocument, options []core.ErrorOption) *Error {
	var reported gqlerror.Error
	for _, option := range options {
		option(&reported)
	}
	e := fromParser(CodeValidationFailed, &reported)
	if len(e.Locations) > 0 {
		for _, op := range doc.Operations {
			e.Path = pathTo(op.SelectionSet, e.Locations[0], nil)
			if e.Path != nil {
				break
			}
		}
	}
	return e
}

// pathTo returns the response path of the innermost field that stands at the place or holds it in its arguments.
func pathTo(set ast.SelectionSet, place Location, above []any) []any {
	var path []any
	for _, s := range set {
		switch s := s.(type) {
		case *ast.Field:
			if s.Position.Line > place.Line || s.Position.Line == place.Line && s.Position.Column > place.Column {
				return path
			}
			path = append(slices.Clip(above), s.Alias)
			if inner := pathTo(s.SelectionSet, place, path); inner != nil {
				path = inner
			}
		case *ast.InlineFragment:
			if inner := pathTo(s.SelectionSet, place, above); inner != nil {
				path = inner
			}
		}
	}
	return path
}

// coerceVariables is CoerceVariableValues of GraphQL, section 6.1.2.
func coerceVariables(schema *ast.Schema, op *ast.OperationDefinition, given map[string]any) (map[string]any, []*Error) {
	var errs []*Error
	values := make(map[string]any, len(op.VariableDefinitions))
	for _, v := range op.VariableDefinitions {
		value, ok := given[v.Variable]
		var err *Error
		switch {
		case !ok && v.DefaultValue != nil:
			values[v.Variable], err = coerceLiteral(schema, v.Type, v.DefaultValue, nil)
		case !ok && v.Type.NonNull:
			err = newError(CodeInvalidVariable, fmt.Sprintf(`Variable "$%s" of required type "%s" was not provided.`, v.Variable, v.Type))
		case ok:
			var problem string
			values[v.Variable], problem = coerceJSON(schema, v.Type, value)
			if problem != "" {
				err = newError(CodeInvalidVariable, fmt.Sprintf(`Variable "$%s" got invalid value: %s.`, v.Variable, problem))
			}
		}
		if err != nil {
			err.Extensions["variable"] = v.Variable
			errs = append(errs, err.at(v.Position))
		}
	}
	return values, errs
}

// coerceJSON turns the JSON value of a variable into one of its type, or says what is wrong with it.
func coerceJSON(schema *ast.Schema, t *ast.Type, value any) (any, string) {
	switch {
	case value == nil && t.NonNull:
		return nil, fmt.Sprintf("%s must not be null", t)
	case value == nil:
		return nil, ""
	case t.Elem != nil:
		return coerceJSONList(schema, t, value)
	}
	switch def := schema.Types[t.NamedType]; def.Kind {
	case ast.InputObject:
		return coerceJSONObject(schema, def, value)
	case ast.Enum:
		if name, ok := value.(string); ok && def.EnumValues.ForName(name) != nil {
			return name, ""
		}
		return nil, fmt.Sprintf("%s is not a value of the enum %s", show(value), def.Name)
	}
	return coerceScalar(t.NamedType, value)
}

func coerceJSONList(schema *ast.Schema, t *ast.Type, value any) (any, string) {
	list, ok := value.([]any)
	if !ok {
		list = []any{value} // a single value is a list of one (GraphQL, section 3.11)
	}
	coerced := make([]any, len(list))
	for i, element := range list {
		var problem string
		if coerced[i], problem = coerceJSON(schema, t.Elem, element); problem != "" {
			return nil, fmt.Sprintf("at index %d: %s", i, problem)
		}
	}
	return coerced, ""
}

func coerceJSONObject(schema *ast.Schema, def *ast.Definition, value any) (any, string) {
	object, ok := value.(map[string]any)
	if !ok {
		return nil, fmt.Sprintf("%s is not an object of type %s", show(value), def.Name)
	}
	coerced := make(map[string]any, len(object))
	for _, member := range def.Fields {
		element, given := object[member.Name]
		if !given && !member.Type.NonNull {
			continue
		}
		var problem string
		if coerced[member.Name], problem = coerceJSON(schema, member.Type, element); problem != "" {
			return nil, fmt.Sprintf("at %s: %s", member.Name, problem)
		}
	}
	for name := range object {
		if def.Fields.ForName(name) == nil {
			return nil, fmt.Sprintf("%s has no field %q", def.Name, name)
		}
	}
	return coerced, ""
}

// coerceScalar takes JSON values as they are decoded, with numbers as json.Number.
func coerceScalar(name string, value any) (any, string) {
	switch name {
	case "Int":
		if n, ok := value.(json.Number); ok {
			if f, err := n.Float64(); err == nil && f == math.Trunc(f) && f >= math.MinInt32 && f <= math.MaxInt32 {
				return int32(f), ""
			}
		}
		return nil, fmt.Sprintf("%s is not a 32-bit integer", show(value))
	case "Float":
		if n, ok := value.(json.Number); ok {
			if f, err := n.Float64(); err == nil {
				return f, ""
			}
		}
		return nil, fmt.Sprintf("%s is not a number", show(value))
	case "String", "ID":
		if _, ok := value.(string); !ok {
			return nil, fmt.Sprintf("%s is not a string", show(value))
		}
	case "Boolean":
		if _, ok := value.(bool); !ok {
			return nil, fmt.Sprintf("%s is not true or false", show(value))
		}
	}
	return value, "" // custom scalars are checked where they are used
}

// show writes a value for a message, shortened.
func show(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprintf("%T", value)
	}
	if len(text) > 64 {
		text = append(bytes.ToValidUTF8(text[:64], nil), "…"...)
	}
	return string(text)
}

// coerceLiteral turns a literal, which has been validated, into a value of its type. Variables have theirs already.
func coerceLiteral(schema *ast.Schema, t *ast.Type, v *ast.Value, variables map[string]any) (any, *Error) {
	switch {
	case v.Kind == ast.Variable:
		return variables[v.Raw], nil
	case v.Kind == ast.NullValue:
		return nil, nil
	case t.Elem != nil && v.Kind != ast.ListValue:
		value, err := coerceLiteral(schema, t.Elem, v, variables)
		return []any{value}, err
	}
	switch v.Kind {
	case ast.ListValue:
		return coerceLiteralList(schema, t, v, variables)
	case ast.ObjectValue:
		return coerceLiteralObject(schema, t, v, variables)
	case ast.IntValue, ast.FloatValue:
		value, problem := coerceScalar(t.NamedType, json.Number(v.Raw))
		if problem != "" {
			return nil, newError(CodeValidationFailed, problem).at(v.Position)
		}
		return value, nil
	case ast.BooleanValue:
		return v.Raw == "true", nil
	}
	return v.Raw, nil
}

func coerceLiteralList(schema *ast.Schema, t *ast.Type, v *ast.Value, variables map[string]any) (any, *Error) {
	elem := t.Elem
	if elem == nil { // a list of a custom scalar
		elem = t
	}
	list := make([]any, len(v.Children))
	for i, child := range v.Children {
		var err *Error
		if list[i], err = coerceLiteral(schema, elem, child.Value, variables); err != nil {
			return nil, err
		}
	}
	return list, nil
}

func coerceLiteralObject(schema *ast.Schema, t *ast.Type, v *ast.Value, variables map[string]any) (any, *Error) {
	def := schema.Types[t.NamedType]
	object := make(map[string]any, len(v.Children))
	for _, child := range v.Children {
		if isAbsent(child.Value, variables) {
			continue
		}
		memberType := t // of a custom scalar
		if member := def.Fields.ForName(child.Name); member != nil {
			memberType = member.Type
		}
		value, err := coerceLiteral(schema, memberType, child.Value, variables)
		if err != nil {
			return nil, err
		}
		object[child.Name] = value
	}
	return object, nil
}

// printArguments prints arguments sorted by name, for comparison.
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
