package follower

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index"
)

// rootQuery is the query that lists the rows of a type.
type rootQuery struct {
	t     *index.Type
	name  string
	rows  string // the GraphQL type of its rows in the hosted schema
	pages bool   // takes a cursor in the hosted schema
	// flag is a field of the rows that GraphQL does not show. The query has a filter of that name, which finds it.
	flag string
}

var rootQueries = []rootQuery{
	{t: index.ChainType, name: "v2_chains", rows: "v2_chain_type", pages: true},
	{t: index.TokenType, name: "v2_tokens", rows: "v2_token_meta", flag: "whitelist"},
	{t: index.ClientType, name: "v2_clients", rows: "v2_client_type", pages: true},
	{t: index.ConnectionType, name: "v2_connections", rows: "v2_connection_type", pages: true},
	{t: index.ChannelType, name: "v2_channels", rows: "v2_channel_type", pages: true, flag: "recommended"},
	{t: index.PacketType, name: "v2_packets", rows: "v2_packet_type", pages: true},
	{t: index.TransferType, name: "v2_transfers", rows: "v2_transfer_type", pages: true},
}

const countQuery = "v2_stats_count"

// The arguments of a root query, as members of args.
const (
	argLimit      = "p_limit"
	argCursor     = "p_sort_order"
	argComparison = "p_comparison"
	argHash       = "p_packet_hash"
)

// notShown lists the row fields that the hosted schema does not show; see the types of rows.
var notShown = map[*index.Type][]string{
	index.TransferType:            {"status"},
	index.TokenType:               {"whitelist"},
	index.ChannelType:             {"recommended"},
	index.TokenRepresentationType: {"universal_chain_id"},
	index.TokenSourceType:         {"universal_chain_id"},
	index.TokenBucketType:         {"universal_chain_id"},
	index.TokenWrappingType:       {"unwrapped_universal_chain_id", "wrapped_universal_chain_id"},
}

// schema describes an upstream's GraphQL types.
type schema struct {
	queries string // name of the query type
	types   map[string]graphType
}

// graphType is an object type or an input object type: its fields by name.
type graphType map[string]graphField

type graphField struct {
	named string // its type, without the lists and non-nulls around it
	enum  bool   // the type is an enum
	args  string // type of the argument named args; empty if the field does not take it
}

// hosted returns the schema that is assumed for an upstream that refuses introspection.
func hosted() *schema {
	s := &schema{queries: "Query", types: make(map[string]graphType)}
	queries := graphType{countQuery: {}}
	for _, q := range rootQueries {
		args := graphType{argHash: {}}
		if q.pages {
			args[argLimit], args[argCursor], args[argComparison] = graphField{}, graphField{}, graphField{}
		}
		if q.flag != "" {
			args["p_"+q.flag] = graphField{}
		}
		queries[q.name] = graphField{named: q.rows, args: q.name + "_args"}
		s.types[q.name+"_args"] = args
		s.show(q.t, q.rows)
	}
	s.types[s.queries] = queries
	return s
}

// show adds the GraphQL type of a row type, with the types nested in it.
func (s *schema) show(t *index.Type, name string) {
	shown := make(graphType)
	for _, f := range t.Fields {
		if slices.Contains(notShown[t], f.Name) {
			continue
		}
		field := graphField{}
		if f.Elem != nil {
			field.named = name + "." + f.Name
			s.show(f.Elem, field.named)
		}
		shown[f.Name] = field
	}
	for _, r := range t.Relations {
		for _, q := range rootQueries {
			if q.t == r.To {
				shown[r.Name] = graphField{named: q.rows}
			}
		}
	}
	s.types[name] = shown
}

// introspection asks for the names of all types, fields and arguments (GraphQL, section 4). Types nest at most four
// deep: [T!]!.
const introspection = `query Schema{__schema{queryType{name}types{name ` +
	`fields(includeDeprecated:true){name type{...Type}args{name type{...Type}}}inputFields{name type{...Type}}}}}` +
	`fragment Type on __Type{kind name ofType{kind name ofType{kind name ofType{kind name}}}}`

// maxSchema bounds an introspection answer, in bytes, because the parsed schema is far larger. attestd's answer has 60
// KB.
const maxSchema = 8 << 20

// introspect reads an upstream's schema. If the upstream refuses introspection, introspect returns the hosted schema.
//
// Errors: as Upstream.Query, except QueryError.
func introspect(ctx context.Context, upstream Upstream) (*schema, error) {
	data, err := upstream.Query(ctx, introspection, nil)
	if _, refused := errors.AsType[*QueryError](err); refused {
		return hosted(), nil
	}
	if err != nil {
		return nil, err
	}
	if len(data) > maxSchema {
		return nil, answeredElse(fmt.Sprintf("a schema of at most %d bytes", maxSchema), nil)
	}
	var told introspected
	if err := json.Unmarshal(data, &told); err != nil || told.Schema.QueryType.Name == "" {
		return nil, answeredElse("a schema", err)
	}
	return told.schema(), nil
}

// introspected is the answer to introspection.
type introspected struct {
	Schema struct {
		QueryType struct{ Name string }
		Types     []struct {
			Name                string
			Fields, InputFields []introspectedField
		}
	} `json:"__schema"`
}

type introspectedField struct {
	Name string
	Type introspectedType
	Args []introspectedField
}

type introspectedType struct {
	Kind, Name string
	OfType     *introspectedType
}

func (i introspected) schema() *schema {
	s := &schema{queries: i.Schema.QueryType.Name, types: make(map[string]graphType)}
	for _, t := range i.Schema.Types {
		fields := make(graphType)
		for _, f := range append(t.Fields, t.InputFields...) {
			fields[f.Name] = f.field()
		}
		if len(fields) > 0 {
			s.types[t.Name] = fields
		}
	}
	return s
}

func (f introspectedField) field() graphField {
	inner := f.Type
	for inner.OfType != nil {
		inner = *inner.OfType
	}
	field := graphField{named: inner.Name, enum: inner.Kind == "ENUM"}
	for _, a := range f.Args {
		if a.Name == "args" {
			field.args = a.field().named
		}
	}
	return field
}

// answeredElse returns the error for an answer of the wrong form.
func answeredElse(than string, cause error) error {
	return appliance.Errorf(appliance.CodeUpstreamUnavailable, "the upstream's answer is not %s", than).Because(cause)
}
