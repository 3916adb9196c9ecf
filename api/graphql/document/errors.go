package document

import (
	"encoding/json"
	"errors"

	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"

	"github.com/attestd/attestd/appliance"
)

// The codes of errors of a document, its variables and its answer, beyond those of the domain. They stand in
// extensions.code and are stable.
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

// NewError makes an error without a place.
func NewError(code appliance.Code, message string) *Error {
	return &Error{Message: message, Extensions: map[string]any{"code": code}}
}

// Code returns extensions.code.
func (e *Error) Code() appliance.Code {
	code, _ := e.Extensions["code"].(appliance.Code)
	return code
}

// At adds where in the document the error lies.
func (e *Error) At(pos *ast.Position) *Error {
	if pos != nil {
		e.Locations = []Location{{Line: pos.Line, Column: pos.Column}}
	}
	return e
}

// Under adds the response path.
func (e *Error) Under(path ...any) *Error {
	e.Path = path
	return e
}

// fromParser turns an error of gqlparser's into ours.
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

// FromDomain turns an error of the domain into the client's view of it: code and detail, never the cause.
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

// AppendErrors appends `"errors":[…]`.
func AppendErrors(dst []byte, errs []*Error) []byte {
	encoded, err := json.Marshal(errs)
	if err != nil { // strings and numbers only
		panic(err)
	}
	dst = append(dst, `"errors":`...)
	return append(dst, encoded...)
}

// ErrorBody is the response to a request that was not executed.
func ErrorBody(errs ...*Error) []byte {
	return append(AppendErrors([]byte{'{'}, errs), '}')
}
