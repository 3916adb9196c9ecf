package document

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"

	"github.com/vektah/gqlparser/v2/ast"
)

// coerceVariables implements CoerceVariableValues of GraphQL, section 6.1.2.
//
// It replaces gqlparser's validator.VariableValues. That function accepts "5" as Int, 5 as String, enum values in any
// case and integers of more than 32 bits. It leaves numbers in objects as json.Number, refuses 1e1 as Int, and reports
// no location.
func coerceVariables(schema *ast.Schema, definitions ast.VariableDefinitionList,
	given map[string]any) (map[string]any, []*Error) {
	var errs []*Error
	values := make(map[string]any, len(definitions))
	for _, v := range definitions {
		value, ok := given[v.Variable]
		var err *Error
		switch {
		case !ok && v.DefaultValue != nil:
			values[v.Variable], err = coerceLiteral(schema, v.Type, v.DefaultValue, nil)
		case !ok && v.Type.NonNull:
			err = NewError(CodeInvalidVariable,
				fmt.Sprintf(`Variable "$%s" of required type "%s" was not provided.`, v.Variable, v.Type))
		case ok:
			var problem string
			values[v.Variable], problem = coerceJSON(schema, v.Type, value)
			if problem != "" {
				err = NewError(CodeInvalidVariable,
					fmt.Sprintf(`Variable "$%s" got invalid value: %s.`, v.Variable, problem))
			}
		}
		if err != nil {
			err.Extensions["variable"] = v.Variable
			errs = append(errs, err.At(v.Position))
		}
	}
	return values, errs
}

// coerceJSON coerces the JSON value of a variable, or returns a description of the problem.
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
		return nil, fmt.Sprintf("%s is not a value of the enum %s", Show(value), def.Name)
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
		return nil, fmt.Sprintf("%s is not an object of type %s", Show(value), def.Name)
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
			return nil, fmt.Sprintf("%s lacks a field %q", def.Name, name)
		}
	}
	return coerced, ""
}

// coerceScalar coerces a decoded JSON value, with numbers as json.Number.
func coerceScalar(name string, value any) (any, string) {
	switch name {
	case "Int":
		if n, ok := value.(json.Number); ok {
			if f, err := n.Float64(); err == nil && f == math.Trunc(f) && f >= math.MinInt32 && f <= math.MaxInt32 {
				return int32(f), ""
			}
		}
		return nil, fmt.Sprintf("%s is not a 32-bit integer", Show(value))
	case "Float":
		if n, ok := value.(json.Number); ok {
			if f, err := n.Float64(); err == nil {
				return f, ""
			}
		}
		return nil, fmt.Sprintf("%s is not a number", Show(value))
	case "String", "ID":
		if _, ok := value.(string); !ok {
			return nil, fmt.Sprintf("%s is not a string", Show(value))
		}
	case "Boolean":
		if _, ok := value.(bool); !ok {
			return nil, fmt.Sprintf("%s is not true or false", Show(value))
		}
	}
	return value, "" // custom scalars are checked by the code that uses them
}

// Show formats a value for a message, shortened.
func Show(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprintf("%T", value)
	}
	if len(text) > 64 {
		text = append(bytes.ToValidUTF8(text[:64], nil), "…"...)
	}
	return string(text)
}

// coerceLiteral coerces a validated literal. The variables are already coerced.
func coerceLiteral(schema *ast.Schema, t *ast.Type, v *ast.Value, variables map[string]any) (any, *Error) {
	switch {
	case v.Kind == ast.Variable && t.NonNull && variables[v.Raw] == nil:
		return nil, nullVariable(v, t.String())
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
			return nil, NewError(CodeValidationFailed, problem).At(v.Position)
		}
		return value, nil
	case ast.BooleanValue:
		return v.Raw == "true", nil
	}
	return v.Raw, nil
}

func coerceLiteralList(schema *ast.Schema, t *ast.Type, v *ast.Value, variables map[string]any) (any, *Error) {
	elem := t.Elem
	if elem == nil { // a list as a custom scalar
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

// isAbsent reports whether a value is a variable without a value.
func isAbsent(v *ast.Value, variables map[string]any) bool {
	if v.Kind != ast.Variable {
		return false
	}
	_, given := variables[v.Raw]
	return !given
}
