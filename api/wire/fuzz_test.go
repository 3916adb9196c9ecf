package wire_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"
	"unicode/utf8"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
)

// FuzzReadMembers checks that accepted input is one JSON object in UTF-8, that no object in it has a member twice, and
// that encoding/json reads the same values.
func FuzzReadMembers(f *testing.F) {
	for _, seed := range []string{
		`{}`, ` {"a":1,"A":[{"b":null},{"b":"\ud83d\ude00"}]} `, `{"a":1,"a":2}`, `{"a":1,"\u0061":2}`,
		`{"a":{"b":[{"c":1,"c":1}]}}`,
		`{"a":"\ud83d"}`, "{\"\xff\":1}", `{}{}`, `[]`, `null`, `{"a":1e400,"b":-0,"c":01}`, "\ufeff{}", `{"a":1,}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		members, err := wire.ReadMembers(body)
		if err != nil {
			if code := appliance.CodeOf(err); code != appliance.CodeInvalidJSON &&
				code != appliance.CodeDuplicateField || !utf8.ValidString(err.Error()) {
				t.Fatalf("%q: %v", body, err)
			}
			return
		}
		var want map[string]json.RawMessage
		if err := json.Unmarshal(body, &want); err != nil || !utf8.Valid(body) || len(want) != len(members) {
			t.Fatalf("%q was taken: %d members, encoding/json has %d, %v", body, len(members), len(want), err)
		}
		for name, value := range want {
			if !bytes.Equal(bytes.TrimSpace(members[name]), bytes.TrimSpace(value)) {
				t.Fatalf("%q: %q is %s, encoding/json has %s", body, name, members[name], value)
			}
		}
		if err := distinct(json.NewDecoder(bytes.NewReader(body))); err != nil {
			t.Fatalf("%q was taken: %v", body, err)
		}
	})
}

// distinct reads a value, and returns an error if an object in it has a member twice.
func distinct(d *json.Decoder) error {
	token, err := d.Token()
	opened, isDelim := token.(json.Delim)
	if err != nil || !isDelim {
		return err
	}
	seen := make(map[string]bool)
	for d.More() {
		if opened == '{' {
			name, err := d.Token()
			if err != nil {
				return err
			}
			if seen[name.(string)] {
				return fmt.Errorf("%q is there twice", name)
			}
			seen[name.(string)] = true
		}
		if err := distinct(d); err != nil {
			return err
		}
	}
	_, err = d.Token()
	return err
}
