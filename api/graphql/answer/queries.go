package answer

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/attestd/attestd/api/graphql/document"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/zkgm"
)

// rowQueries are the index queries of the root fields that return rows.
var rowQueries = map[string]func(ctx context.Context, snap index.Lists, a arguments) ([]index.Row, error){
	"v2_transfers":   transfers,
	"v2_packets":     packets,
	"v1_packets":     packets,
	"v2_tokens":      tokens,
	"v2_chains":      chains,
	"v2_channels":    channels,
	"v2_clients":     clients,
	"v2_connections": connections,

	"v2_instructions":   instructions,
	"v2_bonds":          stakes(zkgm.Bond),
	"v2_unbonds":        stakes(zkgm.Unbond),
	"v2_withdraws":      stakes(zkgm.Withdraw),
	"v2_dust_withdraws": stakes(zkgm.DustWithdraw),
}

// fault keeps the error of the first invalid argument.
type fault struct{ err error }

func (f *fault) fail(name, message string) {
	if f.err == nil {
		f.err = appliance.Errorf(appliance.CodeInvalidField, "%s", message).In(name)
	}
}

// text returns the value of a filter, or "" for nil. An empty value is invalid, because it would not filter.
func (f *fault) text(name string, given *string) string {
	if given == nil {
		return ""
	}
	if *given == "" {
		f.fail(name, "must not be empty")
	}
	return *given
}

// parse returns the value of a filter, parsed by a function of package index. A given but empty value is invalid.
func parse[T any](f *fault, name string, given *string, read func(string) (T, error)) T {
	value, err := read(f.text(name, given))
	if err != nil && f.err == nil {
		f.err = err
	}
	return value
}

// arguments are the coerced arguments of a root field. Its methods read members of the argument args.
type arguments struct {
	fault
	field map[string]any // arguments of the field: args, order_by
	args  map[string]any
}

func argumentsOf(field map[string]any) arguments {
	args, _ := field["args"].(map[string]any)
	return arguments{field: field, args: args}
}

func (a *arguments) filter(name string) string { return a.text(name, optional[string](a.args[name])) }

// cursor returns p_sort_order. Empty means the first page.
func (a *arguments) cursor() string {
	s, _ := a.args["p_sort_order"].(string)
	return s
}

func (a *arguments) int(name string) *int32 { return optional[int32](a.args[name]) }

func (a *arguments) bool(name string) *bool { return optional[bool](a.args[name]) }

func optional[T any](value any) *T {
	if v, ok := value.(T); ok {
		return &v
	}
	return nil
}

// texts returns a jsonb value, a string or a list of strings, as a list. Nil means that the value was not given.
func (a *arguments) texts(name string) []string {
	value := a.args[name]
	switch value := value.(type) {
	case nil:
		return nil
	case string:
		return []string{value}
	case []any:
		texts := make([]string, 0, len(value))
		for _, element := range value {
			text, ok := element.(string)
			if !ok {
				a.fail(name, "must be a list of strings")
				return nil
			}
			texts = append(texts, text)
		}
		return texts
	}
	a.fail(name, "must be a list of strings")
	return nil
}

// time returns a DateTime, or the zero time if it was not given.
func (a *arguments) time(name string) time.Time {
	value := a.args[name]
	if value == nil {
		return time.Time{}
	}
	text, _ := value.(string)
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		a.fail(name, "must be an RFC 3339 time, such as 2025-06-01T12:00:00Z")
	}
	return t
}

// parseArgument is parse for a member of args.
func parseArgument[T any](a *arguments, name string, read func(string) (T, error)) T {
	return parse(&a.fault, name, optional[string](a.args[name]), read)
}

func (a *arguments) page() index.Page {
	return index.Page{
		Limit:     a.int("p_limit"),
		Cursor:    a.cursor(),
		Direction: parseArgument(a, "p_comparison", index.ParseDirection),
	}
}

func (a *arguments) end(side string) index.End {
	return index.End{
		Chain:      a.filter("p_" + side + "_universal_chain_id"),
		Client:     a.int("p_" + side + "_client_id"),
		Connection: a.int("p_" + side + "_connection_id"),
	}
}

// read runs a query of the index unless an argument is invalid.
func read[Q, R any](ctx context.Context, a *arguments, query Q, run func(context.Context, Q) (R, error)) (R, error) {
	if a.err != nil {
		var none R
		return none, a.err
	}
	return run(ctx, query)
}

func transfers(ctx context.Context, snap index.Lists, a arguments) ([]index.Row, error) {
	return read(ctx, &a, index.TransferQuery{
		Page:             a.page(),
		Addresses:        a.texts("p_addresses_canonical"),
		TransactionHash:  a.filter("p_transaction_hash"),
		PacketHash:       a.filter("p_packet_hash"),
		TransferIndex:    a.int("p_transfer_index"),
		BlockHash:        a.filter("p_block_hash"),
		SourceChain:      a.filter("p_source_universal_chain_id"),
		DestinationChain: a.filter("p_destination_universal_chain_id"),
		Network:          parseArgument(&a, "p_network", index.ParseNetwork),
	}, snap.Transfers)
}

