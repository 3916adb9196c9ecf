package document

import (
	"fmt"
	"reflect"
	"time"

	"github.com/vektah/gqlparser/v2/ast"

	"github.com/attestd/attestd/appliance/index"
)

// Limits bound the cost of one request. They have no defaults here: all must be set.
//
// The cheapest checks come first: sizes before parsing, tokens during parsing, the other limits on the document in one
// pass before validation, the cost before execution, and time and response size during execution. Every step before
// execution takes roughly linear time in MaxTokens.
type Limits struct {
	MaxQueryBytes     int           // of the document
	MaxVariablesBytes int           // of the variables' JSON
	MaxTokens         int           // of the document; also bounds selections, counted at each fragment spread
	MaxDepth          int           // of nested fields, except introspection
	MaxRootFields     int           // as written, before repeated ones are merged
	MaxAliases        int           // counted at each fragment spread
	MaxCost           int           // estimated number of values in the response; see CheckCost
	MaxResponseBytes  int           // of the data
	Timeout           time.Duration // of execution
}

// Unset returns the names of the limits that are zero.
func (l Limits) Unset() (names []string) {
	v := reflect.ValueOf(l)
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			names = append(names, v.Type().Field(i).Name)
		}
	}
	return names
}

// maxMetaDepth bounds the depth of introspection. The standard introspection query has depth 13.
const maxMetaDepth = 20

// extent is the size of a selection set with its fragments spread.
type extent struct {
	selections, aliases int
	depth, metaDepth    int // of data, and of introspection
	root                int // fields directly in the set
}

// extents measures a document before validation. It visits each fragment once, so it takes linear time.
type extents struct {
	fragments map[string]*ast.FragmentDefinition
	measured  map[string]*extent // nil while a fragment is being measured, to detect cycles
	cycle     *ast.FragmentSpread
}

func (m *extents) of(set ast.SelectionSet) (sum extent) {
	for _, s := range set {
		var inner extent
		switch s := s.(type) {
		case *ast.Field:
			inner = m.ofField(s)
		case *ast.InlineFragment:
			inner = m.of(s.SelectionSet)
			inner.selections++
		case *ast.FragmentSpread:
			inner = m.ofSpread(s)
			inner.selections++
		}
		sum.selections = saturate(sum.selections + inner.selections)
		sum.aliases = saturate(sum.aliases + inner.aliases)
		sum.root = saturate(sum.root + inner.root)
		sum.depth = max(sum.depth, inner.depth)
		sum.metaDepth = max(sum.metaDepth, inner.metaDepth)
	}
	return sum
}

func (m *extents) ofField(f *ast.Field) extent {
	e := m.of(f.SelectionSet)
	e.root = 1
	e.selections = saturate(e.selections + 1)
	e.depth++
	if f.Name == "__schema" || f.Name == "__type" {
		e.depth, e.metaDepth = 1, e.depth
	}
	if f.Alias != f.Name {
		e.aliases++
	}
	return e
}

func (m *extents) ofSpread(s *ast.FragmentSpread) extent {
	fragment := m.fragments[s.Name]
	if fragment == nil { // the validator reports it
		return extent{}
	}
	known, begun := m.measured[s.Name]
	switch {
	case known != nil:
		return *known
	case begun:
		m.cycle = s
		return extent{}
	}
	m.measured[s.Name] = nil
	e := m.of(fragment.SelectionSet)
	m.measured[s.Name] = &e
	return e
}

func saturate(n int) int { return min(n, 1<<30) }

// check refuses a document that is too expensive to validate or to execute. Otherwise it returns the extent of the
// operation.
func (l Limits) check(doc *ast.QueryDocument, op *ast.OperationDefinition) (extent, *Error) {
	m := extents{fragments: make(map[string]*ast.FragmentDefinition), measured: make(map[string]*extent)}
	for _, f := range doc.Fragments {
		m.fragments[f.Name] = f
	}
	// The validator visits all operations and each fragment separately, so their sum must be bounded.
	total := 0
	for _, other := range doc.Operations {
		total = saturate(total + m.of(other.SelectionSet).selections)
	}
	for _, f := range doc.Fragments {
		total = saturate(total + m.of(f.SelectionSet).selections)
	}
	e := m.of(op.SelectionSet)
	switch {
	case m.cycle != nil:
		return e, NewError(CodeValidationFailed,
			fmt.Sprintf("Cannot spread fragment %q within itself.", m.cycle.Name)).At(m.cycle.Position)
	case total > l.MaxTokens:
		return e, NewError(CodeTooManyTokens,
			fmt.Sprintf("the query selects more than %d fields with its fragments spread", l.MaxTokens))
	case e.depth > l.MaxDepth:
		return e, NewError(CodeTooDeep, fmt.Sprintf("the query is deeper than %d fields", l.MaxDepth))
	case e.metaDepth > maxMetaDepth:
		return e, NewError(CodeTooDeep, fmt.Sprintf("the introspection is deeper than %d fields", maxMetaDepth))
	case e.root > l.MaxRootFields:
		return e, NewError(CodeTooManyRootFields,
			fmt.Sprintf("the query has %d root fields, more than %d", e.root, l.MaxRootFields))
	case e.aliases > l.MaxAliases:
		return e,
			NewError(CodeTooManyAliases, fmt.Sprintf("the query has %d aliases, more than %d", e.aliases, l.MaxAliases))
	}
	return e, nil
}

// Assumed list lengths for the cost: of unpaged lists, and of lists within a row.
const (
	estimatedRows   = 200
	estimatedNested = 5
)

// CheckCost bounds the estimated number of values, rows times fields, before any data is read.
//
// Errors: CodeTooCostly.
func (l Limits) CheckCost(root []*Selection) *Error {
	total := 0
	for _, s := range root {
		total = saturate(total + s.cost())
		if total > l.MaxCost {
			return NewError(CodeTooCostly, fmt.Sprintf("the query may return more than %d values: request fewer rows "+
				"(p_limit) or fields", l.MaxCost)).
				At(s.Node.Position).WithPath(s.Key)
		}
	}
	return nil
}

// Cost returns the estimated number of values, which CheckCost bounds.
func Cost(root []*Selection) int {
	total := 0
	for _, s := range root {
		total = saturate(total + s.cost())
	}
	return total
}

// cost returns the cost of a root field. Introspection costs 0.
func (s *Selection) cost() int {
	if s.Meta {
		return 0
	}
	return saturate(s.rows() * cost(s.Children))
}

// rows returns the maximum or the assumed number of rows of a root field.
func (s *Selection) rows() int {
	args, _ := s.Args["args"].(map[string]any)
	if limit, ok := args["p_limit"].(int32); ok && limit > 0 {
		return min(int(limit), index.MaxLimit)
	}
	if s.paged() {
		return index.DefaultLimit
	}
	return estimatedRows
}

func (s *Selection) paged() bool {
	def := s.Def.Arguments.ForName("args")
	return def != nil && s.schema.Types[def.Type.Name()].Fields.ForName("p_limit") != nil
}

// cost returns the number of values in one row: one per field, and estimatedNested times the values of a nested list.
func cost(set []*Selection) int {
	sum := 0
	for _, s := range set {
		inner := cost(s.Children)
		if s.Def.Type.Elem != nil {
			inner = saturate(inner * estimatedNested)
		}
		sum = saturate(sum + 1 + inner)
	}
	return sum
}
