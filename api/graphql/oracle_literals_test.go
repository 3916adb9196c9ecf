package graphql

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/vektah/gqlparser/v2/ast"

	"github.com/attestd/attestd/api/graphql/document"
)

// appendSelection prints a selection as a document. It omits where on a root field, which has no effect.
func appendSelection(dst []byte, schema *ast.Schema, s *document.Selection) []byte {
	dst = append(append(append(dst, s.Key...), ':'), s.Def.Name...)
	dst = appendArguments(dst, schema, s)
	if len(s.Children) > 0 {
		dst = append(dst, '{')
		for _, child := range s.Children {
			dst = append(appendSelection(dst, schema, child), ' ')
		}
		dst = append(dst, '}')
	}
	return dst
}

func appendArguments(dst []byte, schema *ast.Schema, s *document.Selection) []byte {
	opened := false
	for _, name := range slices.Sorted(maps.Keys(s.Args)) {
		if name == "where" && s.Node.ObjectDefinition.Name == "Query" {
			continue
		}
		separator := byte(',')
		if !opened {
			separator, opened = '(', true
		}
		dst = append(append(append(dst, separator), name...), ':')
		dst = appendLiteral(dst, schema, s.Def.Arguments.ForName(name).Type, s.Args[name])
	}
	if opened {
		dst = append(dst, ')')
	}
	return dst
}

// appendLiteral prints a coerced value as a GraphQL literal. Strings of an enum type are printed as names.
func appendLiteral(dst []byte, schema *ast.Schema, t *ast.Type, value any) []byte {
	switch value := value.(type) {
	case nil:
		return append(dst, "null"...)
	case bool:
		return strconv.AppendBool(dst, value)
	case int32:
		return strconv.AppendInt(dst, int64(value), 10)
	case float64:
		return strconv.AppendFloat(dst, value, 'g', -1, 64)
	case json.Number:
		return append(dst, value...)
	case string:
		if schema.Types[t.Name()].Kind == ast.Enum {
			return append(dst, value...)
		}
		return append(dst, (&ast.Value{Kind: ast.StringValue, Raw: value}).String()...)
	case []any:
		dst = append(dst, '[')
		for i, element := range value {
			if i > 0 {
				dst = append(dst, ',')
			}
			elem := t
			if t.Elem != nil {
				elem = t.Elem
			}
			dst = appendLiteral(dst, schema, elem, element)
		}
		return append(dst, ']')
	case map[string]any:
		return appendLiteralObject(dst, schema, t, value)
	}
	panic(fmt.Sprintf("no literal for a %T", value))
}

func appendLiteralObject(dst []byte, schema *ast.Schema, t *ast.Type, object map[string]any) []byte {
	dst = append(dst, '{')
	for i, name := range slices.Sorted(maps.Keys(object)) {
		if i > 0 {
			dst = append(dst, ',')
		}
		member := t
		if f := schema.Types[t.NamedType].Fields.ForName(name); f != nil {
			member = f.Type
		}
		dst = append(append(dst, name...), ':')
		dst = appendLiteral(dst, schema, member, object[name])
	}
	return append(dst, '}')
}
