// Package openapitest validates what attestd sends against api/openapi.yaml (OpenAPI 3.1, JSON Schema 2020-12), for
// tests.
package openapitest

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"
)

// Schema compiles a schema of components/schemas. path is the file of the description.
func Schema(t testing.TB, path, name string) *jsonschema.Schema {
	t.Helper()
	text, err := os.ReadFile(path)
	var description any
	if err == nil {
		err = yaml.Unmarshal(text, &description)
	}
	if err == nil {
		text, err = json.Marshal(description)
	}
	if err == nil {
		description, err = jsonschema.UnmarshalJSON(bytes.NewReader(text))
	}
	c := jsonschema.NewCompiler()
	if err == nil {
		err = c.AddResource("https://attestd.invalid/openapi", description)
	}
	var s *jsonschema.Schema
	if err == nil {
		s, err = c.Compile("https://attestd.invalid/openapi#/components/schemas/" + name)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Check reports an error if a JSON text does not match a schema.
func Check(t testing.TB, s *jsonschema.Schema, text []byte) {
	t.Helper()
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err == nil {
		err = s.Validate(value)
	}
	if err != nil {
		t.Errorf("%s: %v", text, err)
	}
}
