package graphql_test

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vektah/gqlparser/v2/ast"

	"github.com/attestd/attestd/api/graphql"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/dataset"
	"github.com/attestd/attestd/store/replica"
)

// TestDocsNameEveryMember checks the tables of docs/replica.md against the types of rows: each member appears once,
// with its type, and with "not in GraphQL" if the schema lacks the field.
func TestDocsNameEveryMember(t *testing.T) {
	doc := readDocument(t, "replica.md")
	schema := loadSchema(t)
	for _, kind := range index.RowTypes {
		t.Run(kind.Name, func(t *testing.T) {
			section := doc.section(kind.Name)
			var key []string
			for _, f := range kind.Key {
				key = append(key, "`"+kind.Fields[f].Name+"`")
			}
			if want := "Key: " + strings.Join(key, ", ") + "."; !strings.Contains(section, want) {
				t.Errorf("no %q", want)
			}
			want := make(map[string]member)
			addMembers(want, "", kind, schema, graphQLType(schema, kind.Name))
			for _, row := range tableRows(section) {
				for _, name := range codeSpans(row[0]) {
					m, known := want[name]
					switch {
					case !known:
						t.Errorf("%s is no member, or is there twice", name)
					case !m.hasType(row[1]):
						t.Errorf("%s is %q, want %q", name, row[1], m.kind)
					case m.hidden != strings.Contains(row[2], "not in GraphQL"):
						t.Errorf("%s: not in GraphQL is %t", name, m.hidden)
					}
					delete(want, name)
				}
			}
			for _, name := range slices.Sorted(maps.Keys(want)) {
				t.Errorf("%s is missing", name)
			}
		})
	}
}

// member is a member of a row as the tables describe it.
type member struct {
	kind   string // its type; for objects and lists, the prefix of the type
	hidden bool   // not in GraphQL
}

func (m member) hasType(cell string) bool {
	if named := m.kind == "" || m.kind == "list of "; named {
		return strings.HasPrefix(cell, m.kind) && len(cell) > len(m.kind) && !strings.HasSuffix(cell, "!")
	}
	return cell == m.kind
}

var kindNames = map[index.FieldKind]string{
	index.FieldText: "text", index.FieldInt: "int", index.FieldBool: "bool", index.FieldTime: "time",
	index.FieldJSON:  "json",
	index.FieldTexts: "list of text", index.FieldObject: "", index.FieldList: "list of ",
}

// addMembers adds the members of a type under their dotted names.
func addMembers(to map[string]member, prefix string, of *index.Type, schema *ast.Schema, shown *ast.Definition) {
	for _, f := range of.Fields {
		m := member{kind: kindNames[f.Kind]}
		field := shown.Fields.ForName(f.Name)
		m.hidden = field == nil
		if f.Required && f.Elem == nil {
			m.kind += "!"
		}
		to[prefix+f.Name] = m
		if f.Elem != nil {
			addMembers(to, prefix+f.Name+".", f.Elem, schema, schema.Types[field.Type.Name()])
		}
	}
}

func graphQLType(schema *ast.Schema, kind string) *ast.Definition {
	return schema.Types[schema.Query.Fields.ForName("v2_"+kind+"s").Type.Name()]
}

// TestDocsRowsImport imports the rows that docs/replica.md shows, and finds them again.
func TestDocsRowsImport(t *testing.T) {
	doc := readDocument(t, "replica.md")
	replica, err := replica.Open(filepath.Join(t.TempDir(), "replica.db"), replica.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { replica.Close() })
	records := doc.block("Rows", "ndjson")
	done, err := dataset.Import(t.Context(), dataset.Into(replica), strings.NewReader(records.text),
		dataset.ImportOptions{})
	if err != nil || done.Inserted != records.lines {
		t.Fatalf("%+v, %v", done, err)
	}
	const query = `{ v2_transfers { base_amount base_token_meta { representations { symbol } } source_chain { display_name } destination_chain { display_name } traces { type } } }`
	const want = `{"v2_transfers":[{"base_amount":"6000","base_token_meta":{"representations":[{"symbol":"U"}]},` +
		`"source_chain":{"display_name":"Union"},"destination_chain":{"display_name":"Ethereum"},` +
		`"traces":[{"type":"SEND_PACKET"},{"type":"PACKET_RECV"},{"type":"WRITE_ACK"},{"type":"PACKET_ACK"}]}]}`
	if got := newServer(t, graphql.Options{Index: replica}).post(t, query, "").data(t); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
