package api_test

import (
	"encoding/json"
	"slices"
	"testing"
	"unicode/utf8"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/appliance"
)

// Each body that the parser accepts has exactly two members, and encoding/json decodes it to the same request.
func FuzzParseRequest(f *testing.F) {
	f.Add([]byte(good))
	for _, in := range append(badBodies(), badAddresses()...) {
		if len(in.body) < 1<<10 {
			f.Add([]byte(in.body))
		}
	}
	codes := []appliance.Code{
		appliance.CodeInvalidJSON, appliance.CodeUnknownField, appliance.CodeMissingField, appliance.CodeDuplicateField,
		appliance.CodeInvalidField, appliance.CodeInvalidAddress, appliance.CodeInvalidChecksum,
		appliance.CodeZeroAddress,
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		request, err := api.ParseRequest(body)
		if err != nil {
			if !slices.Contains(codes, appliance.CodeOf(err)) || !utf8.ValidString(err.Error()) {
				t.Fatalf("%q: %v", body, err)
			}
			return
		}
		var members map[string]string
		if err := json.Unmarshal(body, &members); err != nil || len(members) != 2 {
			t.Fatalf("%q was accepted: %v", body, err)
		}
		for name, want := range map[string]appliance.Address{"unspendableAddress": request.UnspendableAddress,
			"beneficiary": request.Beneficiary} {
			if got, err := appliance.ParseAddress(members[name]); err != nil || got != want {
				t.Fatalf("%q: %s is %s, parsed as %s", body, name, got, want)
			}
		}
	})
}
