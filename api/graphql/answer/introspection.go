package answer

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/vektah/gqlparser/v2/ast"

	"github.com/attestd/attestd/api/graphql/document"
)

// introspect writes the value of __schema or __type (GraphQL, section 4). graph-gophers does not support the schema's
// description, isRepeatable and isOneOf, which the standard introspection query selects.
func (x *execution) introspect(s *document.Selection) error {
	m := meta{schema: x.schema}
	if s.Def.Name == "__schema" {
		return x.metaValue(m.schemaObject(), s)
	}
	name, _ := s.Args["name"].(string)
	if def := x.schema.Types[name]; def != nil {
		return x.metaValue(m.typeObject(def), s)
	}
	x.buf = append(x.buf, "null"...)
	return nil
}

// object is an object of the introspection schema: its fields by name. A value is a string, a bool, nil, an object, a
// list of objects or of strings, or a func(*document.Selection) any that returns one of these.
type object map[string]any

// metaValue writes a value for a selection.
func (x *execution) metaValue(value any, s *document.Selection) error {
	switch v := value.(type) {
	case func(*document.Selection) any:
		return x.metaValue(v(s), s)
	case object:
		return x.metaObject(v, s)
	case []object:
		x.buf = append(x.buf, '[')
		for i, element := range v {
			if i > 0 {
				x.buf = append(x.buf, ',')
			}
			if err := x.metaObject(element, s); err != nil {
				return err
			}
		}
		x.buf = append(x.buf, ']')
		return nil
	}
	encoded, err := json.Marshal(value)
	x.buf = append(x.buf, encoded...)
	return err
}

func (x *execution) metaObject(o object, s *document.Selection) error {
	x.buf = append(x.buf, '{')
	for i, field := range s.Children {
		x.buf = field.AppendKey(x.buf, i)
		value := o[field.Def.Name]
		if field.Def.Name == "__typename" {
			value = field.Node.ObjectDefinition.Name
		}
		if err := x.metaValue(value, field); err != nil {
			return err
		}
	}
	var err error
	if x.buf, err = x.written(append(x.buf, '}')); err != nil {
		return err
	}
	return x.ctx.Err()
}

// meta builds the objects of the introspection schema.
type meta struct{ schema *ast.Schema }

func (m meta) schemaObject() object {
	return object{
		"description": text(m.schema.Description),
		"types": func(*document.Selection) any {
			var types []object
			for _, name := range slices.Sorted(maps.Keys(m.schema.Types)) {
				types = append(types, m.typeObject(m.schema.Types[name]))
			}
			return types
		},
		"queryType": m.typeObject(m.schema.Query),
		"directives": func(*document.Selection) any {
			var directives []object
			for _, name := range slices.Sorted(maps.Keys(m.schema.Directives)) {
				directives = append(directives, m.directiveObject(m.schema.Directives[name]))
			}
			return directives
		},
	}
}

func (m meta) typeObject(def *ast.Definition) object {
	o := object{"kind": string(def.Kind), "name": def.Name, "description": text(def.Description)}
	switch def.Kind {
	case ast.Object:
		o["interfaces"] = []object{}
		o["fields"] = func(s *document.Selection) any { return m.fieldObjects(def, s) }
	case ast.InputObject:
		o["isOneOf"] = def.Directives.ForName("oneOf") != nil
		o["inputFields"] = func(s *document.Selection) any {
			fields := []object{}
			for _, f := range def.Fields {
				if shown(f.Directives, s) {
					fields = append(fields, m.inputObject(f.Name, f.Description, f.Type, f.DefaultValue, f.Directives))
				}
			}
			return fields
		}
	case ast.Enum:
		o["enumValues"] = func(s *document.Selection) any {
			values := []object{}
			for _, v := range def.EnumValues {
				if shown(v.Directives, s) {
					values = append(values,
						deprecable(object{"name": v.Name, "description": text(v.Description)}, v.Directives))
				}
			}
			return values
		}
	case ast.Scalar:
		if d := def.Directives.ForName("specifiedBy"); d != nil {
			o["specifiedByURL"] = d.Arguments.ForName("url").Value.Raw
		}
	}
	return o
}

// reference returns the object of a type that may be a list or non-null.
func (m meta) reference(t *ast.Type) object {
	switch {
	case t.NonNull:
		nullable := *t
		nullable.NonNull = false
		return object{"kind": "NON_NULL", "ofType": func(*document.Selection) any { return m.reference(&nullable) }}
	case t.Elem != nil:
		return object{"kind": "LIST", "ofType": func(*document.Selection) any { return m.reference(t.Elem) }}
	}
	return m.typeObject(m.schema.Types[t.NamedType])
}

func (m meta) fieldObjects(def *ast.Definition, s *document.Selection) []object {
	fields := []object{}
	for _, f := range def.Fields {
		if strings.HasPrefix(f.Name, "__") || !shown(f.Directives, s) {
			continue
		}
		fields = append(fields, deprecable(object{
			"name": f.Name, "description": text(f.Description),
			"args": func(s *document.Selection) any { return m.argumentObjects(f.Arguments, s) },
			"type": func(*document.Selection) any { return m.reference(f.Type) },
		}, f.Directives))
	}
	return fields
}

func (m meta) argumentObjects(args ast.ArgumentDefinitionList, s *document.Selection) []object {
	objects := []object{}
	for _, a := range args {
		if shown(a.Directives, s) {
			objects = append(objects, m.inputObject(a.Name, a.Description, a.Type, a.DefaultValue, a.Directives))
		}
	}
	return objects
}

func (m meta) inputObject(name, description string, t *ast.Type, value *ast.Value,
	directives ast.DirectiveList) object {
	o := object{
		"name": name, "description": text(description),
		"type": func(*document.Selection) any { return m.reference(t) },
	}
	if value != nil {
		o["defaultValue"] = value.String()
	}
	return deprecable(o, directives)
}

func (m meta) directiveObject(d *ast.DirectiveDefinition) object {
	locations := make([]string, len(d.Locations))
	for i, l := range d.Locations {
		locations[i] = string(l)
	}
	return object{
		"name": d.Name, "description": text(d.Description), "isRepeatable": d.IsRepeatable, "locations": locations,
		"args": func(s *document.Selection) any { return m.argumentObjects(d.Arguments, s) },
	}
}

// shown reports whether an element with these directives is listed. Deprecated elements are listed only with
// includeDeprecated.
func shown(directives ast.DirectiveList, s *document.Selection) bool {
	include, _ := s.Args["includeDeprecated"].(bool)
	return include || directives.ForName("deprecated") == nil
}

func deprecable(o object, directives ast.DirectiveList) object {
	d := directives.ForName("deprecated")
	o["isDeprecated"] = d != nil
	if d != nil {
		o["deprecationReason"] = "No longer supported"
		if reason := d.Arguments.ForName("reason"); reason != nil {
			o["deprecationReason"] = reason.Value.Raw
		}
	}
	return o
}

// text returns a description, or nil if it is empty.
func text(s string) any {
	if s == "" {
		return nil
	}
	return s
}
