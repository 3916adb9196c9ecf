package api

import (
	"bytes"
	"encoding/json"
	"strconv"
	"unicode/utf8"

	"github.com/attestd/attestd/appliance"
)

// parseRequest reads a Request from one JSON object with exactly two members. Unlike encoding/json it refuses names in
// another case, duplicate members and data after the object.
func parseRequest(body []byte) (appliance.Request, error) {
	var r appliance.Request
	if !utf8.Valid(body) || !json.Valid(body) {
		return r, appliance.Errorf(appliance.CodeInvalidJSON, "the body must be one JSON object in UTF-8")
	}
	members, err := stringMembers(body, "unspendableAddress", "beneficiary")
	if err != nil {
		return r, err
	}
	if r.UnspendableAddress, err = parseMember(members, "unspendableAddress"); err != nil {
		return r, err
	}
	r.Beneficiary, err = parseMember(members, "beneficiary")
	return r, err
}

func parseMember(members map[string]string, name string) (appliance.Address, error) {
	text, has := members[name]
	if !has {
		return appliance.Address{}, appliance.Errorf(appliance.CodeMissingField, "%s is required", name).In(name)
	}
	address, err := appliance.ParseAddress(text)
	if err != nil {
		e := asError(err)
		return address, appliance.Errorf(e.Code, "%s %s", name, e.Detail).In(name)
	}
	return address, nil
}

// stringMembers returns the members of a JSON object, which must be strings with the allowed names.
func stringMembers(object []byte, allowed ...string) (map[string]string, error) {
	decoder := json.NewDecoder(bytes.NewReader(object))
	if open, err := decoder.Token(); err != nil || open != json.Delim('{') {
		return nil, appliance.Errorf(appliance.CodeInvalidJSON, "the body must be one JSON object in UTF-8")
	}
	members := make(map[string]string, len(allowed))
	for decoder.More() {
		name, _ := stringToken(decoder) // the name of a member is always a string
		if err := checkMember(name, members, allowed); err != nil {
			return nil, err
		}
		value, ok := stringToken(decoder)
		if !ok {
			return nil, appliance.Errorf(appliance.CodeInvalidField, "%s must be a string", name).In(name)
		}
		members[name] = value
	}
	return members, nil
}

func stringToken(decoder *json.Decoder) (string, bool) {
	token, err := decoder.Token()
	s, ok := token.(string)
	return s, ok && err == nil
}

func checkMember(name string, seen map[string]string, allowed []string) error {
	if _, twice := seen[name]; twice {
		return appliance.Errorf(appliance.CodeDuplicateField, "%s is there twice", name).In(name)
	}
	for _, a := range allowed {
		if name == a {
			return nil
		}
	}
	shown := shorten(name)
	return appliance.Errorf(appliance.CodeUnknownField, "there is no field %s", strconv.Quote(shown)).In(shown)
}

// shorten cuts a text of the client that an error repeats.
func shorten(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	cut := most
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}
