package graphql

import (
	"encoding/json"
	"errors"

	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"

	"github.com/attestd/attestd/appliance"
)

// The codes of errors beyond those of the domain. They stand in extensions.code and are stable.
const (
	CodeParseFailed          appliance.Code = "parse_failed"          // the document is not GraphQL
	CodeValidationFailed     appliance.Code = "validation_failed"     // the document does not fit the schema
	CodeInvalidVariable      appliance.Code = "invalid_variable"      // a variable's value does not fit its type
	CodeUnknownOperation     appliance.Code = "unknown_operation"     // operationName names none, or is needed
	CodeOperationUnsupported appliance.Code = "operation_unsupported" // a mutation or subscription
	CodeIntrospectionOff     appliance.Code = "introspection_off"
	CodeQueryTooLarge        appliance.Code = "query_too_large"
	CodeVariablesTooLarge    appliance.Code = "variables_too_large"
	CodeTooManyTokens        appliance.Code = "too_many_tokens"
	CodeTooDeep              appliance.Code = "too_deep"
	CodeTooManyRootFields    appliance.Code = "too_many_root_fields"
	CodeTooManyAliases       appliance.Code = "too_many_aliases"
	CodeTooCostly            appliance.Code = "too_costly"
	CodeResponseTooLarge     appliance.Code = "response_too_large"
	CodeBodyTooLarge         appliance.Code = "body_too_large"
	CodeBatchingUnsupported  appliance.Code = "batching_unsupported"
	CodeMethodNotAllowed     appliance.Code = "method_not_allowed"
	CodeUnsupportedMediaType appliance.Code = "unsupported_media_type"
	CodeNotAcceptable        appliance.Code = "not_acceptable"
)

// Error is an error of a GraphQL response (GraphQL, section 7.1.2). Its extensions always have a code.
type Error struct {
	Message    string         `json:"message"`
	Locations  []Location     `json:"locations,omitempty"`
	Path       []any          `json:"path,omitempty"` // response keys and list indexes
	Extensions map[string]any `json:"extensions"`
}

// Location is a place in the document, counted from 1.
type Location struct {
	Line   int `json:"line"`
	Column int `json:"column"`
}

func newError(code appliance.Code, message string) *Error {
	return &Error{Message: message, Extensions: map[string]any{"code": code}}
}

func (e *Error) code() appliance.Code {
	code, _ := e.Extensions["code"].(appliance.Code)
	return code
}

// at adds where in the document the error lies.
func (e *Error) at(pos *ast.Position) *Error {
	if pos != nil {
		e.Locations = []Location{{Line: pos.Line, Column: pos.Column}}
	}
	return e
}

func (e *Error) under(path ...any) *Error {
	e.Path = path
	return e
}

// fromParser turns an error of gqlparser's into ours.
func fromParser(code appliance.Code, err error) *Error {
	var parsed *gqlerror.Error
	if !errors.As(err, &parsed) {
		return newError(code, err.Error())
	}
	e := newError(code, parsed.Message)
	for _, l := range parsed.Locations {
		e.Locations = append(e.Locations, Location{Line: l.Line, Column: l.Column})
	}
	return e
}

// fromDomain turns an error of a root field into the client's view of it: code and detail, never the cause. An
// argument at fault is named and located.
func fromDomain(err error, s *selection) *Error {
	known, ok := errors.AsType[*appliance.Error](err)
	if !ok {
		return newError(appliance.CodeInternal, "internal error").at(s.node.Position).under(s.key)
	}
	e := fromKnown(known)
	if known.Field != "" {
		e.Extensions["argument"] = known.Field
	}
	return e.at(s.positionOf(known.Field)).under(s.key)
}

// fromKnown turns an error of the domain into one of a response, without its cause.
func fromKnown(known *appliance.Error) *Error {
	message := known.Detail
	if known.Field != "" {
		message = known.Field + " " + message
	}
	e := newError(known.Code, message)
	if known.RetryAfter > 0 {
		e.Extensions["retryAfter"] = known.RetryAfter.Seconds()
	}
	return e
}

// positionOf returns where an argument stands in the document, or where the field does.
func (f *field) positionOf(argument string) *ast.Position {
	for _, a := range f.node.Arguments {
		if a.Name == argument {
			return a.Position
		}
		for _, member := range a.Value.Children {
			if member.Name == argument {
				return member.Position
			}
		}
	}
	return f.node.Position
}

// appendErrors appends `"errors":[…]`.
func appendErrors(dst []byte, errs []*Error) []byte {
	encoded, err := json.Marshal(errs)
	if err != nil { // strings and numbers only
		panic(err)
	}
	dst = append(dst, `"errors":`...)
	return append(dst, encoded...)
}

// errorBody is the response of a request that was not executed.
func errorBody(errs ...*Error) []byte {
	return append(appendErrors([]byte{'{'}, errs), '}')
}
