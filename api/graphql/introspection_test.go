package graphql_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/attestd/attestd/api/graphql"
)

// standardIntrospection is getIntrospectionQuery of graphql-js 16 with all its options: descriptions, specifiedByUrl,
// directiveIsRepeatable, schemaDescription, inputValueDeprecation and oneOf.
const standardIntrospection = `query IntrospectionQuery {
  __schema {
    description
    queryType { name kind } mutationType { name kind } subscriptionType { name kind }
    types { ...FullType }
    directives { name description isRepeatable locations args(includeDeprecated: true) { ...InputValue } }
  }
}
fragment FullType on __Type {
  kind name description specifiedByURL isOneOf
  fields(includeDeprecated: true) { name description args(includeDeprecated: true) { ...InputValue } type { ...TypeRef } isDeprecated deprecationReason }
  inputFields(includeDeprecated: true) { ...InputValue }
  interfaces { ...TypeRef }
  enumValues(includeDeprecated: true) { name description isDeprecated deprecationReason }
  possibleTypes { ...TypeRef }
}
fragment InputValue on __InputValue { name description type { ...TypeRef } defaultValue isDeprecated deprecationReason }
fragment TypeRef on __Type { kind name ofType { kind name ofType { kind name ofType { kind name ofType { kind name ofType { kind name ofType { kind name ofType { kind name ofType { kind name ofType { kind name } } } } } } } } } }`

type introspected struct {
	Schema struct {
		Description      string
		QueryType        struct{ Name string }
		MutationType     any
		SubscriptionType any
		Types            []struct {
			Kind, Name, Description string
			SpecifiedByURL          *string
			IsOneOf                 *bool
			Fields                  []struct {
				Name, Description string
				IsDeprecated      bool
				DeprecationReason *string
				Args              []struct{ Name string }
				Type              json.RawMessage
			}
			InputFields []struct{ Name, Description string }
			EnumValues  []struct{ Name string }
		}
		Directives []struct {
			Name         string
			IsRepeatable bool
			Locations    []string
			Args         []struct{ Name, DefaultValue string }
		}
	} `json:"__schema"`
}

func TestStandardIntrospection(t *testing.T) {
	s := newServer(t, graphql.Options{})
	var got introspected
	if err := json.Unmarshal([]byte(s.post(t, standardIntrospection, "").data(t)), &got); err != nil {
		t.Fatal(err)
	}
	if got.Schema.QueryType.Name != "Query" || got.Schema.MutationType != nil || got.Schema.Description == "" {
		t.Errorf("schema %+v", got.Schema.QueryType)
	}
	var directives []string
	for _, d := range got.Schema.Directives {
		directives = append(directives, d.Name)
		if d.Name == "cached" && (d.IsRepeatable || d.Locations[0] != "QUERY" || d.Args[0].DefaultValue != "60" ||
			d.Args[1].DefaultValue != "false") {
			t.Errorf("@cached is %+v", d)
		}
	}
	if strings.Join(directives, " ") != "cached deprecated include oneOf skip specifiedBy" {
		t.Errorf("directives %v", directives)
	}
	fields := 0
	for _, typ := range got.Schema.Types {
		fields += len(typ.Fields)
		for _, f := range typ.Fields {
			if f.IsDeprecated != (f.Name == "v1_packets") || f.IsDeprecated &&
				*f.DeprecationReason != "Use v2_packets." {
				t.Errorf("%s.%s: deprecated %v", typ.Name, f.Name, f.IsDeprecated)
			}
			if f.Name == "v2_transfers" &&
				string(
					f.Type) != `{"kind":"NON_NULL","name":null,"ofType":{"kind":"LIST","name":null,"ofType":{"kind":"NON_NULL","name":null,"ofType":{"kind":"OBJECT","name":"v2_transfer_type","ofType":null}}}}` {
				t.Errorf("v2_transfers is %s", f.Type)
			}
		}
		if typ.Name == "DateTime" && !strings.Contains(*typ.SpecifiedByURL, "rfc3339") {
			t.Errorf("DateTime is %+v", typ)
		}
		if typ.Name == "ComparisonOp" && len(typ.EnumValues) != 2 {
			t.Errorf("ComparisonOp is %+v", typ)
		}
	}
	if fields < 250 {
		t.Errorf("only %d fields", fields)
	}
}

func TestIntrospectionOfOneType(t *testing.T) {
	s := newServer(t, graphql.Options{})
	for query, want := range map[string]string{
		`{ __type(name: "OrderBy") { __typename kind enumValues { name } fields { name } } }`: `{"__type":{"__typename":"__Type","kind":"ENUM","enumValues":[{"name":"asc"},{"name":"asc_nulls_first"},{"name":"asc_nulls_last"},{"name":"desc"},{"name":"desc_nulls_first"},{"name":"desc_nulls_last"}],"fields":null}}`,
		`query($n: String!) { x: __type(name: $n) { name } v2_health_check { status } }`:      `{"x":null,"v2_health_check":[{"status":"ok"},{"status":"ok"}]}`,
		`{ __type(name: "v2_stats_type") { fields { name type { name } } } }`:                 `{"__type":{"fields":[{"name":"name","type":{"name":"String"}},{"name":"value","type":{"name":"String"}}]}}`,
	} {
		if got := s.post(t, query, `{"n": "nothing"}`).data(t); got != want {
			t.Errorf("%s\ngot  %s\nwant %s", query, got, want)
		}
	}
	// A deprecated field is listed only on request.
	if got := s.post(t, `{ __type(name: "Query") { fields { name } } }`, ""); strings.Contains(got.body, "v1_packets") {
		t.Errorf("got %s", got.body)
	}
}

func TestIntrospectionCanBeSwitchedOff(t *testing.T) {
	s := newServer(t, graphql.Options{NoIntrospection: true})
	for _, query := range []string{standardIntrospection, `{ __type(name: "Query") { name } }`,
		`{ ...F } fragment F on Query { x: __schema { description } }`} {
		if code := s.post(t, query, "").code(t); code != "introspection_off" {
			t.Errorf("code %s", code)
		}
	}
	if got := s.post(t, `{ __typename v2_stats_count { __typename } }`, "").data(t); !strings.Contains(got,
		"v2_stats_type") {
		t.Errorf("__typename is no introspection: %s", got)
	}
}

func TestIntrospectionThatIsTooDeepNamesItsBound(t *testing.T) {
	e := newEndpoint(t, graphql.Options{Index: openReplica(t)})
	lists := func(n int) string { return strings.Repeat("fields{type{", n) + "name" + strings.Repeat("}}", n) }
	levels := func(n int) string { return strings.Repeat("ofType{", n) + "name" + strings.Repeat("}", n) }
	for _, tt := range []struct{ most, beyond, message string }{
		{lists(2), lists(3), "the introspection nests the lists fields"},
		{levels(18), levels(19), "the introspection is deeper than 20 fields"},
	} {
		answer{body: e.Execute(`{__type(name:"Query"){`+tt.most+`}}`, "")}.data(t)
		if got := e.Execute(`{__type(name:"Query"){`+tt.beyond+`}}`, ""); !strings.HasPrefix(got,
			`{"errors":[{"message":"`+tt.message) {
			t.Errorf("%s: %s, want %q", tt.beyond, got, tt.message)
		}
	}
}
