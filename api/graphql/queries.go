package graphql

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index"
)

// rowQuery answers a root field with rows of one type.
type rowQuery struct {
	rows *index.Type
	read func(ctx context.Context, snap index.Snapshot, a arguments) ([]index.Row, error)
}

// rowQueries are the root fields that return rows. The others return figures.
var rowQueries = map[string]rowQuery{
	"v2_transfers":   {index.TransferType, transfers},
	"v2_packets":     {index.PacketType, packets},
	"v1_packets":     {index.PacketType, packets},
	"v2_tokens":      {index.TokenType, tokens},
	"v2_chains":      {index.ChainType, chains},
	"v2_channels":    {index.ChannelType, channels},
	"v2_clients":     {index.ClientType, clients},
	"v2_connections": {index.ConnectionType, connections},
}

// arguments are the coerced arguments of a root field. Its accessors read the members of args, and remember the
// first that cannot be meant.
type arguments struct {
	field map[string]any // the field's own: args, order_by
	args  map[string]any
	err   error
}

func argumentsOf(field map[string]any) arguments {
	args, _ := field["args"].(map[string]any)
	return arguments{field: field, args: args}
}

// text reads a filter. An empty one would not filter, which nobody can have meant.
func (a *arguments) text(name string) string {
	s, given := a.args[name].(string)
	if given && s == "" {
		a.fail(name, "must not be empty")
	}
	return s
}

// cursor reads p_sort_order, whose empty form means the first page.
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

// texts reads a jsonb that is a list of strings; a single string is a list of one. nil means not given.
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

// time reads a DateTime.
func (a *arguments) time(name string) time.Time {
	value := a.args[name]
	if value == nil {
		return time.Time{}
	}
	text, _ := value.(string)
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		a.fail(name, "must be a time as of RFC 3339, such as 2025-06-01T12:00:00Z")
	}
	return t
}

func (a *arguments) fail(name, format string, args ...any) {
	if a.err == nil {
		a.err = appliance.Errorf(appliance.CodeInvalidField, format, args...).In(name)
	}
}

// parse reads a text that a function of the domain understands. A text that is given and empty is not the same as
// none.
func parse[T any](a *arguments, name string, read func(string) (T, error)) T {
	text, given := a.args[name].(string)
	value, err := read(text)
	if err == nil && given && text == "" {
		err = appliance.Errorf(appliance.CodeInvalidField, "must not be empty").In(name)
	}
	if err != nil && a.err == nil {
		a.err = err
	}
	return value
}

func (a *arguments) page() index.Page {
	return index.Page{
		Limit:     a.int("p_limit"),
		Cursor:    a.cursor(),
		Direction: parse(a, "p_comparison", index.ParseDirection),
	}
}

func (a *arguments) end(side string) index.End {
	return index.End{
		Chain:      a.text("p_" + side + "_universal_chain_id"),
		Client:     a.int("p_" + side + "_client_id"),
		Connection: a.int("p_" + side + "_connection_id"),
	}
}

func (a *arguments) days() index.DayQuery {
	return index.DayQuery{
		DaysBack:         a.int("p_days_back"),
		SourceChain:      a.text("p_source_universal_chain_id"),
		DestinationChain: a.text("p_destination_universal_chain_id"),
	}
}

// read runs a query of the index, unless its arguments are wrong.
func read[Q, R any](ctx context.Context, a *arguments, query Q, run func(context.Context, Q) (R, error)) (R, error) {
	if a.err != nil {
		var none R
		return none, a.err
	}
	return run(ctx, query)
}

func transfers(ctx context.Context, snap index.Snapshot, a arguments) ([]index.Row, error) {
	return read(ctx, &a, index.TransferQuery{
		Page:             a.page(),
		Addresses:        a.texts("p_addresses_canonical"),
		TransactionHash:  a.text("p_transaction_hash"),
		PacketHash:       a.text("p_packet_hash"),
		TransferIndex:    a.int("p_transfer_index"),
		BlockHash:        a.text("p_block_hash"),
		SourceChain:      a.text("p_source_universal_chain_id"),
		DestinationChain: a.text("p_destination_universal_chain_id"),
		Network:          parse(&a, "p_network", index.ParseNetwork),
	}, snap.Transfers)
}

