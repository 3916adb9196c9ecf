package graphql

import (
	"context"

	"github.com/attestd/attestd/appliance/index"
)

// Rows are written as JSON straight from their encoded form in the index, field by field as the selection asks, without Go
// values in between. Why, and what it is worth, is told in docs/decisions. Whatever is written is byte for byte what
// graph-gophers writes for the same query: TestRowsEqualGophers generates queries to show it.

// rowSource is what rows are read from: the index at one moment.
type rowSource interface {
	Transfers(ctx context.Context, q index.TransferQuery) ([]index.Row, error)
	Packets(ctx context.Context, q index.PacketQuery) ([]index.Row, error)
	Tokens(ctx context.Context, q index.TokenQuery) ([]index.Row, error)
	Chains(ctx context.Context, q index.ChainQuery) ([]index.Row, error)
	Channels(ctx context.Context, q index.ChannelQuery) ([]index.Row, error)
	Clients(ctx context.Context, q index.ClientQuery) ([]index.Row, error)
	Connections(ctx context.Context, q index.ConnectionQuery) ([]index.Row, error)
	Related(row index.Row, r index.Relation) index.Row
}

// rowList answers a root field with rows.
func (x *execution) rowList(query rowQuery, s *selection) error {
	rows, err := query.read(x.ctx, x.snap, argumentsOf(s.args))
	if err != nil {
		return err
	}
	x.buf, err = x.rows(x.buf, rows, s.children)
	return err
}

// rows appends a list of rows.
func (x *execution) rows(dst []byte, rows []index.Row, set []*selection) ([]byte, error) {
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

// row appends a row as an object. The limit is checked once a row, so a response exceeds it by no more than a row.
func (x *execution) row(dst []byte, row index.Row, set []*selection) ([]byte, error) {
	dst = append(dst, '{')
	for i, s := range set {
		dst = s.appendKey(dst, i)
		if s.access.kind == accessLeaf {
			dst = row.AppendJSON(dst, s.access.number)
			continue
		}
		var err error
		if dst, err = x.nested(dst, row, s); err != nil {
			return dst, err
		}
	}
	if len(dst) > x.max {
		return dst, errResponseTooLarge
	}
	return append(dst, '}'), nil
}

// nested appends a field that is not a column's plain value.
func (x *execution) nested(dst []byte, row index.Row, s *selection) ([]byte, error) {
	switch s.access.kind {
	case accessTypename:
		return append(append(append(dst, '"'), s.node.ObjectDefinition.Name...), '"'), nil
	case accessObject:
		return x.rowOrNull(dst, row.Object(s.access.number), s.children)
	case accessRelation:
		return x.rowOrNull(dst, x.snap.Related(row, s.access.relation), s.children)
	case accessList:
		return x.list(dst, row, s)
	case accessPacketTraces:
		return x.list(dst, x.snap.Related(row, s.access.relation), s)
	}
	panic("no way to field " + s.def.Name)
}

func (x *execution) rowOrNull(dst []byte, row index.Row, set []*selection) ([]byte, error) {
	if row.IsZero() {
		return append(dst, "null"...), nil
	}
	return x.row(dst, row, set)
}

func (x *execution) list(dst []byte, row index.Row, s *selection) ([]byte, error) {
	dst = append(dst, '[')
	first := true
	for element := range row.List(s.access.number) {
		if !meets(element, s.args["where"]) {
			continue
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		var err error
		if dst, err = x.row(dst, element, s.children); err != nil {
			return dst, err
		}
	}
	return append(dst, ']'), nil
}

// meets tells whether a row meets a condition of the form {column: {_eq: value}}. What is left out or null does not
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

// access is how a field of a row is reached.
type access struct {
	kind     accessKind
	number   int            // of the column
	relation index.Relation // of accessRelation and accessPacketTraces
	to       *index.Type    // of the rows it leads to
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
func accessOf(t *index.Type, name string) access {
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
		case index.FieldObject:
			a.kind = accessObject
		case index.FieldList:
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
func (f *field) resolveAccess(rows *index.Type) {
	for _, inner := range f.fields {
		inner.access = accessOf(rows, inner.def.Name)
		inner.resolveAccess(inner.access.to)
	}
}
