package index

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Type describes the rows of one kind, or the objects nested in them.
type Type struct {
	Name      string  // of rows: "transfer", "packet", …; of nested objects: the field's name
	Fields    []Field // by Number, which is also their order in NDJSON
	Relations []Relation
	// Key lists the fields that make up a row's key; empty for nested objects.
	Key []int

	byName map[string]int
	goType reflect.Type
	rare   int // the fields from here on are rarely read; see Packer
	order  int // the field sort_order; -1 if the type has none
	clock  int // the first time field; -1 if the type has none
}

// Field is a field of a Type.
type Field struct {
	Name     string // in NDJSON and in GraphQL
	Number   int    // in encoded rows, and in Type.Fields: the row tag of the Go struct
	Kind     FieldKind
	Required bool  // never null
	Elem     *Type // of FieldObject and FieldList

	member  int  // index in the Go struct
	max     int  // largest size of its plain value, in bytes
	common  bool // see isCommon
	ofRoute bool // see routeFields
	// for a field …_display: the number of the …_canonical field with the same bytes, if that is lower; otherwise -1
	raw int
}

// FieldKind is the type of a field's value.
type FieldKind uint8

// The kinds of fields.
const (
	FieldText   FieldKind = iota // Row.Text
	FieldInt                     // Row.Int: 32 bits
	FieldBool                    // Row.Bool
	FieldTime                    // Row.Time: in JSON RFC 3339, UTC, to the nanosecond
	FieldJSON                    // Row.AppendJSON: any value
	FieldTexts                   // Row.Texts: a list of text
	FieldObject                  // Row.Object
	FieldList                    // Row.List: of objects; never null
)

// Relation is a reference from a row to another by its key; see Snapshot.Related.
type Relation struct {
	Name string // the field in GraphQL; "packet" for the packet that has a transfer's traces
	To   *Type  // ChainType, TokenType or PacketType
	By   []int  // the fields that hold the key, in the order of To.Key
}

// The types of rows, and the nested types that GraphQL names.
var (
	ChainType = newType[Chain]("chain").keyedBy("universal_chain_id")
	TokenType = newType[Token]("token").keyedBy("universal_chain_id", "denom").
			related("chain", ChainType, "universal_chain_id")
	ChannelType = newType[Channel]("channel").keyedBy("source_universal_chain_id",
		"source_channel_id").betweenChains()
	ConnectionType = newType[Connection]("connection").keyedBy("source_universal_chain_id",
		"source_connection_id").betweenChains()
	ClientType = newType[Client]("client").keyedBy("universal_chain_id", "client_id").
			related("chain", ChainType, "universal_chain_id").
			related("counterparty_chain", ChainType, "counterparty_universal_chain_id")
	PacketType   = newType[Packet]("packet").keyedBy("packet_hash").betweenChains().rareFrom("data")
	TransferType = newType[Transfer]("transfer").keyedBy("packet_hash", "transfer_index").betweenChains().
			related("packet", PacketType, "packet_hash").
			related("base_token_meta", TokenType, "source_universal_chain_id", "base_token").
			related("quote_token_meta", TokenType, "destination_universal_chain_id", "quote_token").
			related("fee_token_meta", TokenType, "source_universal_chain_id", "fee_token")

	TraceType               = PacketType.MustField("traces").Elem.related("chain", ChainType, "universal_chain_id")
	TokenRepresentationType = TokenType.MustField("representations").Elem.related("chain", ChainType,
		"universal_chain_id")
	TokenSourceType = TokenRepresentationType.MustField("sources").Elem.related("chain", ChainType,
		"universal_chain_id")
	TokenBucketType   = TokenType.MustField("bucket").Elem.related("chain", ChainType, "universal_chain_id")
	TokenWrappingType = TokenType.MustField("wrapping").Elem.
				related("wrapped_chain", ChainType, "wrapped_universal_chain_id").
				related("unwrapped_chain", ChainType, "unwrapped_universal_chain_id")
)

// TableTypes are the small types, which a reader reads whole and a store holds in memory. Types that others refer to
// come first.
var TableTypes = []*Type{ChainType, TokenType, ClientType, ConnectionType, ChannelType}

// RowTypes are the types that Index.Write takes and Snapshot.Each yields, in the order of export.
var RowTypes = append(slices.Clone(TableTypes), PacketType, TransferType)

// Field returns the field of that name.
func (t *Type) Field(name string) (Field, bool) {
	i, ok := t.byName[name]
	if !ok {
		return Field{}, false
	}
	return t.Fields[i], true
}

// MustField returns the field of that name. It panics if there is no such field.
func (t *Type) MustField(name string) Field {
	f, ok := t.Field(name)
	if !ok {
		panic("type " + t.Name + " lacks the field " + name)
	}
	return f
}