func packets(ctx context.Context, snap index.Snapshot, a arguments) ([]index.Row, error) {
	return read(ctx, &a, index.PacketQuery{
		Page:             a.page(),
		TransactionHash:  a.text("p_transaction_hash"),
		PacketHash:       a.text("p_packet_hash"),
		BlockHash:        a.text("p_block_hash"),
		SourceChain:      a.text("p_source_universal_chain_id"),
		DestinationChain: a.text("p_destination_universal_chain_id"),
		Network:          parse(&a, "p_network", index.ParseNetwork),
		Exceeding:        parse(&a, "p_exceeding_sla", index.ParseSLA),
		Sent:             a.time("p_packet_send_timestamp"),
	}, snap.Packets)
}

func tokens(ctx context.Context, snap index.Snapshot, a arguments) ([]index.Row, error) {
	rows, err := read(ctx, &a, index.TokenQuery{
		Chain:     a.text("p_universal_chain_id"),
		Denom:     a.text("p_denom"),
		Whitelist: a.bool("p_whitelist"),
	}, snap.Tokens)
	order, _ := a.field["order_by"].(map[string]any)
	if rank, ok := order["rank"].(string); ok {
		sortByRank(rows, rank)
	}
	return rows, err
}

// sortByRank orders rows as OrderBy says. Rows of the same rank keep their order.
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

func chains(ctx context.Context, snap index.Snapshot, a arguments) ([]index.Row, error) {
	return read(ctx, &a, index.ChainQuery{Page: a.page(), Chain: a.text("p_universal_chain_id")}, snap.Chains)
}

func channels(ctx context.Context, snap index.Snapshot, a arguments) ([]index.Row, error) {
	return read(ctx, &a, index.ChannelQuery{
		Page:               a.page(),
		Source:             a.end("source"),
		Destination:        a.end("destination"),
		SourceChannel:      a.int("p_source_channel_id"),
		DestinationChannel: a.int("p_destination_channel_id"),
		SourcePort:         a.text("p_source_port_id"),
		DestinationPort:    a.text("p_destination_port_id"),
		Version:            a.text("p_version"),
		Tags:               a.texts("p_tags"),
		Recommended:        a.bool("p_recommended"),
	}, snap.Channels)
}

func clients(ctx context.Context, snap index.Snapshot, a arguments) ([]index.Row, error) {
	return read(ctx, &a, index.ClientQuery{
		Page:         a.page(),
		Chain:        a.text("p_universal_chain_id"),
		Counterparty: a.text("p_counterparty_universal_chain_id"),
		Client:       a.int("p_client_id"),
	}, snap.Clients)
}

func connections(ctx context.Context, snap index.Snapshot, a arguments) ([]index.Row, error) {
	return read(ctx, &a, index.ConnectionQuery{Page: a.page(), Source: a.end("source"), Destination: a.end("destination")}, snap.Connections)
}

// figure answers a root field with counts and states rather than rows: a list of structs that graph-gophers reads by
// their tags.
type figure struct {
	list reflect.Type
	read func(ctx context.Context, snap index.Snapshot, a arguments) (any, error)
}

var figures = map[string]figure{
	"v2_stats_count":                 figureOf(stats),
	"v2_stats_transfers_daily_count": figureOf(daily(index.Snapshot.TransfersDaily, dailyCount)),
	"v2_stats_packets_daily_count":   figureOf(daily(index.Snapshot.PacketsDaily, dailyCount)),
	"v2_stats_transfers_chain":       figureOf(daily(index.Snapshot.TransfersByChain, transferRoute)),
	"v2_stats_packets_chain":         figureOf(daily(index.Snapshot.PacketsByChain, packetRoute)),
	"v2_stats_latency":               figureOf(latency),
	"v2_health_check":                figureOf(health),
}

func figureOf[T any](read func(context.Context, index.Snapshot, arguments) ([]T, error)) figure {
	return figure{list: reflect.TypeFor[[]T](), read: func(ctx context.Context, snap index.Snapshot, a arguments) (any, error) {
		return read(ctx, snap, a)
	}}
}

// daily turns daily counts into what the schema calls them.
func daily[T, U any](run func(index.Snapshot, context.Context, index.DayQuery) ([]T, error), shape func(T) U) func(context.Context, index.Snapshot, arguments) ([]U, error) {
	return func(ctx context.Context, snap index.Snapshot, a arguments) ([]U, error) {
		counts, err := read(ctx, &a, a.days(), func(ctx context.Context, q index.DayQuery) ([]T, error) { return run(snap, ctx, q) })
		return shapes(counts, shape), err
	}
}

