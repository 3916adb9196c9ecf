package graphql

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/vektah/gqlparser/v2/ast"

	"github.com/attestd/attestd/api/upstream"
	"github.com/attestd/attestd/appliance"
)

// What is forwarded goes as it came, with the upstream's credentials. So it must mean to the upstream what it was taken for
// here: what readers of JSON and of URLs read differently is refused. Else a mutation could hide behind a query, or one
// query's answer be shared as another's.

// toForward checks what must hold of an operation that goes upstream, whatever the schema there is.
func (e *Endpoint) toForward(doc *ast.QueryDocument, def *ast.OperationDefinition, size extent) (*operation, []*Error) {
	for _, other := range doc.Operations {
		if other != def && other.Name == def.Name {
			return nil, []*Error{newError(CodeValidationFailed, fmt.Sprintf("There can be only one operation named %q.", def.Name)).at(other.Position)}
		}
	}
	if e.noIntrospection && size.metaDepth > 0 {
		return nil, []*Error{introspectionOff()}
	}
	return &operation{def: def, forwarded: true}, nil
}

// forwardedJob asks the upstream.
func (e *Endpoint) forwardedJob(op *operation, r request, given map[string]any) (job, []*Error) {
	message := r.message()
	message.MaxResponse = int64(e.limits.MaxResponseBytes)
	j := job{
		run:    func(ctx context.Context) response { return e.proxy.ask(ctx, message) },
		stale:  e.proxy.stale,
		flight: message.ContentType + "\n" + message.Accept,
	}
	if op.cached == nil {
		return j, nil
	}
	extensions, err := readObject(r.extensions)
	if err != nil {
		return j, []*Error{newError(appliance.CodeInvalidField, "extensions must be an object")}
	}
	j.variant = string(canonical(extensions))
	var errs []*Error
	j.variables, errs = coerceVariables(e.schema, e.cachedVariables(op), given)
	return j, errs
}

// cachedVariables are the variables that @cached uses, of the types that it wants them to be. The others may be of types
// that are not known here.
func (e *Endpoint) cachedVariables(op *operation) *ast.OperationDefinition {
	used := &ast.OperationDefinition{}
	for _, argument := range e.schema.Directives["cached"].Arguments {
		given := op.cached.directive.Arguments.ForName(argument.Name)
		if given == nil || given.Value.Kind != ast.Variable {
			continue
		}
		if defined := op.def.VariableDefinitions.ForName(given.Value.Raw); defined != nil {
			variable, t := *defined, *argument.Type
			t.NonNull = false // the argument has a default
			variable.Type = &t
			used.VariableDefinitions = append(used.VariableDefinitions, &variable)
		}
	}
	return used
}

// message copies a request.
func (r request) message() upstream.Request {
	m := upstream.Request{Method: http.MethodPost, Accept: strings.Clone(r.raw.accept)}
	if r.get {
		m.Method, m.Query = http.MethodGet, string(r.raw.bytes)
	} else {
		m.Body, m.ContentType = bytes.Clone(r.raw.bytes), strings.Clone(r.raw.contentType)
	}
	return m
}

// parameters are those of GraphQL over HTTP, section 5.1, which reserves all other names.
var parameters = []string{"query", "operationName", "variables", "extensions"}

// checkForwardable refuses a request that another reader may read differently.
func (r request) checkForwardable() *Error {
	check := checkBody
	if r.get {
		check = checkQuery
	}
	if err := check(r.raw.bytes); err != nil {
		return err
	}
	if strings.ContainsFunc(r.raw.accept+r.raw.contentType, unicode.IsControl) {
		return newError(appliance.CodeInvalidField, "a header has a control character")
	}
	return nil
}

func checkQuery(raw []byte) *Error {
	values, err := url.ParseQuery(string(raw))
	if err != nil || bytes.ContainsFunc(raw, unicode.IsControl) {
		return newError(appliance.CodeInvalidField, "the URL's query is malformed")
	}
	if err := checkNames(maps.Keys(values)); err != nil {
		return err
	}
	for name, all := range values {
		if len(all) > 1 {
			return isRepeated(name)
		}
		if name == "variables" || name == "extensions" {
			if _, repeated, _ := readJSON([]byte(all[0])); len(repeated) > 0 { // it is JSON or empty
				return isRepeated(repeated[0])
			}
		}
	}
	return nil
}

func checkBody(raw []byte) *Error {
	value, repeated, err := readJSON(raw)
	members, ok := value.(map[string]any)
	switch {
	case err != nil || !ok || !utf8.Valid(raw):
		return newError(appliance.CodeInvalidJSON, "the body must be a JSON object in UTF-8")
	case len(repeated) > 0:
		return isRepeated(repeated[0])
	}
	return checkNames(maps.Keys(members))
}

func checkNames(names iter.Seq[string]) *Error {
	for name := range names {
		if !slices.Contains(parameters, name) {
			return newError(appliance.CodeUnknownField, fmt.Sprintf("%s is no parameter of GraphQL over HTTP: a request that goes upstream has %s only",
				show(name), strings.Join(parameters, ", ")))
		}
	}
	return nil
}

func isRepeated(name string) *Error {
	return newError(appliance.CodeDuplicateField, show(name)+" is there twice")
}
