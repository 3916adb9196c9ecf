package answer_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/vektah/gqlparser/v2/ast"

	"github.com/attestd/attestd/api/graphql/document"
)

// figures.graphql contains all computed fields of schema.graphql, unchanged except for "where" on root fields.
func TestFiguresAreOfTheSchema(t *testing.T) {
	whole, small := load(t, "../schema.graphql"), load(t, "figures.graphql")
	for name, def := range small.Types {
		if def.BuiltIn || strings.HasPrefix(name, "__") || def == small.Query {
			continue
		}
		if got, want := shape(def.Fields), shape(whole.Types[name].Fields); def.Kind != whole.Types[name].Kind ||
			got != want {
			t.Errorf("%s has\n%swant\n%s", name, got, want)
		}
	}
	var want ast.FieldList
	for _, f := range whole.Query.Fields {
		if document.RowsOf(f.Name) == nil {
			want = append(want, f)
		}
	}
	if got, want := shape(small.Query.Fields), shape(want); got != want {
		t.Errorf("Query has\n%swant\n%s", got, want)
	}
}

// shape prints fields with their arguments and types, one per line.
func shape(fields ast.FieldList) string {
	var b strings.Builder
	for _, f := range fields {
		b.WriteString(f.Name)
		for _, a := range f.Arguments {
			if a.Name != "where" {
				fmt.Fprintf(&b, " %s: %s", a.Name, a.Type)
			}
		}
		fmt.Fprintf(&b, ": %s\n", f.Type)
	}
	return b.String()
}

func load(t *testing.T, path string) *ast.Schema {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	schema, err := document.LoadSchema(string(text))
	if err != nil {
		t.Fatal(err)
	}
	return schema
}