func packets(ctx context.Context, snap index.Lists, a arguments) ([]index.Row, error) {
	return read(ctx, &a, index.PacketQuery{
		Page:             a.page(),
		TransactionHash:  a.filter("p_transaction_hash"),
		PacketHash:       a.filter("p_packet_hash"),
		BlockHash:        a.filter("p_block_hash"),
		SourceChain:      a.filter("p_source_universal_chain_id"),
		DestinationChain: a.filter("p_destination_universal_chain_id"),
		Network:          parseArgument(&a, "p_network", index.ParseNetwork),
		Exceeding:        parseArgument(&a, "p_exceeding_sla", index.ParseSLA),
		Sent:             a.time("p_packet_send_timestamp"),
	}, snap.Packets)
}

func tokens(ctx context.Context, snap index.Lists, a arguments) ([]index.Row, error) {
	rows, err := read(ctx, &a, index.TokenQuery{
		Chain:     a.filter("p_universal_chain_id"),
		Denom:     a.filter("p_denom"),
		Whitelist: a.bool("p_whitelist"),
	}, snap.Tokens)
	order, _ := a.field["order_by"].(map[string]any)
	if rank, ok := order["rank"].(string); ok {
		sortByRank(rows, rank)
	}
	return rows, err
}

// sortByRank sorts rows by rank in the order of an OrderBy value. Rows of equal rank keep their order.
func sortByRank(rows []index.Row, order string) {
	column := index.TokenType.MustField("rank").Number
	descending := order == "desc" || order == "desc_nulls_first" || order == "desc_nulls_last"
	nullsFirst := order == "desc" || order == "asc_nulls_first" || order == "desc_nulls_first"
	slices.SortStableFunc(rows, func(x, y index.Row) int {
		a, aKnown := x.Int(column)
		b, bKnown := y.Int(column)
		switch {
		case !aKnown && !bKnown:
			return 0
		case aKnown != bKnown:
			if aKnown == nullsFirst {
				return 1
			}
			return -1
		case descending:
			return cmp.Compare(b, a)
		}
		return cmp.Compare(a, b)
	})
}

func chains(ctx context.Context, snap index.Lists, a arguments) ([]index.Row, error) {
	return read(ctx, &a, index.ChainQuery{Page: a.page(), Chain: a.filter("p_universal_chain_id")}, snap.Chains)
}

func channels(ctx context.Context, snap index.Lists, a arguments) ([]index.Row, error) {
	return read(ctx, &a, index.ChannelQuery{
		Page:               a.page(),
		Source:             a.end("source"),
		Destination:        a.end("destination"),
		SourceChannel:      a.int("p_source_channel_id"),
		DestinationChannel: a.int("p_destination_channel_id"),
		SourcePort:         a.filter("p_source_port_id"),
		DestinationPort:    a.filter("p_destination_port_id"),
		Version:            a.filter("p_version"),
		Tags:               a.texts("p_tags"),
		Recommended:        a.bool("p_recommended"),
	}, snap.Channels)
}

func clients(ctx context.Context, snap index.Lists, a arguments) ([]index.Row, error) {
	return read(ctx, &a, index.ClientQuery{
		Page:         a.page(),
		Chain:        a.filter("p_universal_chain_id"),
		Counterparty: a.filter("p_counterparty_universal_chain_id"),
		Client:       a.int("p_client_id"),
	}, snap.Clients)
}

func connections(ctx context.Context, snap index.Lists, a arguments) ([]index.Row, error) {
	return read(ctx, &a, index.ConnectionQuery{Page: a.page(), Source: a.end("source"),
		Destination: a.end("destination")}, snap.Connections)
}

func instructions(ctx context.Context, snap index.Lists, a arguments) ([]index.Row, error) {
	return read(ctx, &a, index.InstructionQuery{
		Page:            a.page(),
		Sender:          a.filter("p_multiplex_sender"),
		Contract:        a.filter("p_multiplex_contract_address"),
		TransactionHash: a.filter("p_transaction_hash"),
		PacketHash:      a.filter("p_packet_hash"),
		BlockHash:       a.filter("p_block_hash"),
		Network:         parseArgument(&a, "p_network", index.ParseNetwork),
	}, snap.Instructions)
}

func stakes(kind zkgm.StakeKind) func(context.Context, index.Lists, arguments) ([]index.Row, error) {
	return func(ctx context.Context, snap index.Lists, a arguments) ([]index.Row, error) {
		return read(ctx, &a, index.StakeQuery{
			Page:             a.page(),
			Kind:             kind,
			Addresses:        a.texts("p_addresses_canonical"),
			TransactionHash:  a.filter("p_transaction_hash"),
			PacketHash:       a.filter("p_packet_hash"),
			BlockHash:        a.filter("p_block_hash"),
			SourceChain:      a.filter("p_source_universal_chain_id"),
			RemoteChain:      a.filter("p_remote_universal_chain_id"),
			DestinationChain: a.filter("p_destination_universal_chain_id"),
			Network:          parseArgument(&a, "p_network", index.ParseNetwork),
		}, snap.Stakes)
	}
}

// Warnings returns an extension that lists ignored arguments: where on a root field. It returns nil if the operation
// has none.
func Warnings(root []*document.Selection) map[string]any {
	var all []map[string]any
	for _, s := range root {
		if _, given := s.Args["where"]; given {
			all = append(all, map[string]any{
				"code": "where_ignored", "path": []any{s.Key},
				"message": fmt.Sprintf("where on %s is accepted but ignored: only args filter", s.Def.Name),
			})
		}
	}
	if all == nil {
		return nil
	}
	return map[string]any{"warnings": all}
}
