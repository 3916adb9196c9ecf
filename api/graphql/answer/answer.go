// Package answer executes operations (GraphQL, section 6) on an index. It has three kinds of root fields: rows are
// written directly from the index (rows.go), statistics are computed by resolvers of graph-gophers (figures.go), and
// introspection is answered from the schema (introspection.go).
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

// Index is the index that operations read.
type Index interface {
	// View calls read with a snapshot of the index; see index.Index.
	View(ctx context.Context, read func(index.Snapshot) error) error
}

// Executor executes operations. It is safe for concurrent use.
type Executor struct {
	index   Index
	schema  *ast.Schema
	figures *gophers.Schema
	log     *slog.Logger
}

// New returns an Executor for operations of a schema.
func New(idx Index, schema *ast.Schema, log *slog.Logger) (*Executor, error) {
	figures, err := newFigures(log)
	if err != nil {
		return nil, fmt.Errorf("schema of the statistics: %w", err)
	}
	return &Executor{index: idx, schema: schema, figures: figures, log: log}, nil
}

// Execute appends the data of the root selections to dst, read from one snapshot of the index. It returns the last
// piece of the output. All root fields that read data are non-null. So after an error the data is null, and the pieces
// written so far must be discarded.
//
// Errors: CodeResponseTooLarge; CodeOverloaded if the output accepts no more pieces; CodeTimeout; the errors of the
// index.
func (e *Executor) Execute(ctx context.Context, dst []byte, root []*document.Selection,
	out Output) ([]byte, []*document.Error) {
	x := &execution{Executor: e, ctx: ctx, buf: dst, out: out}
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

// Output receives an answer in pieces. A large answer in one buffer would be copied many times while it grows.
type Output struct {
	Max int // maximum of bytes in all pieces
	// Next takes a piece of at least FullPiece bytes, and returns an empty piece. Nil ends the execution.
	Next func(full []byte) (empty []byte)
}

// FullPiece is the size in bytes from which a piece is full. Rows are not split, and most fit into another 16 KiB.
const FullPiece = 48 << 10

// reads reports whether a selected field needs the index.
func reads(root []*document.Selection) bool {
	for _, s := range root {
		if !s.Meta && s.Def.Name != "__typename" {
			return true
		}
	}
	return false
}

// execution is the execution of one operation on one snapshot.
type execution struct {
	*Executor
	ctx  context.Context
	snap snapshot
	buf  []byte
	out  Output
	full int // bytes in full pieces
}

// snapshot is the state of an index at one moment.
type snapshot interface {
	index.Lists
	index.Figures
	index.State
}

var (
	errResponseTooLarge = errors.New("response too large")
	errNoRoom           = errors.New("not enough memory for the response")
)

// written returns the piece to continue with after a write to dst, or an error if the answer is too large.
func (x *execution) written(dst []byte) ([]byte, error) {
	switch {
	case x.full+len(dst) > x.out.Max:
		return dst, errResponseTooLarge
	case len(dst) < FullPiece:
		return dst, nil
	}
	x.full += len(dst)
	next := x.out.Next(dst)
	if next == nil {
		return dst, errNoRoom
	}
	return next, nil
}

// write appends JSON that was made elsewhere.
func (x *execution) write(made []byte) (err error) {
	for err == nil && len(made) > 0 {
		n := min(len(made), FullPiece)
		x.buf, err = x.written(append(x.buf, made[:n]...))
		made = made[n:]
	}
	return err
}

// object writes the root object.
func (x *execution) object(root []*document.Selection) []*document.Error {
	figures := figuresOf(root)
	computed := x.compute(figures)
	if len(figures) > 0 && len(figures) == len(root) && len(computed.failed) == 0 {
		if err := x.write(computed.data); err != nil {
			return []*document.Error{x.failure(err, root[0])}
		}
		return nil
	}
	var errs []*document.Error
	x.buf = append(x.buf, '{')
	for i, s := range root {
		x.buf = s.AppendKey(x.buf, i)
		if err := x.rootField(s, computed); err != nil {
			errs = append(errs, x.failure(err, s))
			if x.ctx.Err() != nil || errors.Is(err, errNoRoom) {
				break
			}
		}
	}
	x.buf = append(x.buf, '}')
	return errs
}

// rootField writes the value of a root field.
func (x *execution) rootField(s *document.Selection, figures computed) error {
	switch {
	case s.Def.Name == "__typename":
		x.buf = append(x.buf, `"Query"`...)
		return nil
	case s.Meta:
		return x.introspect(s)
	case document.RowsOf(s.Def.Name) != nil:
		return x.rowList(s)
	}
	return x.figure(s, figures)
}

// failure converts the error of a root field, and logs it if it is internal.
func (x *execution) failure(err error, s *document.Selection) *document.Error {
	switch {
	case errors.Is(err, errResponseTooLarge):
		return document.NewError(document.CodeResponseTooLarge, fmt.Sprintf("the response is larger than %d bytes: "+
			"request fewer rows (p_limit) or fields", x.out.Max)).
			At(s.Node.Position).WithPath(s.Key)
	case errors.Is(err, errNoRoom):
		return document.NewError(appliance.CodeOverloaded, "too many concurrent responses: retry later, or request "+
			"fewer rows (p_limit) or fields").
			At(s.Node.Position).WithPath(s.Key)
	case x.ctx.Err() != nil:
		return document.NewError(appliance.CodeTimeout,
			"the query took too long: request fewer rows (p_limit) or fields").At(s.Node.Position).WithPath(s.Key)
	}
	if appliance.CodeOf(err) == appliance.CodeInternal {
		x.log.Error("graphql query failed", "field", s.Def.Name, "error", err)
	}
	return fromDomain(err, s)
}

// fromDomain converts an error of package appliance, with the name and the location of the invalid argument.
func fromDomain(err error, s *document.Selection) *document.Error {
	known, ok := errors.AsType[*appliance.Error](err)
	if !ok {
		return document.NewError(appliance.CodeInternal, "internal error").At(s.Node.Position).WithPath(s.Key)
	}
	e := document.FromDomain(known)
	if known.Field != "" {
		e.Extensions["argument"] = known.Field
	}
	return e.At(s.PositionOf(known.Field)).WithPath(s.Key)
}
