package graphql

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"slices"

	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"
	"github.com/vektah/gqlparser/v2/lexer"
	"github.com/vektah/gqlparser/v2/parser"
	"github.com/vektah/gqlparser/v2/validator/core"
	"github.com/vektah/gqlparser/v2/validator/rules"
)

// operation is an operation that has been parsed, checked against the limits and the schema, and merged: all that
// does not depend on the values of variables. It is kept for the next request with the same text.
type operation struct {
	def *ast.OperationDefinition
	// forwarded operations go upstream. They are not checked against the schema, and have no fields.
	forwarded bool
	fields    []*field
	// static is the bound form of an operation that uses no variables, nil for others.
	static []*selection
	cached *cachedDirective
	// identity is a hash of the document, the directive's refresh apart, so that a refresh replaces what the same
	// query without it is answered with.
	identity [sha256.Size]byte
	weight   uint32 // about how many bytes all this takes, as measured on common documents
}

// cachedDirective is @cached of an operation.
type cachedDirective struct {
	directive *ast.Directive
	// ignore names the variable that only refresh uses: it is no part of the cache's key.
	ignore string
}

// prepare parses and checks the operation of that name, or the only one.
func (e *Endpoint) prepare(query, name string) (*operation, []*Error) {
	doc, err := e.parse(query)
	if err != nil {
		return nil, []*Error{err}
	}
	def, err := selectOperation(doc, name)
	if err != nil {
		return nil, []*Error{err}
	}
	if def.Operation != ast.Query {
		return nil, []*Error{newError(CodeOperationUnsupported, "there are only queries, no "+string(def.Operation)+"s").at(def.Position)}
	}
	extent, err := e.limits.check(doc, def)
	if err != nil {
		return nil, []*Error{err}
	}
	op, errs := e.resolve(doc, def)
	if len(errs) > 0 && e.proxy != nil {
		op, errs = e.toForward(doc, def, extent)
	}
	if len(errs) > 0 {
		return nil, errs
	}
	op.weight += uint32(1024 + 24*len(query))
	if directive := def.Directives.ForName("cached"); directive != nil {
		op.cached = &cachedDirective{directive: directive}
		op.identity = op.cached.identify(query)
	}
	return op, nil
}

// resolve checks an operation against the schema and merges it, to be answered from the index.
func (e *Endpoint) resolve(doc *ast.QueryDocument, def *ast.OperationDefinition) (*operation, []*Error) {
	if e.index == nil {
		return nil, []*Error{newError(CodeValidationFailed, "there is no replica")}
	}
	if errs := e.validate(doc); len(errs) > 0 {
		return nil, errs
	}
	op := &operation{def: def}
	m := merger{schema: e.schema}
	op.fields = m.merge(e.schema.Query, def.SelectionSet)
	if len(m.conflicts) > 0 {
		return nil, m.conflicts
	}
	op.weight = uint32(300 * m.places)
	var errs []*Error
	if len(def.VariableDefinitions) == 0 {
		op.static, errs = bind(op.fields, nil)
	}
	return op, errs
}

// parse checks sizes before anything else. The parser ends at the limit of tokens.
func (e *Endpoint) parse(query string) (*ast.QueryDocument, *Error) {
	if len(query) > e.limits.MaxQueryBytes {
		return nil, newError(CodeQueryTooLarge, fmt.Sprintf("the query has %d bytes, more than %d", len(query), e.limits.MaxQueryBytes))
	}
	doc, err := parser.ParseQueryWithTokenLimit(&ast.Source{Input: query}, e.limits.MaxTokens)
	switch {
	case isTokenLimit(err, e.limits.MaxTokens):
		return nil, newError(CodeTooManyTokens, fmt.Sprintf("the query has more than %d tokens", e.limits.MaxTokens))
	case err != nil:
		return nil, fromParser(CodeParseFailed, err)
	case len(doc.Operations) == 0:
		return nil, newError(CodeParseFailed, "the document has no operation")
	}
	return doc, nil
}

// isTokenLimit tells that error of the parser's by its message, which is all that it has.
func isTokenLimit(err error, limit int) bool {
	parsed, ok := errors.AsType[*gqlerror.Error](err)
	return ok && parsed.Message == fmt.Sprintf("exceeded token limit of %d", limit)
}

