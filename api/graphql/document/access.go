package document

import "github.com/attestd/attestd/appliance/index"

// RowsOf returns the type of the rows that a root field returns, nil for one that returns something else.
func RowsOf(root string) *index.Type { return rootRows[root] }

var rootRows = map[string]*index.Type{
	"v2_transfers":   index.TransferType,
	"v2_packets":     index.PacketType,
	"v1_packets":     index.PacketType,
	"v2_tokens":      index.TokenType,
	"v2_chains":      index.ChainType,
	"v2_channels":    index.ChannelType,
	"v2_clients":     index.ClientType,
	"v2_connections": index.ConnectionType,
}

// Access is how a field of a row is reached.
type Access struct {
	Kind     AccessKind
	Number   int            // of the column
	Relation index.Relation // of AccessRelation and AccessPacketTraces
	To       *index.Type    // of the rows it leads to
}

// AccessKind says where the field is.
type AccessKind uint8

// The kinds of access.

const (
	AccessNone         AccessKind = iota // not of a row
	AccessTypename                       // __typename
	AccessLeaf                           // a column
	AccessObject                         // an object in a column
	AccessList                           // a list of objects in a column
	AccessRelation                       // a related row
	AccessPacketTraces                   // a transfer's traces, which are its packet's
)

// AccessOf finds how a field is reached from rows of a type.
func AccessOf(t *index.Type, name string) Access {
	if name == "__typename" {
		return Access{Kind: AccessTypename}
	}
	if t == nil {
		return Access{}
	}
	if r, ok := t.Relation(name); ok {
		return Access{Kind: AccessRelation, Relation: r, To: r.To}
	}
	if column, ok := t.Field(name); ok {
		a := Access{Kind: AccessLeaf, Number: column.Number, To: column.Elem}
		switch column.Kind {
		case index.FieldObject:
			a.Kind = AccessObject
		case index.FieldList:
			a.Kind = AccessList
		}
		return a
	}
	if packet, ok := t.Relation("packet"); ok && name == "traces" {
		traces := packet.To.MustField(name)
		return Access{Kind: AccessPacketTraces, Relation: packet, Number: traces.Number, To: traces.Elem}
	}
	return Access{}
}

// resolveAccess finds how the fields inside are reached from rows of a type, nil for what is no row.
func (f *Field) resolveAccess(rows *index.Type) {
	for _, inner := range f.fields {
		inner.Access = AccessOf(rows, inner.Def.Name)
		inner.resolveAccess(inner.Access.To)
	}
}
