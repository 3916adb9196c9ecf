// Package document prepares GraphQL requests for execution. It checks limits, parses and validates the document
// (GraphQL, sections 2 and 5) with gqlparser, coerces variables (section 6.1.2) and collects the operation's fields
// (section 6.3.2).
package document

import (
	"errors"
	"fmt"

	"github.com/vektah/gqlparser/v2"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"
	"github.com/vektah/gqlparser/v2/parser"
)

// LoadSchema parses a schema in the schema definition language.
func LoadSchema(text string) (*ast.Schema, error) {
	schema, err := gqlparser.LoadSchema(&ast.Source{Name: "schema.graphql", Input: text})
	if err != nil {
		return nil, fmt.Errorf("schema: %w", err)
	}
	delete(schema.Directives, "defer") // gqlparser predefines it, but this server does not support it
	return schema, nil
}

// Operation is the part of an operation that does not depend on variable values. It is safe for concurrent use once
// Resolve has returned.
type Operation struct {
	Cached *Cached // nil without the directive
	// Weight is the approximate memory of the operation in bytes, as measured on common documents.
	Weight uint32

	doc    *ast.QueryDocument
	def    *ast.OperationDefinition
	extent extent
	schema *ast.Schema
	fields []*Field
	// static is the result of Bind if the operation has no variables, and nil otherwise.
	static []*Selection
}

// Parse parses a query and returns the operation with the given name, or the only operation if the name is empty.
//
// Errors: CodeParseFailed, CodeUnknownOperation, CodeOperationUnsupported, CodeValidationFailed for a cycle of
// fragments, and the errors of the limits on the document.
func Parse(query, name string, limits Limits) (*Operation, *Error) {
	doc, err := parse(query, limits)
	if err != nil {
		return nil, err
	}
	def, err := selectOperation(doc, name)
	if err != nil {
		return nil, err
	}
	if def.Operation == ast.Mutation {
		return nil, NewError(CodeOperationUnsupported, "mutations are not supported").At(def.Position)
	}
	extent, err := limits.check(doc, def)
	if err != nil {
		return nil, err
	}
	return &Operation{doc: doc, def: def, extent: extent, Cached: cachedOf(query, def),
		Weight: uint32(1024 + 24*len(query))}, nil
}

// Subscribes reports whether the operation is a subscription.
func (op *Operation) Subscribes() bool { return op.def.Operation == ast.Subscription }

// RefuseSubscription returns CodeOperationUnsupported for a subscription that arrives by another way than a stream.
func (op *Operation) RefuseSubscription() *Error {
	return NewError(CodeOperationUnsupported,
		"a subscription needs a stream: send Accept: text/event-stream").At(op.def.Position)
}

// Introspects reports whether the operation selects __schema or __type, at any depth.
func (op *Operation) Introspects() bool { return op.extent.metaDepth > 0 }

// CheckName refuses an operation with a name that is not unique in the document. Resolve does so, too.
func (op *Operation) CheckName() *Error {
	for _, other := range op.doc.Operations {
		if other != op.def && other.Name == op.def.Name {
			return NewError(CodeValidationFailed,
				fmt.Sprintf("There can be only one operation named %q.", op.def.Name)).At(other.Position)
		}
	}
	return nil
}

// Resolve validates the document against a schema and collects the fields of the operation.
//
// Errors: CodeValidationFailed, at most ten.
func (op *Operation) Resolve(schema *ast.Schema) []*Error {
	if errs := validate(schema, op.doc); len(errs) > 0 {
		return errs
	}
	m := merger{schema: schema}
	root := schema.Query
	if op.Subscribes() {
		root = schema.Subscription
	}
	op.schema, op.fields = schema, m.merge(root, op.def.SelectionSet)
	if len(m.conflicts) > 0 {
		return m.conflicts
	}
	op.Weight += uint32(300 * m.places)
	var errs []*Error
	if len(op.def.VariableDefinitions) == 0 {
		op.static, errs = bind(op.fields, nil)
	}
	return errs
}

// CoerceVariables implements CoerceVariableValues of GraphQL, section 6.1.2. The operation must be resolved.
//
// Errors: CodeInvalidVariable.
func (op *Operation) CoerceVariables(given map[string]any) (map[string]any, []*Error) {
	return coerceVariables(op.schema, op.def.VariableDefinitions, given)
}

// Bind returns the selections for the given coerced variables.
func (op *Operation) Bind(variables map[string]any) ([]*Selection, []*Error) {
	if op.static != nil {
		return op.static, nil
	}
	return bind(op.fields, variables)
}

// parse checks the size before parsing. The parser stops at the token limit.
func parse(query string, limits Limits) (*ast.QueryDocument, *Error) {
	if len(query) > limits.MaxQueryBytes {
		return nil, NewError(CodeQueryTooLarge,
			fmt.Sprintf("the query has %d bytes, more than %d", len(query), limits.MaxQueryBytes))
	}
	doc, err := parser.ParseQueryWithTokenLimit(&ast.Source{Input: query}, limits.MaxTokens)
	switch {
	case isTokenLimit(err, limits.MaxTokens):
		return nil, NewError(CodeTooManyTokens, fmt.Sprintf("the query has more than %d tokens", limits.MaxTokens))
	case err != nil:
		return nil, fromParser(CodeParseFailed, err)
	case len(doc.Operations) == 0:
		return nil, NewError(CodeParseFailed, "the document lacks an operation")
	}
	return doc, nil
}

// isTokenLimit reports whether the parser stopped at its token limit. The message is the only mark of that error.
func isTokenLimit(err error, limit int) bool {
	parsed, ok := errors.AsType[*gqlerror.Error](err)
	return ok && parsed.Message == fmt.Sprintf("exceeded token limit of %d", limit)
}

// selectOperation implements GetOperation of GraphQL, section 6.1.
func selectOperation(doc *ast.QueryDocument, name string) (*ast.OperationDefinition, *Error) {
	if name == "" {
		if len(doc.Operations) > 1 {
			return nil, NewError(CodeUnknownOperation, "the document has several operations: set operationName to "+
				"one of them")
		}
		return doc.Operations[0], nil
	}
	for _, op := range doc.Operations {
		if op.Name == name {
			return op, nil
		}
	}
	return nil, NewError(CodeUnknownOperation, fmt.Sprintf("the document lacks an operation %q", name))
}
