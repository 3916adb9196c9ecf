package api

import (
	"github.com/go-json-experiment/json/jsontext"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
)

// parseRequest reads a Request from one JSON object with exactly two members.
func parseRequest(body []byte) (r appliance.Request, err error) {
	var members struct {
		UnspendableAddress jsontext.Value `json:"unspendableAddress"`
		Beneficiary        jsontext.Value `json:"beneficiary"`
	}
	if err := wire.ReadObject(body, &members); err != nil {
		return r, err
	}
	if r.UnspendableAddress, err = parseMember("unspendableAddress", members.UnspendableAddress); err != nil {
		return r, err
	}
	r.Beneficiary, err = parseMember("beneficiary", members.Beneficiary)
	return r, err
}

func parseMember(name string, value jsontext.Value) (appliance.Address, error) {
	switch {
	case value == nil:
		return appliance.Address{}, appliance.Errorf(appliance.CodeMissingField, "%s is required", name).In(name)
	case value.Kind() != '"':
		return appliance.Address{}, appliance.Errorf(appliance.CodeInvalidField, "%s must be a string", name).In(name)
	}
	text, err := jsontext.AppendUnquote(make([]byte, 0, 64), value)
	if err != nil {
		return appliance.Address{}, err // cannot happen: the value was parsed before
	}
	address, err := appliance.ParseAddress(string(text))
	if err != nil {
		e := asError(err)
		return address, appliance.Errorf(e.Code, "%s %s", name, e.Detail).In(name)
	}
	return address, nil
}
