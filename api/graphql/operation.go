package graphql

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"slices"

	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/lexer"
	"github.com/vektah/gqlparser/v2/parser"
	"github.com/vektah/gqlparser/v2/validator/core"
	"github.com/vektah/gqlparser/v2/validator/rules"

	"github.com/attestd/attestd/appliance"
)

// operation is an operation that has been parsed, checked against the limits and the schema, and merged: all that
// does not depend on the values of variables. It is kept for the next request with the same text.
type operation struct {
	def    *ast.OperationDefinition
	fields []*field
	// static is the bound form of an operation that uses no variables, nil for others.
	static []*selection
	cached *cachedDirective
	// identity is a hash of the document, the directive's refresh apart, so that a refresh replaces what the same
	// query without it is answered with.
	identity [sha256.Size]byte
	weight   uint32 // about how many bytes all this takes, as measured on common documents
}

// field is a field of a selection set after fragments were spread and fields of the same response key merged
// (GraphQL, section 6.3.2): each key is there once, in the order of the response.
type field struct {
	key    string // in the response
	prefix []byte // ,"key":
	node   *ast.Field
	def    *ast.FieldDefinition
	schema *ast.Schema
	meta   bool // __schema or __type
	access access
	fields []*field

	place        int           // where the field is written first
	alternatives []alternative // where and when it is asked for; none means always, in its place
	always       bool          // the last alternative is unconditional

	byKey     map[string]*field
	arguments string // printed, to compare
}

// alternative is one of the places where a field is written, under @skip or @include. It holds, and the field stands
// there in the response, when all its guards do, those of the selections around it too.
type alternative struct {
	place  int
	guards []guard
}

// guard is one @skip or @include: it holds when the variable has that value.
type guard struct {
	condition *ast.Value
	value     bool
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
	if err := e.limits.check(doc, def); err != nil {
		return nil, []*Error{err}
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
	op.weight = uint32(1024 + 24*len(query) + 300*m.places)
	if directive := def.Directives.ForName("cached"); directive != nil {
		op.cached = &cachedDirective{directive: directive}
		op.identity = op.cached.identify(query)
	}
	if len(def.VariableDefinitions) == 0 {
		var errs []*Error
		if op.static, errs = bind(op.fields, nil); len(errs) > 0 {
			return nil, errs
		}
	}
	return op, nil
}

// parse checks sizes before anything else.
func (e *Endpoint) parse(query string) (*ast.QueryDocument, *Error) {
	if len(query) > e.limits.MaxQueryBytes {
		return nil, newError(CodeQueryTooLarge, fmt.Sprintf("the query has %d bytes, more than %d", len(query), e.limits.MaxQueryBytes))
	}
	if err := e.countTokens(query); err != nil {
		return nil, err
	}
	doc, err := parser.ParseQuery(&ast.Source{Input: query})
	if err != nil {
		return nil, fromParser(CodeParseFailed, err)
	}
	if len(doc.Operations) == 0 {
		return nil, newError(CodeParseFailed, "the document has no operation")
	}
	return doc, nil
}

// countTokens reads tokens up to the limit, so that a document beyond it is never built.
func (e *Endpoint) countTokens(query string) *Error {
	tokens := lexer.New(&ast.Source{Input: query})
	for range e.limits.MaxTokens + 1 {
		token, err := tokens.ReadToken()
		if err != nil {
			return fromParser(CodeParseFailed, err)
		}
		if token.Kind == lexer.EOF {
			return nil
		}
	}
	return newError(CodeTooManyTokens, fmt.Sprintf("the query has more than %d tokens", e.limits.MaxTokens))
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
		if r := recover(); r != nil && r != errEnough {
			panic(r)
		}
	}()
	core.Walk(e.schema, doc, observers)
	return errs
}

// merger collects fields as the executor of GraphQL, section 6.3.2, does, once for all values of variables. All
// types are objects, so fields of one response key must be the same field with the same arguments
// (section 5.3.2): that is found here on the way, without comparing pairs.
type merger struct {
	schema    *ast.Schema
	places    int // counts fields in the order of the document, with fragments where they are spread
	conflicts []*Error
}

func (m *merger) merge(root *ast.Definition, set ast.SelectionSet) []*field {
	top := &field{byKey: make(map[string]*field)}
	m.collect(top, root, set, nil)
	for _, f := range top.fields {
		f.resolveAccess(queryRows[f.def.Name])
	}
	return top.fields
}

func (m *merger) collect(into *field, parent *ast.Definition, set ast.SelectionSet, when []guard) {
	for _, s := range set {
		switch s := s.(type) {
		case *ast.Field:
			f, inner := m.field(into, s), guards(when, s.Directives)
			f.addAlternative(m.places, inner)
			if len(s.SelectionSet) > 0 {
				m.collect(f, m.schema.Types[f.def.Type.Name()], s.SelectionSet, inner)
			}
		case *ast.InlineFragment:
			m.collect(into, parent, s.SelectionSet, guards(when, s.Directives))
		case *ast.FragmentSpread:
			m.collect(into, parent, s.Definition.SelectionSet, guards(when, s.Directives))
		}
	}
}

