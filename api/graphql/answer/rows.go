package answer

import (
	"context"

	"github.com/attestd/attestd/api/graphql/document"
	"github.com/attestd/attestd/appliance/index"
)

// Rows are written as JSON directly from their encoded form in the index, without Go values in between. The result is
// byte for byte the same as graph-gophers', which TestRowsEqualGophers checks with generated queries.
// docs/decisions/gqlparser-before-graph-gophers.md measures the benefit.

// ReadRows returns the rows of a root field for the given coerced arguments. Their type is document.RowsOf(root).
//
// Errors: CodeInvalidField; the errors of the index.
func ReadRows(ctx context.Context, snap index.Lists, root string, args map[string]any) ([]index.Row, error) {
	return rowQueries[root](ctx, snap, argumentsOf(args))
}

// rowList writes the value of a root field that returns rows.
func (x *execution) rowList(s *document.Selection) error {
	rows, err := ReadRows(x.ctx, x.snap, s.Def.Name, s.Args)
	if err != nil {
		return err
	}
	x.buf, err = x.rows(x.buf, rows, s.Children)
	return err
}

// rows appends a list of rows.
func (x *execution) rows(dst []byte, rows []index.Row, set []*document.Selection) ([]byte, error) {
	dst = append(dst, '[')
	for i, row := range rows {
		if i > 0 {
			dst = append(dst, ',')
		}
		var err error
		if dst, err = x.row(dst, row, set); err != nil {
			return dst, err
		}
		if err := x.ctx.Err(); err != nil {
			return dst, err
		}
	}
	return append(dst, ']'), nil
}

// row appends a row as an object, and checks the size limit after it.
func (x *execution) row(dst []byte, row index.Row, set []*document.Selection) ([]byte, error) {
	dst = append(dst, '{')
	for i, s := range set {
		dst = s.AppendKey(dst, i)
		if s.Access.Kind == document.AccessLeaf {
			dst = row.AppendJSON(dst, s.Access.Number)
			continue
		}
		var err error
		if dst, err = x.nested(dst, row, s); err != nil {
			return dst, err
		}
	}
	return x.written(append(dst, '}'))
}

// nested appends the value of a field that is not a plain column.
func (x *execution) nested(dst []byte, row index.Row, s *document.Selection) ([]byte, error) {
	switch s.Access.Kind {
	case document.AccessTypename:
		return append(append(append(dst, '"'), s.Node.ObjectDefinition.Name...), '"'), nil
	case document.AccessObject:
		return x.rowOrNull(dst, row.Object(s.Access.Number), s.Children)
	case document.AccessRelation:
		return x.rowOrNull(dst, x.snap.Related(row, s.Access.Relation), s.Children)
	case document.AccessList:
		return x.list(dst, row, s)
	case document.AccessPacketTraces:
		return x.list(dst, x.snap.Related(row, s.Access.Relation), s)
	case document.AccessProof:
		return x.proof(dst, row)
	}
	panic("cannot reach field " + s.Def.Name)
}

// proof appends the proof that the index has of a packet. Nothing is read from a chain.
func (x *execution) proof(dst []byte, packet index.Row) ([]byte, error) {
	proof, found, err := x.snap.Position(x.ctx, index.ProofPosition(packet.Key()))
	if err != nil || !found {
		return append(dst, "null"...), err
	}
	return append(dst, proof...), nil
}

func (x *execution) rowOrNull(dst []byte, row index.Row, set []*document.Selection) ([]byte, error) {
	if row.IsZero() {
		return append(dst, "null"...), nil
	}
	return x.row(dst, row, set)
}

func (x *execution) list(dst []byte, row index.Row, s *document.Selection) ([]byte, error) {
	dst = append(dst, '[')
	first := true
	for element := range row.List(s.Access.Number) {
		if !meets(element, s.Args["where"]) {
			continue
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		var err error
		if dst, err = x.row(dst, element, s.Children); err != nil {
			return dst, err
		}
	}
	return append(dst, ']'), nil
}

// meets reports whether a row meets a condition of the form {column: {_eq: value}}. Missing and null members do not
// restrict.
func meets(row index.Row, where any) bool {
	columns, _ := where.(map[string]any)
	for name, comparison := range columns {
		operators, _ := comparison.(map[string]any)
		column := row.Type().MustField(name)
		var value any
		switch column.Kind {
		case index.FieldInt:
			if n, ok := row.Int(column.Number); ok {
				value = n
			}
		case index.FieldText:
			if text, ok := row.Text(column.Number); ok {
				value = text
			}
		}
		if want := operators["_eq"]; want != nil && want != value {
			return false
		}
	}
	return true
}
