package graphql_test

import (
	"strings"
	"testing"

	"github.com/vektah/gqlparser/v2"
	"github.com/vektah/gqlparser/v2/ast"

	"github.com/attestd/attestd/api/graphql"
)

func loadSchema(t testing.TB) *ast.Schema {
	t.Helper()
	schema, err := gqlparser.LoadSchema(&ast.Source{Name: "schema.graphql", Input: graphql.Schema})
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// everything selects all fields of a type, and of its nested types.
func everything(schema *ast.Schema, name string) string {
	def := schema.Types[name]
	if def.Kind != ast.Object {
		return ""
	}
	var b strings.Builder
	b.WriteString("{ __typename ")
	for _, f := range def.Fields {
		b.WriteString(f.Name + " " + everything(schema, f.Type.Name()) + " ")
	}
	return b.String() + "}"
}

// The playground explains the schema with its descriptions.
func TestEverythingInTheSchemaIsDescribed(t *testing.T) {
	schema := loadSchema(t)
	described := func(what, description string) {
		if len(description) < 3 {
			t.Errorf("%s has no description", what)
		}
	}
	described("the schema", schema.Description)
	for name, def := range schema.Types {
		if def.BuiltIn || strings.HasPrefix(name, "__") {
			continue
		}
		described(name, def.Description)
		for _, f := range def.Fields {
			if strings.HasPrefix(f.Name, "__") {
				continue
			}
			described(name+"."+f.Name, f.Description)
			for _, a := range f.Arguments {
				described(name+"."+f.Name+"."+a.Name, a.Description)
			}
		}
		for _, v := range def.EnumValues {
			described(name+"."+v.Name, v.Description)
		}
	}
	for _, a := range schema.Directives["cached"].Arguments {
		described("@cached."+a.Name, a.Description)
	}
}