// field returns the field of a node's response key, a new one for a new key.
func (m *merger) field(into *field, node *ast.Field) *field {
	m.places++
	arguments := printArguments(node.Arguments)
	known, ok := into.byKey[node.Alias]
	if !ok {
		f := &field{
			key: node.Alias, place: m.places, prefix: []byte(`,"` + node.Alias + `":`), node: node, def: node.Definition, schema: m.schema,
			meta: node.Name == "__schema" || node.Name == "__type", byKey: make(map[string]*field), arguments: arguments,
		}
		into.byKey[node.Alias] = f
		into.fields = append(into.fields, f)
		return f
	}
	if (known.node.Name != node.Name || known.arguments != arguments) && len(m.conflicts) < maxErrors {
		conflict := newError(CodeValidationFailed, fmt.Sprintf(
			`Fields %q conflict: they are different fields or have different arguments. Use different aliases to fetch both.`, node.Alias)).at(known.node.Position)
		conflict.Locations = append(conflict.Locations, Location{Line: node.Position.Line, Column: node.Position.Column})
		m.conflicts = append(m.conflicts, conflict)
	}
	return known
}

// guards adds the conditions of directives to those around them.
func guards(around []guard, directives ast.DirectiveList) []guard {
	all := around
	for _, d := range directives {
		if d.Name == "skip" || d.Name == "include" {
			all = append(slices.Clip(all), guard{condition: d.Arguments.ForName("if").Value, value: d.Name == "include"})
		}
	}
	return all
}

func (f *field) addAlternative(place int, guards []guard) {
	if f.always || len(guards) == 0 && len(f.alternatives) == 0 {
		f.always = true
		return
	}
	f.always = len(guards) == 0
	f.alternatives = append(f.alternatives, alternative{place: place, guards: guards})
}

// placeWith tells whether the field is asked for with these variables, and where.
func (f *field) placeWith(variables map[string]any) (place int, asked bool) {
	if len(f.alternatives) == 0 {
		return f.place, true
	}
	for _, a := range f.alternatives {
		if !slices.ContainsFunc(a.guards, func(g guard) bool {
			value, _ := g.condition.Value(variables)
			return value != g.value
		}) {
			return a.place, true
		}
	}
	return 0, false
}

// selection is a field that is asked for, with its arguments: what is executed.
type selection struct {
	*field
	place    int            // in the document; selections are in this order
	args     map[string]any // coerced; those that are absent are not there
	children []*selection
}

// appendKey appends the field's key, with a comma unless it is the first of its object.
func (f *field) appendKey(dst []byte, i int) []byte {
	if i == 0 {
		return append(dst, f.prefix[1:]...)
	}
	return append(dst, f.prefix...)
}

// bind gives variables their values.
func bind(fields []*field, variables map[string]any) ([]*selection, []*Error) {
	set := make([]*selection, 0, len(fields))
	block := make([]selection, len(fields)) // one allocation for all
	moved := false
	for i, f := range fields {
		place, asked := f.placeWith(variables)
		if !asked {
			continue
		}
		s := &block[i]
		s.field, s.place = f, place
		moved = moved || place != f.place
		var err *Error
		if s.args, err = f.bindArguments(variables); err != nil {
			return nil, []*Error{err}
		}
		if len(f.fields) > 0 {
			var errs []*Error
			if s.children, errs = bind(f.fields, variables); len(errs) > 0 {
				return nil, errs
			}
		}
		set = append(set, s)
	}
	if moved {
		slices.SortFunc(set, func(a, b *selection) int { return a.place - b.place })
	}
	return set, nil
}

func (f *field) bindArguments(variables map[string]any) (map[string]any, *Error) {
	if len(f.node.Arguments) == 0 {
		return nil, nil
	}
	args := make(map[string]any, len(f.node.Arguments))
	for _, a := range f.node.Arguments {
		if a.Value.Kind == ast.Variable {
			if _, given := variables[a.Value.Raw]; !given {
				continue
			}
		}
		value, err := coerceLiteral(f.schema, f.def.Arguments.ForName(a.Name).Type, a.Value, variables)
		if err != nil {
			return nil, err.under(f.key)
		}
		args[a.Name] = value
	}
	return args, nil
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

// access is how a field of a row is reached.
type access struct {
	kind     accessKind
	number   int                // of the column
	relation appliance.Relation // of accessRelation and accessPacketTraces
	to       *appliance.Type    // of the rows it leads to
}

type accessKind uint8

const (
	accessNone         accessKind = iota // not of a row
	accessTypename                       // __typename
	accessLeaf                           // a column
	accessObject                         // an object in a column
	accessList                           // a list of objects in a column
	accessRelation                       // a related row
	accessPacketTraces                   // a transfer's traces, which are its packet's
)

// accessOf finds how a field is reached from rows of a type.
func accessOf(t *appliance.Type, name string) access {
	if name == "__typename" {
		return access{kind: accessTypename}
	}
	if t == nil {
		return access{}
	}
	if r, ok := t.Relation(name); ok {
		return access{kind: accessRelation, relation: r, to: r.To}
	}
	if column, ok := t.Field(name); ok {
		a := access{kind: accessLeaf, number: column.Number, to: column.Elem}
		switch column.Kind {
		case appliance.FieldObject:
			a.kind = accessObject
		case appliance.FieldList:
			a.kind = accessList
		}
		return a
	}
	if packet, ok := t.Relation("packet"); ok && name == "traces" {
		traces := packet.To.MustField(name)
		return access{kind: accessPacketTraces, relation: packet, number: traces.Number, to: traces.Elem}
	}
	return access{}
}

// resolveAccess finds how the fields inside are reached from rows of a type, nil for what is no row.
func (f *field) resolveAccess(rows *appliance.Type) {
	for _, inner := range f.fields {
		inner.access = accessOf(rows, inner.def.Name)
		inner.resolveAccess(inner.access.to)
	}
}
