// Package answer executes an operation (GraphQL, section 6) on an index. A root field is answered in one of three ways: rows are
// written straight from the index (rows.go), figures are computed by graph-gophers (figures.go), and introspection is read
// from the schema (introspection.go).
package answer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	gophers "github.com/graph-gophers/graphql-go"
	"github.com/vektah/gqlparser/v2/ast"

	"github.com/attestd/attestd/api/graphql/document"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index"
)

// Index is what is read.
type Index interface {
	// View calls read with the index as it is now; see index.Index.
	View(ctx context.Context, read func(index.Snapshot) error) error
}

// Executor executes operations. It is safe for concurrent use.
type Executor struct {
	index   Index
	schema  *ast.Schema
	figures *gophers.Schema
	log     *slog.Logger
}

// New makes an Executor of operations of a schema.
func New(idx Index, schema *ast.Schema, log *slog.Logger) (*Executor, error) {
	figures, err := newFigures(log)
	if err != nil {
		return nil, fmt.Errorf("schema of the figures: %w", err)
	}
	return &Executor{index: idx, schema: schema, figures: figures, log: log}, nil
}

// Execute appends to dst the object of what is selected, all of it read from the index at one moment. Where there are errors,
// what was appended is of no use: all root fields that read data are non-null, so an error in one is an error of all.
//
// The errors have the codes of the domain, or CodeResponseTooLarge where dst would be longer than max.
func (e *Executor) Execute(ctx context.Context, dst []byte, root []*document.Selection, max int) ([]byte, []*document.Error) {
	x := &execution{Executor: e, ctx: ctx, buf: dst, max: max}
	if !reads(root) {
		errs := x.object(root)
		return x.buf, errs
	}
	var errs []*document.Error
	err := e.index.View(ctx, func(snap index.Snapshot) error {
		x.snap = snap
		errs = x.object(root)
		return nil
	})
	if err != nil {
		errs = []*document.Error{x.failure(err, root[0])}
	}
	return x.buf, errs
}

// reads tells whether anything is selected that the index has.
func reads(root []*document.Selection) bool {
	for _, s := range root {
		if !s.Meta && s.Def.Name != "__typename" {
			return true
		}
	}
	return false
}

// execution writes the data of one operation, from one snapshot of the index.
type execution struct {
	*Executor
	ctx  context.Context
	snap snapshot
	buf  []byte
	max  int // bytes of buf
}

// snapshot is the index at one moment.
type snapshot interface {
	rowSource
	figureSource
}

var errResponseTooLarge = errors.New("response too large")

// object writes the root object.
func (x *execution) object(root []*document.Selection) []*document.Error {
	var errs []*document.Error
	x.buf = append(x.buf, '{')
	for i, s := range root {
		x.buf = s.AppendKey(x.buf, i)
		if err := x.rootField(s); err != nil {
			errs = append(errs, x.failure(err, s))
			if x.ctx.Err() != nil {
				break
			}
		}
	}
	x.buf = append(x.buf, '}')
	return errs
}

// rootField answers a root field by itself, in one of three ways: introspection, rows or figures.
func (x *execution) rootField(s *document.Selection) error {
	switch {
	case s.Def.Name == "__typename":
		x.buf = append(x.buf, `"Query"`...)
		return nil
	case s.Meta:
		return x.introspect(s)
	case document.RowsOf(s.Def.Name) != nil:
		return x.rowList(s)
	}
	return x.figure(s)
}

// failure turns what stopped a root field into an error of the response.
func (x *execution) failure(err error, s *document.Selection) *document.Error {
	switch {
	case errors.Is(err, errResponseTooLarge):
		return document.NewError(document.CodeResponseTooLarge, fmt.Sprintf("the response is larger than %d bytes: ask for fewer rows (p_limit) or fields", x.max)).
			At(s.Node.Position).Under(s.Key)
	case x.ctx.Err() != nil:
		return document.NewError(appliance.CodeTimeout, "the query took too long: ask for fewer rows (p_limit) or fields").At(s.Node.Position).Under(s.Key)
	}
	if appliance.CodeOf(err) == appliance.CodeInternal {
		x.log.Error("graphql query failed", "field", s.Def.Name, "error", err)
	}
	return fromDomain(err, s)
}

// fromDomain turns an error of a root field into the client's view of it. An argument at fault is named and located.
func fromDomain(err error, s *document.Selection) *document.Error {
	known, ok := errors.AsType[*appliance.Error](err)
	if !ok {
		return document.NewError(appliance.CodeInternal, "internal error").At(s.Node.Position).Under(s.Key)
	}
	e := document.FromDomain(known)
	if known.Field != "" {
		e.Extensions["argument"] = known.Field
	}
	return e.At(s.PositionOf(known.Field)).Under(s.Key)
}
