package wire

import (
	"bytes"
	"errors"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/attestd/attestd/appliance"
)

// All JSON from clients is parsed here. Two parsers must not read different values from it, so it must be I-JSON (RFC
// 7493): UTF-8, and no member of an object twice, at any depth and in any spelling. Member names are case-sensitive.

// ReadObject reads one JSON object into the struct that v points to. The struct must have a field for each member.
//
// Errors: CodeInvalidJSON; CodeDuplicateField and CodeUnknownField, with Field set.
func ReadObject(body []byte, v any) error {
	if !startsObject(body) {
		return notAnObject()
	}
	return explain(json.Unmarshal(body, v, json.RejectUnknownMembers(true)))
}

// ReadSome reads one JSON object into the struct that v points to, and ignores members without a field.
//
// Errors: the errors of ReadObject, except CodeUnknownField.
func ReadSome(body []byte, v any) error {
	if !startsObject(body) {
		return notAnObject()
	}
	return explain(json.Unmarshal(body, v))
}

// ReadMembers reads one JSON object with any members.
//
// Errors: the errors of ReadObject, except CodeUnknownField.
func ReadMembers(body []byte) (members map[string]jsontext.Value, err error) {
	if !startsObject(body) {
		return nil, notAnObject()
	}
	return members, explain(json.Unmarshal(body, &members))
}

func startsObject(body []byte) bool {
	return bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("{"))
}

func notAnObject() *appliance.Error {
	return appliance.Errorf(appliance.CodeInvalidJSON, "the body must be one JSON object in UTF-8")
}

func explain(err error) error {
	if err == nil {
		return nil
	}
	semantic, isSemantic := errors.AsType[*json.SemanticError](err)
	syntactic, isSyntactic := errors.AsType[*jsontext.SyntacticError](err)
	switch {
	case isSyntactic && errors.Is(err, jsontext.ErrDuplicateName):
		name := fieldOf(syntactic.JSONPointer)
		return appliance.Errorf(appliance.CodeDuplicateField, "%s occurs twice", name).In(name)
	case isSyntactic || !isSemantic:
		return notAnObject()
	case errors.Is(err, json.ErrUnknownName):
		name := fieldOf(semantic.JSONPointer)
		if meant := similarField(semantic.GoType, name); meant != "" {
			return appliance.Errorf(appliance.CodeUnknownField, "unknown field %s; did you mean %s?",
				strconv.Quote(name), meant).In(name)
		}
		return appliance.Errorf(appliance.CodeUnknownField, "unknown field %s", strconv.Quote(name)).In(name)
	case semantic.Err != nil:
		return appliance.Errorf(appliance.CodeInvalidJSON, "%s: %s", fieldOf(semantic.JSONPointer), semantic.Err)
	}
	return appliance.Errorf(appliance.CodeInvalidJSON, "%s must not be a JSON %s", fieldOf(semantic.JSONPointer),
		semantic.JSONKind)
}

// similarField returns the struct's member that differs from name in case, hyphens and underscores only, such as
// unspendableAddress for unspendable_address.
func similarField(t reflect.Type, name string) string {
	plain := strings.NewReplacer("_", "", "-", "")
	if t == nil || t.Kind() != reflect.Struct {
		return ""
	}
	for _, f := range reflect.VisibleFields(t) {
		member, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if member != "" && strings.EqualFold(plain.Replace(name), member) {
			return member
		}
	}
	return ""
}

// fieldOf returns the path of a member: its name, prefixed by the names of the enclosing members.
func fieldOf(p jsontext.Pointer) string {
	var names []string
	for name := range p.Tokens() {
		names = append(names, name)
	}
	return shorten(strings.Join(names, "."))
}

// shorten cuts a client's text that an error repeats to at most 64 bytes.
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
