package graphql

import (
	"github.com/attestd/attestd/appliance"
)

// This is the fast way from the index to a response: rows are written as JSON straight from their encoded form, field
// by field as the selection asks, without values in between. Whatever it writes is byte for byte what graph-gophers
// writes for the same query; TestRowsEqualGophers generates queries to show it.

// rows writes a list of rows.
func (x *execution) rows(rows []appliance.Row, set []*selection) error {
	x.buf = append(x.buf, '[')
	for i, row := range rows {
		if i > 0 {
			x.buf = append(x.buf, ',')
		}
		if err := x.row(row, set); err != nil {
			return err
		}
		if err := x.ctx.Err(); err != nil {
			return err
		}
	}
	x.buf = append(x.buf, ']')
	return nil
}

// row writes a row as an object. The limit is checked once a row, so a response exceeds it by no more than a row.
func (x *execution) row(row appliance.Row, set []*selection) error {
	x.buf = append(x.buf, '{')
	for i, s := range set {
		if i > 0 {
			x.buf = append(x.buf, ',')
		}
		x.buf = append(x.buf, s.prefix...)
		if s.access.kind == accessLeaf {
			x.buf = row.AppendJSON(x.buf, s.access.number)
			continue
		}
		if err := x.nested(row, s); err != nil {
			return err
		}
	}
	x.buf = append(x.buf, '}')
	if len(x.buf) > x.max {
		return errResponseTooLarge
	}
	return nil
}

// nested writes a field that is not a column's plain value.
func (x *execution) nested(row appliance.Row, s *selection) error {
	switch s.access.kind {
	case accessTypename:
		x.buf = append(append(append(x.buf, '"'), s.node.ObjectDefinition.Name...), '"')
		return nil
	case accessObject:
		return x.rowOrNull(row.Object(s.access.number), s.children)
	case accessRelation:
		return x.rowOrNull(x.snap.Related(row, s.access.relation), s.children)
	case accessList:
		return x.list(row, s)
	case accessPacketTraces:
		return x.list(x.snap.Related(row, s.access.relation), s)
	}
	panic("no way to field " + s.def.Name)
}

func (x *execution) rowOrNull(row appliance.Row, set []*selection) error {
	if row.IsZero() {
		x.buf = append(x.buf, "null"...)
		return nil
	}
	return x.row(row, set)
}

func (x *execution) list(row appliance.Row, s *selection) error {
	x.buf = append(x.buf, '[')
	first := true
	for element := range row.List(s.access.number) {
		if !meets(element, s.args["where"]) {
			continue
		}
		if !first {
			x.buf = append(x.buf, ',')
		}
		first = false
		if err := x.row(element, s.children); err != nil {
			return err
		}
	}
	x.buf = append(x.buf, ']')
	return nil
}

// meets tells whether a row meets a condition of the form {column: {_eq: value}}. What is left out or null does not
// restrict.
func meets(row appliance.Row, where any) bool {
	columns, _ := where.(map[string]any)
	for name, comparison := range columns {
		operators, _ := comparison.(map[string]any)
		column := row.Type().MustField(name)
		var value any
		switch column.Kind {
		case appliance.FieldInt:
			if n, ok := row.Int(column.Number); ok {
				value = n
			}
		case appliance.FieldText:
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
