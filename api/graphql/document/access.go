package document

import (
	"strings"

	"github.com/attestd/attestd/appliance/index"
)

// RowsOf returns the type of the rows that a root field returns, or nil if it does not return rows.
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

	"v2_instructions":   index.InstructionType,
	"v2_bonds":          index.BondType,
	"v2_unbonds":        index.UnbondType,
	"v2_withdraws":      index.WithdrawalType,
	"v2_dust_withdraws": index.DustWithdrawalType,
}

// Access describes how the value of a field is read from a row of the index.
type Access struct {
	Kind     AccessKind
	Number   int            // column number for index.Row
	Relation index.Relation // of AccessRelation and AccessPacketTraces
	To       *index.Type    // of the rows that the field holds
}

// AccessKind is a way to read a field.
type AccessKind uint8

// The kinds of access.

const (
	AccessNone         AccessKind = iota // not a field of a row
	AccessTypename                       // __typename
	AccessLeaf                           // a column
	AccessObject                         // an object in a column
	AccessList                           // a list of objects in a column
	AccessRelation                       // a related row
	AccessPacketTraces                   // the traces of a related packet, such as a transfer's
	AccessProof                          // the kept proof of a packet: JSON, or null
)

// AccessOf returns how a field is read from rows of a type.
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
	if t == index.PacketType && name == "proof" {
		return Access{Kind: AccessProof}
	}
	if packet, ok := tracesOf(t, name); ok {
		traces := packet.To.MustField("traces")
		return Access{Kind: AccessPacketTraces, Relation: packet, Number: traces.Number, To: traces.Elem}
	}
	return Access{}
}

// tracesOf returns the relation to the packet of a traces field: packet for traces, delivery for delivery_traces.
func tracesOf(t *index.Type, field string) (index.Relation, bool) {
	if field == "traces" {
		return t.Relation("packet")
	}
	of, ok := strings.CutSuffix(field, "_traces")
	if !ok {
		return index.Relation{}, false
	}
	return t.Relation(of)
}

// resolveAccess sets Access in the fields below f, which holds rows of the given type. rows is nil for fields that do
// not hold rows.
func (f *Field) resolveAccess(rows *index.Type) {
	for _, inner := range f.fields {
		inner.Access = AccessOf(rows, inner.Def.Name)
		inner.resolveAccess(inner.Access.To)
	}
}
