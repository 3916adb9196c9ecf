package document

import (
	"crypto/sha256"
	"hash"
	"slices"
	"time"

	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/lexer"

	"github.com/attestd/attestd/appliance"
)

// Cached is the directive @cached of an operation.
type Cached struct {
	// Identity is a hash of the document's tokens without the argument refresh, so that a refresh replaces the cached
	// answer of the same query.
	Identity [sha256.Size]byte
	// Ignored is the name of a variable that only refresh uses, so the answer does not depend on it. It is empty if the
	// operation has no such variable.
	Ignored string

	directive *ast.Directive
	variables ast.VariableDefinitionList // of the operation
}

// cachedOf returns @cached of an operation, or nil if it has none.
func cachedOf(query string, def *ast.OperationDefinition) *Cached {
	directive := def.Directives.ForName("cached")
	if directive == nil {
		return nil
	}
	c := &Cached{directive: directive, variables: def.VariableDefinitions}
	c.Identity = c.identify(query)
	return c
}

// Policy holds the argument values of @cached.
type Policy struct {
	TTL     time.Duration
	Refresh bool // execute the query even if its answer is cached
}

// Policy returns the values of the directive's arguments.
//
// Errors: CodeInvalidField for a negative ttl.
func (c *Cached) Policy(schema *ast.Schema, variables map[string]any) (Policy, *Error) {
	values := make(map[string]any)
	for _, def := range schema.Directives["cached"].Arguments {
		value := def.DefaultValue
		if given := c.directive.Arguments.ForName(def.Name); given != nil && !isAbsent(given.Value, variables) {
			value = given.Value
		}
		coerced, err := coerceLiteral(schema, def.Type, value, variables)
		if err != nil {
			return Policy{}, err
		}
		values[def.Name] = coerced
	}
	ttl, ok := values["ttl"].(int32)
	if !ok || ttl < 0 {
		return Policy{},
			NewError(appliance.CodeInvalidField, "ttl of @cached must be 0 seconds or more").At(c.directive.Position)
	}
	refresh, _ := values["refresh"].(bool)
	return Policy{TTL: time.Duration(ttl) * time.Second, Refresh: refresh}, nil
}

// CoerceVariables coerces the variables that @cached uses to the types of its arguments. It serves forwarded
// operations, whose other variables may have types that this schema lacks.
func (c *Cached) CoerceVariables(schema *ast.Schema, given map[string]any) (map[string]any, []*Error) {
	var used ast.VariableDefinitionList
	for _, argument := range schema.Directives["cached"].Arguments {
		given := c.directive.Arguments.ForName(argument.Name)
		if given == nil || given.Value.Kind != ast.Variable {
			continue
		}
		if defined := c.variables.ForName(given.Value.Raw); defined != nil {
			variable, t := *defined, *argument.Type
			t.NonNull = false // the argument has a default
			variable.Type = &t
			used = append(used, &variable)
		}
	}
	return coerceVariables(schema, used, given)
}

// identify returns Identity, and sets Ignored.
func (c *Cached) identify(query string) (id [sha256.Size]byte) {
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

// withoutRefresh removes the argument refresh from the tokens of a document, and the parentheses if no argument is
// left.
func (c *Cached) withoutRefresh(tokens []lexer.Token) []lexer.Token {
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

// ignoreIfAlone sets Ignored to a variable if only its definition and refresh use it.
func (c *Cached) ignoreIfAlone(tokens []lexer.Token, variable string) {
	uses := 0
	for i, t := range tokens {
		if t.Kind == lexer.Name && t.Value == variable && i > 0 && tokens[i-1].Kind == lexer.Dollar {
			uses++
		}
	}
	if uses == 2 {
		c.Ignored = variable
	}
}

func hashToken(h hash.Hash, t lexer.Token) {
	h.Write([]byte{byte(t.Kind), byte(len(t.Value) >> 16), byte(len(t.Value) >> 8), byte(len(t.Value))})
	h.Write([]byte(t.Value))
}
