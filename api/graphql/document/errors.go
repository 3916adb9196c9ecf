package document

import (
	"encoding/json"
	"errors"

	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"

	"github.com/attestd/attestd/appliance"
)

// Error codes of documents, variables and answers, in addition to the codes of package appliance. They appear in
// extensions.code and are stable.
const (
	CodeParseFailed      appliance.Code = "parse_failed"      // the document is not GraphQL
	CodeValidationFailed appliance.Code = "validation_failed" // the document does not fit the schema
	CodeInvalidVariable  appliance.Code = "invalid_variable"  // a variable's value does not fit its type
	// operationName is unknown, or required but missing
	CodeUnknownOperation     appliance.Code = "unknown_operation"
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
)

// CodeUpstreamUnavailable replaces appliance.CodeUpstreamUnavailable in GraphQL, because GraphQL clients expect it in
// capitals.
const CodeUpstreamUnavailable appliance.Code = "UPSTREAM_UNAVAILABLE"

// Error is an error of a GraphQL response (GraphQL, section 7.1.2). Its extensions always contain a code.
type Error struct {
	Message    string         `json:"message"`
	Locations  []Location     `json:"locations,omitempty"`
	Path       []any          `json:"path,omitempty"` // response keys and list indexes
	Extensions map[string]any `json:"extensions"`
}

// Location is a position in the document. Line and column start at 1.
type Location struct {
	Line   int `json:"line"`
	Column int `json:"column"`
}

// NewError returns an error without location and path.
func NewError(code appliance.Code, message string) *Error {
	if code == appliance.CodeUpstreamUnavailable {
		code = CodeUpstreamUnavailable
	}
	return &Error{Message: message, Extensions: map[string]any{"code": code}}
}

// Code returns extensions.code.
func (e *Error) Code() appliance.Code {
	code, _ := e.Extensions["code"].(appliance.Code)
	return code
}

// At sets the location. A nil position leaves it unchanged.
func (e *Error) At(pos *ast.Position) *Error {
	if pos != nil {
		e.Locations = []Location{{Line: pos.Line, Column: pos.Column}}
	}
	return e
}

// WithPath sets the response path.
func (e *Error) WithPath(path ...any) *Error {
	e.Path = path
	return e
}

// fromParser converts an error of gqlparser.
func fromParser(code appliance.Code, err error) *Error {
	var parsed *gqlerror.Error
	if !errors.As(err, &parsed) {
		return NewError(code, err.Error())
	}
	e := NewError(code, parsed.Message)
	for _, l := range parsed.Locations {
		e.Locations = append(e.Locations, Location{Line: l.Line, Column: l.Column})
	}
	return e
}

// FromDomain converts an error of package appliance: its code and detail, but never its cause, which may reveal
// internals.
func FromDomain(known *appliance.Error) *Error {
	message := known.Detail
	if known.Field != "" {
		message = known.Field + " " + message
	}
	e := NewError(known.Code, message)
	if known.RetryAfter > 0 {
		e.Extensions["retryAfter"] = known.RetryAfter.Seconds()
	}
	return e
}

// AppendErrors appends the member "errors" of a response.
func AppendErrors(dst []byte, errs []*Error) []byte {
	encoded, err := json.Marshal(errs)
	if err != nil { // cannot happen: strings and numbers only
		panic(err)
	}
	dst = append(dst, `"errors":`...)
	return append(dst, encoded...)
}

// ErrorBody returns the response to a request that was not executed.
func ErrorBody(errs ...*Error) []byte {
	return append(AppendErrors([]byte{'{'}, errs), '}')
}