func shapes[T, U any](from []T, shape func(T) U) []U {
	shaped := make([]U, len(from))
	for i, f := range from {
		shaped[i] = shape(f)
	}
	return shaped
}

type statFigure struct {
	Name  *string `graphql:"name"`
	Value *string `graphql:"value"`
}

func stats(ctx context.Context, snap index.Snapshot, _ arguments) ([]statFigure, error) {
	counts, err := snap.Stats(ctx)
	return shapes(counts, func(s index.Stat) statFigure {
		return statFigure{Name: &s.Name, Value: decimal(s.Value)}
	}), err
}

type dailyFigure struct {
	Day   *scalar `graphql:"day_date"`
	Count *string `graphql:"count"`
}

func dailyCount(c index.DayCount) dailyFigure {
	return dailyFigure{Day: &scalar{c.Day}, Count: decimal(c.Count)}
}

type route struct {
	Day         *scalar `graphql:"day_date"`
	Source      *string `graphql:"source_universal_chain_id"`
	Destination *string `graphql:"destination_universal_chain_id"`
}

func routeOf(c index.RouteDayCount) route {
	return route{Day: &scalar{c.Day}, Source: &c.SourceChain, Destination: &c.DestinationChain}
}

type transferRouteFigure struct {
	route
	Total *string `graphql:"total_transfers"`
}

func transferRoute(c index.RouteDayCount) transferRouteFigure {
	return transferRouteFigure{route: routeOf(c), Total: decimal(c.Count)}
}

type packetRouteFigure struct {
	route
	Total *string `graphql:"total_packets"`
}

func packetRoute(c index.RouteDayCount) packetRouteFigure {
	return packetRouteFigure{route: routeOf(c), Total: decimal(c.Count)}
}

type latencyFigure struct {
	PacketRecv *percentiles `graphql:"secs_until_packet_recv"`
	WriteAck   *percentiles `graphql:"secs_until_write_ack"`
	PacketAck  *percentiles `graphql:"secs_until_packet_ack"`
}

type percentiles struct {
	P5     float64 `graphql:"p5"`
	Median float64 `graphql:"median"`
	P95    float64 `graphql:"p95"`
}

func latency(ctx context.Context, snap index.Snapshot, a arguments) ([]latencyFigure, error) {
	l, err := read(ctx, &a, index.LatencyQuery{
		SourceChain:      a.text("p_source_universal_chain_id"),
		DestinationChain: a.text("p_destination_universal_chain_id"),
		Phase:            parse(&a, "p_phase", index.ParsePhase),
	}, snap.Latency)
	return []latencyFigure{{
		PacketRecv: (*percentiles)(l.PacketRecv), WriteAck: (*percentiles)(l.WriteAck), PacketAck: (*percentiles)(l.PacketAck),
	}}, err
}

type healthFigure struct {
	Status      *string `graphql:"status" json:"status"`
	Environment *string `graphql:"environment" json:"environment"`
	LastUpdate  *scalar `graphql:"last_update" json:"last_update"`
}

func health(ctx context.Context, snap index.Snapshot, _ arguments) ([]healthFigure, error) {
	checks, err := snap.Health(ctx)
	return shapes(checks, func(c index.HealthCheck) healthFigure {
		f := healthFigure{Status: &c.Status, Environment: (*string)(&c.Environment)}
		if c.LastUpdate != nil {
			f.LastUpdate = &scalar{c.LastUpdate.UTC()}
		}
		return f
	}), err
}

func decimal(n uint64) *string {
	s := strconv.FormatUint(n, 10)
	return &s
}

// warnings is the extension that tells what was accepted and ignored: where on a root field. It is nil where nothing was.
func warnings(root []*selection) map[string]any {
	var all []map[string]any
	for _, s := range root {
		if _, given := s.args["where"]; given {
			all = append(all, map[string]any{
				"code": "where_ignored", "path": []any{s.key},
				"message": fmt.Sprintf("where on %s is accepted and ignored: only the members of args filter", s.def.Name),
			})
		}
	}
	if all == nil {
		return nil
	}
	return map[string]any{"warnings": all}
}