// Relation returns the relation of that name.
func (t *Type) Relation(name string) (Relation, bool) {
	for _, r := range t.Relations {
		if r.Name == name {
			return r, true
		}
	}
	return Relation{}, false
}

func (t *Type) keyedBy(names ...string) *Type {
	t.Key = t.numbers(names)
	return t
}

func (t *Type) rareFrom(name string) *Type {
	t.rare = t.MustField(name).Number
	return t
}

func (t *Type) related(name string, to *Type, by ...string) *Type {
	t.Relations = append(t.Relations, Relation{Name: name, To: to, By: t.numbers(by)})
	return t
}

func (t *Type) betweenChains() *Type {
	return t.related("source_chain", ChainType, "source_universal_chain_id").
		related("destination_chain", ChainType, "destination_universal_chain_id")
}

func (t *Type) numbers(names []string) []int {
	var numbers []int
	for _, name := range names {
		numbers = append(numbers, t.MustField(name).Number)
	}
	return numbers
}

func newType[T any](name string) *Type { return typeOf(name, reflect.TypeFor[T]()) }

// typeOf returns the Type of a Go struct. It panics unless the row tags are the numbers from 0 on, each once.
func typeOf(name string, goType reflect.Type) *Type {
	t := &Type{Name: name, Fields: make([]Field, goType.NumField()), byName: make(map[string]int), goType: goType,
		rare: goType.NumField(), order: -1, clock: -1}
	for i := range goType.NumField() {
		member := goType.Field(i)
		number, err := strconv.Atoi(member.Tag.Get("row"))
		if err != nil || number < 0 || number >= len(t.Fields) || t.Fields[number].Name != "" {
			panic(fmt.Sprintf("%s.%s: the tag row:%q must be the next free number", goType, member.Name,
				member.Tag.Get("row")))
		}
		f := Field{Name: member.Tag.Get("json"), Number: number, Required: member.Type.Kind() != reflect.Pointer,
			member: i}
		f.Kind, f.Elem = kindOf(f.Name, member.Type)
		if f.Kind == FieldJSON || f.Kind == FieldTexts {
			f.Required = false
		}
		f.max, f.common, f.ofRoute = mostOf(f), isCommon(f.Name), slices.Contains(routeFields[name], f.Name)
		t.byName[f.Name] = number
		t.Fields[number] = f
	}
	if f, ok := t.Field("sort_order"); ok {
		t.order = f.Number
	}
	for i := range t.Fields {
		f := &t.Fields[i]
		f.raw = -1
		if f.Kind == FieldTime && t.clock < 0 {
			t.clock = i
		}
		if who, ok := strings.CutSuffix(f.Name, "_display"); ok {
			if raw, ok := t.Field(who + "_canonical"); ok && raw.Number < f.Number {
				f.raw = raw.Number
			}
		}
	}
	return t
}

// routeFields are fields that many rows share as a group: packets those of their channel, transfers those of their
// token.
var routeFields = map[string][]string{
	"packet": {
		"channel_version", "source_universal_chain_id", "internal_source_chain_id", "source_client_id",
		"source_connection_id", "source_channel_id", "source_port_id",
		"destination_universal_chain_id", "internal_destination_chain_id", "destination_chain_id",
		"destination_client_id", "destination_connection_id", "destination_channel_id",
		"destination_port_id", "timeout_height",
	},
	"transfer": {
		"source_universal_chain_id", "destination_universal_chain_id", "base_token", "quote_token", "wrap_direction",
		"base_token_name", "base_token_symbol", "base_token_decimals",
		"base_token_path", "fee_type", "fee_token",
	},
}

// payloads are text fields that may be as large as a packet's payload.
var payloads = []string{"data", "acknowledgement", "packet_recv_maker_msg"}

// mostOf returns the largest size of a field, in bytes.
func mostOf(f Field) int {
	switch {
	case f.Kind != FieldText || slices.Contains(payloads, f.Name):
		return maxPayload
	case strings.HasSuffix(f.Name, "universal_chain_id"):
		return maxChainID
	case f.Name == "denom":
		return maxDenom
	}
	return maxField
}

func kindOf(name string, goType reflect.Type) (FieldKind, *Type) {
	if goType.Kind() == reflect.Pointer {
		goType = goType.Elem()
	}
	switch goType {
	case reflect.TypeFor[time.Time]():
		return FieldTime, nil
	case reflect.TypeFor[json.RawMessage]():
		return FieldJSON, nil
	case reflect.TypeFor[[]string]():
		return FieldTexts, nil
	}
	switch goType.Kind() {
	case reflect.String:
		return FieldText, nil
	case reflect.Int32:
		return FieldInt, nil
	case reflect.Bool:
		return FieldBool, nil
	case reflect.Struct:
		return FieldObject, typeOf(name, goType)
	case reflect.Slice:
		return FieldList, typeOf(name, goType.Elem())
	}
	panic("a field of type " + goType.String() + " cannot be indexed")
}
