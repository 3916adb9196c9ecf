package document

import (
	"errors"
	"slices"

	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"
	"github.com/vektah/gqlparser/v2/validator/core"
	"github.com/vektah/gqlparser/v2/validator/rules"
)

// validationRules are the rules of GraphQL, section 5, except field selection merging. merger checks that in linear
// time.
var validationRules = []core.Rule{
	rules.FieldsOnCorrectTypeRule, rules.FragmentsOnCompositeTypesRule, rules.KnownArgumentNamesRule,
	rules.KnownDirectivesRule,
	rules.KnownFragmentNamesRule, rules.KnownRootTypeRule, rules.KnownTypeNamesRule, rules.LoneAnonymousOperationRule,
	introspectionDepth, rules.NoUndefinedVariablesRule, rules.NoUnusedFragmentsRule, rules.NoUnusedVariablesRule,
	rules.PossibleFragmentSpreadsRule, rules.ProvidedRequiredArgumentsRule, rules.ScalarLeafsRule,
	rules.SingleFieldSubscriptionsRule,
	rules.UniqueArgumentNamesRule, rules.UniqueDirectivesPerLocationRule, rules.UniqueFragmentNamesRule,
	rules.UniqueInputFieldNamesRule, rules.UniqueOperationNamesRule, rules.UniqueVariableNamesRule,
	rules.ValuesOfCorrectTypeRule,
	rules.VariablesAreInputTypesRule, variablesInAllowedPosition,
}

// introspectionDepth is gqlparser's rule with a message that names the bound.
var introspectionDepth = core.Rule{Name: rules.MaxIntrospectionDepth.Name,
	RuleFunc: func(observers *core.Events, addError core.AddErrFunc) {
		named := func(e *gqlerror.Error) {
			e.Message = "the introspection nests the lists fields, interfaces, possibleTypes and inputFields more than 2 deep"
		}
		rules.MaxIntrospectionDepth.RuleFunc(observers, func(options ...core.ErrorOption) {
			addError(append(options, named)...)
		})
	}}

// maxErrors stops validation: the first errors suffice, and suggestions for thousands of errors take time.
const maxErrors = 10

var errEnough = errors.New("too many errors")

// validate applies the rules. gqlparser writes definitions into the document.
func validate(schema *ast.Schema, doc *ast.QueryDocument) (errs []*Error) {
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
	core.Walk(schema, doc, observers)
	return errs
}

// Clients write two arguments in more forms than one GraphQL type allows. p_comparison is a String here and an enum in
// the hosted schema: "gt", gt, or a variable of either type. p_addresses_canonical is a jsonb, and also accepts a
// variable that is a list of strings. The schema has the documented types; loosen and variablesInAllowedPosition allow
// the other forms.
const (
	argComparison = "p_comparison"
	enumOp        = "ComparisonOp"
	scalarJSONB   = "jsonb"
)

// loosen rewrites p_comparison: gt to p_comparison: "gt".
func loosen(doc *ast.QueryDocument) {
	var walk func(set ast.SelectionSet)
	walk = func(set ast.SelectionSet) {
		for _, s := range set {
			switch s := s.(type) {
			case *ast.Field:
				if args := s.Arguments.ForName("args"); args != nil {
					if v := args.Value.Children.ForName(argComparison); v != nil && v.Kind == ast.EnumValue {
						v.Kind = ast.StringValue
					}
				}
				walk(s.SelectionSet)
			case *ast.InlineFragment:
				walk(s.SelectionSet)
			}
		}
	}
	for _, op := range doc.Operations {
		walk(op.SelectionSet)
	}
	for _, f := range doc.Fragments {
		walk(f.SelectionSet)
	}
}

// variablesInAllowedPosition is the rule of GraphQL, section 5.8.5, with exceptions for the two arguments. Values are
// visited before the object that contains them, so a ComparisonOp variable is pending until its member name is known.
var variablesInAllowedPosition = core.Rule{Name: "VariablesInAllowedPosition",
	RuleFunc: func(observers *core.Events, addError core.AddErrFunc) {
		refuse := func(v *ast.Value) {
			addError(core.Message(`Variable "%s" of type "%s" used in position expecting type "%s".`,
				v, v.VariableDefinition.Type.String(), v.ExpectedType.String()), core.At(v.Position))
		}
		pending := make(map[*ast.Value]bool)
		observers.OnValue(func(w *core.Walker, v *ast.Value) {
			if v.Kind == ast.Variable && w.CurrentOperation != nil && v.VariableDefinition != nil &&
				v.ExpectedType != nil && !allowed(v) {
				if v.VariableDefinition.Type.NamedType == enumOp && v.ExpectedType.NamedType == "String" {
					pending[v] = true
				} else {
					refuse(v)
				}
			}
			for _, member := range v.Children {
				if pending[member.Value] && member.Name == argComparison {
					delete(pending, member.Value)
				}
			}
		})
		observers.OnOperation(func(*core.Walker, *ast.OperationDefinition) {
			for _, v := range sortedByPosition(pending) {
				refuse(v)
			}
			clear(pending)
		})
	}}

// allowed implements IsVariableUsageAllowed of GraphQL, section 5.8.5, but also accepts a list of strings as jsonb.
func allowed(v *ast.Value) bool {
	expected := *v.ExpectedType
	given := v.VariableDefinition
	if v.ExpectedTypeHasDefault || given.DefaultValue != nil && given.DefaultValue.Kind != ast.NullValue {
		expected.NonNull = false
	}
	if expected.NamedType == scalarJSONB && given.Type.Elem != nil && given.Type.Elem.NamedType == "String" {
		return !expected.NonNull || given.Type.NonNull
	}
	return given.Type.IsCompatible(&expected)
}

func sortedByPosition(values map[*ast.Value]bool) []*ast.Value {
	var sorted []*ast.Value
	for v := range values {
		sorted = append(sorted, v)
	}
	slices.SortFunc(sorted, func(a, b *ast.Value) int { return a.Position.Start - b.Position.Start })
	return sorted
}

// validationError converts an error of a rule. Rules report no response path, so it is derived from the location if the
// location lies in an operation.
func validationError(doc *ast.QueryDocument, options []core.ErrorOption) *Error {
	var reported gqlerror.Error
	for _, option := range options {
		option(&reported)
	}
	e := fromParser(CodeValidationFailed, &reported)
	if len(e.Locations) > 0 {
		for _, op := range doc.Operations {
			e.Path = pathTo(op.SelectionSet, e.Locations[0], nil)
			if e.Path != nil {
				break
			}
		}
	}
	return e
}

// pathTo returns the response path of the innermost field at a location, including its arguments.
func pathTo(set ast.SelectionSet, place Location, above []any) []any {
	var path []any
	for _, s := range set {
		switch s := s.(type) {
		case *ast.Field:
			if s.Position.Line > place.Line || s.Position.Line == place.Line && s.Position.Column > place.Column {
				return path
			}
			path = append(slices.Clip(above), s.Alias)
			if inner := pathTo(s.SelectionSet, place, path); inner != nil {
				path = inner
			}
		case *ast.InlineFragment:
			if inner := pathTo(s.SelectionSet, place, above); inner != nil {
				path = inner
			}
		}
	}
	return path
}