// selectOperation is GetOperation of GraphQL, section 6.1.
func selectOperation(doc *ast.QueryDocument, name string) (*ast.OperationDefinition, *Error) {
	if name == "" {
		if len(doc.Operations) > 1 {
			return nil, newError(CodeUnknownOperation, "the document has several operations: operationName must say which")
		}
		return doc.Operations[0], nil
	}
	for _, op := range doc.Operations {
		if op.Name == name {
			return op, nil
		}
	}
	return nil, newError(CodeUnknownOperation, fmt.Sprintf("the document has no operation %q", name))
}

// validationRules are those of GraphQL, section 5, but for field selection merging, which merger does in linear time.
var validationRules = []core.Rule{
	rules.FieldsOnCorrectTypeRule, rules.FragmentsOnCompositeTypesRule, rules.KnownArgumentNamesRule, rules.KnownDirectivesRule,
	rules.KnownFragmentNamesRule, rules.KnownRootTypeRule, rules.KnownTypeNamesRule, rules.LoneAnonymousOperationRule,
	rules.MaxIntrospectionDepth, rules.NoUndefinedVariablesRule, rules.NoUnusedFragmentsRule, rules.NoUnusedVariablesRule,
	rules.PossibleFragmentSpreadsRule, rules.ProvidedRequiredArgumentsRule, rules.ScalarLeafsRule, rules.SingleFieldSubscriptionsRule,
	rules.UniqueArgumentNamesRule, rules.UniqueDirectivesPerLocationRule, rules.UniqueFragmentNamesRule,
	rules.UniqueInputFieldNamesRule, rules.UniqueOperationNamesRule, rules.UniqueVariableNamesRule, rules.ValuesOfCorrectTypeRule,
	rules.VariablesAreInputTypesRule, variablesInAllowedPosition,
}

// maxErrors ends validation: the first few errors tell enough, and suggestions for thousands cost time.
const maxErrors = 10

var errEnough = errors.New("enough errors")

// validate applies the rules. It writes definitions into the document, as gqlparser does.
func (e *Endpoint) validate(doc *ast.QueryDocument) (errs []*Error) {
	loosen(doc)
	observers := &core.Events{}
	for _, rule := range validationRules {
		rule.RuleFunc(observers, func(options ...core.ErrorOption) {
			errs = append(errs, validationError(doc, options))
			if len(errs) == maxErrors {
				panic(errEnough)
			}
		})
	}
	defer func() {
		if r := recover(); r != nil && r != any(errEnough) {
			panic(r)
		}
	}()
	core.Walk(e.schema, doc, observers)
	return errs
}

// identify hashes the tokens of a document, without refresh of @cached.
func (c *cachedDirective) identify(query string) (id [sha256.Size]byte) {
	h := sha256.New()
	for _, t := range c.withoutRefresh(readTokens(query)) {
		hashToken(h, t)
	}
	h.Sum(id[:0])
	return id
}

func readTokens(query string) []lexer.Token {
	var all []lexer.Token
	for lex := lexer.New(&ast.Source{Input: query}); ; {
		token, err := lex.ReadToken()
		if err != nil || token.Kind == lexer.EOF {
			return all
		}
		if token.Kind != lexer.Comment {
			all = append(all, token)
		}
	}
}

// withoutRefresh cuts the directive's argument refresh out of a document, and brackets that then are empty.
func (c *cachedDirective) withoutRefresh(tokens []lexer.Token) []lexer.Token {
	argument := c.directive.Arguments.ForName("refresh")
	if argument == nil {
		return tokens
	}
	start := slices.IndexFunc(tokens, func(t lexer.Token) bool { return t.Pos.Start >= argument.Position.Start })
	end := start + len("n:v") // name, colon, value
	if argument.Value.Kind == ast.Variable {
		c.ignoreIfAlone(tokens, argument.Value.Raw)
		end++ // the dollar sign
	}
	if len(c.directive.Arguments) == 1 {
		start, end = start-1, end+1
	}
	return slices.Concat(tokens[:start], tokens[end:])
}

// ignoreIfAlone leaves a variable out of the key when nothing but its definition and refresh names it.
func (c *cachedDirective) ignoreIfAlone(tokens []lexer.Token, variable string) {
	uses := 0
	for i, t := range tokens {
		if t.Kind == lexer.Name && t.Value == variable && i > 0 && tokens[i-1].Kind == lexer.Dollar {
			uses++
		}
	}
	if uses == 2 {
		c.ignore = variable
	}
}

func hashToken(h hash.Hash, t lexer.Token) {
	h.Write([]byte{byte(t.Kind), byte(len(t.Value) >> 16), byte(len(t.Value) >> 8), byte(len(t.Value))})
	h.Write([]byte(t.Value))
}
