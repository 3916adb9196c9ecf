package answer

import (
	"context"
	_ "embed" // the schema
	"encoding/json"
	"errors"
	"log/slog"
	"runtime/debug"
	"strconv"
	"strings"

	gophers "github.com/graph-gophers/graphql-go"
	gopherslog "github.com/graph-gophers/graphql-go/log"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/formatter"

	"github.com/attestd/attestd/api/graphql/document"
	"github.com/attestd/attestd/appliance/index"
)

// Figures are the root fields that are computed: counts, latencies and health. graph-gophers executes them, over a schema that
// has nothing else.

//go:embed figures.graphql
var figuresSchema string

func newFigures(log *slog.Logger) (*gophers.Schema, error) {
	return gophers.ParseSchema(figuresSchema, &figures{}, gophers.UseFieldResolvers(), gophers.DisableFieldSelections(), gophers.MaxParallelism(1),
		gophers.Logger(gopherslog.LoggerFunc(func(_ context.Context, cause any) {
			log.Error("graphql resolver panicked", "cause", cause, "stack", string(debug.Stack()))
		})))
}

// figure writes the value of a figure.
func (x *execution) figure(s *document.Selection) error {
	query, variables := queryOf(s)
	result := x.figures.Exec(context.WithValue(x.ctx, figureSourceKey{}, figureSource(x.snap)), query, "", variables)
	if len(result.Errors) > 0 {
		if cause := result.Errors[0].ResolverError; cause != nil {
			return cause
		}
		return result.Errors[0]
	}
	var answers map[string]json.RawMessage // by response key
	if err := json.Unmarshal(result.Data, &answers); err != nil {
		return err
	}
	x.buf = append(x.buf, answers[s.Key]...)
	if len(x.buf) > x.max {
		return errResponseTooLarge
	}
	return nil
}

// queryOf returns a query of that root field alone, since graph-gophers takes only text. Its arguments are a variable.
func queryOf(s *document.Selection) (query string, variables map[string]any) {
	root := nodeOf(s)
	op := &ast.OperationDefinition{Operation: ast.Query, SelectionSet: ast.SelectionSet{root}}
	if args, given := s.Args["args"]; given {
		op.VariableDefinitions = ast.VariableDefinitionList{{Variable: "args", Type: s.Def.Arguments.ForName("args").Type}}
		root.Arguments = ast.ArgumentList{{Name: "args", Value: &ast.Value{Kind: ast.Variable, Raw: "args"}}}
		variables = map[string]any{"args": args}
	}
	var text strings.Builder
	formatter.NewFormatter(&text, formatter.WithCompacted()).FormatQueryDocument(&ast.QueryDocument{Operations: ast.OperationList{op}})
	return text.String(), variables
}

// nodeOf returns a field with its selection set. Fields of figures have no arguments.
func nodeOf(s *document.Selection) *ast.Field {
	node := &ast.Field{Alias: s.Key, Name: s.Def.Name}
	for _, child := range s.Children {
		node.SelectionSet = append(node.SelectionSet, nodeOf(child))
	}
	return node
}

// figureSource is what figures read of a snapshot.
type figureSource interface {
	Stats(ctx context.Context) ([]index.Stat, error)
	TransfersDaily(ctx context.Context, q index.DayQuery) ([]index.DayCount, error)
	PacketsDaily(ctx context.Context, q index.DayQuery) ([]index.DayCount, error)
	TransfersByChain(ctx context.Context, q index.DayQuery) ([]index.RouteDayCount, error)
	PacketsByChain(ctx context.Context, q index.DayQuery) ([]index.RouteDayCount, error)
	Latency(ctx context.Context, q index.LatencyQuery) (index.Latency, error)
	Health(ctx context.Context) ([]index.HealthCheck, error)
}

// figureSourceKey is the context key of a figureSource.
type figureSourceKey struct{}

func sourceOf(ctx context.Context) figureSource { return ctx.Value(figureSourceKey{}).(figureSource) }

// figures is the resolver of Query in figures.graphql.
type figures struct{}

func (figures) V2StatsCount(ctx context.Context) ([]stat, error) {
	stats, err := sourceOf(ctx).Stats(ctx)
	return each(stats, func(s index.Stat) stat { return stat{s} }), err
}

func (figures) V2StatsTransfersDailyCount(ctx context.Context, in struct{ Args *dayArguments }) ([]dayCount, error) {
	return in.Args.count(ctx, sourceOf(ctx).TransfersDaily)
}

func (figures) V2StatsPacketsDailyCount(ctx context.Context, in struct{ Args *dayArguments }) ([]dayCount, error) {
	return in.Args.count(ctx, sourceOf(ctx).PacketsDaily)
}

func (figures) V2StatsTransfersChain(ctx context.Context, in struct{ Args *routeArguments }) ([]routeCount, error) {
	return in.Args.count(ctx, sourceOf(ctx).TransfersByChain)
}

func (figures) V2StatsPacketsChain(ctx context.Context, in struct{ Args *routeArguments }) ([]routeCount, error) {
	return in.Args.count(ctx, sourceOf(ctx).PacketsByChain)
}

func (figures) V2StatsLatency(ctx context.Context, in struct{ Args *latencyArguments }) ([]latency, error) {
	query, err := in.Args.query()
	if err != nil {
		return nil, err
	}
	found, err := sourceOf(ctx).Latency(ctx, query)
	return []latency{{found}}, err
}

func (figures) V2HealthCheck(ctx context.Context) ([]healthCheck, error) {
	checks, err := sourceOf(ctx).Health(ctx)
	return each(checks, func(c index.HealthCheck) healthCheck { return healthCheck{c} }), err
}

func each[T, R any](from []T, resolver func(T) R) []R {
	all := make([]R, len(from))
	for i, f := range from {
		all[i] = resolver(f)
	}
	return all
}

type dayArguments struct{ PDaysBack *int32 }

func (a *dayArguments) count(ctx context.Context, run func(context.Context, index.DayQuery) ([]index.DayCount, error)) ([]dayCount, error) {
	var query index.DayQuery
	if a != nil {
		query.DaysBack = a.PDaysBack
	}
	counts, err := run(ctx, query)
	return each(counts, func(c index.DayCount) dayCount { return dayCount{c} }), err
}

type routeArguments struct {
	PDaysBack                                             *int32
	PSourceUniversalChainID, PDestinationUniversalChainID *string
}

func (a *routeArguments) count(ctx context.Context, run func(context.Context, index.DayQuery) ([]index.RouteDayCount, error)) ([]routeCount, error) {
	var query index.DayQuery
	var wrong fault
	if a != nil {
		query = index.DayQuery{
			DaysBack:         a.PDaysBack,
			SourceChain:      wrong.text("p_source_universal_chain_id", a.PSourceUniversalChainID),
			DestinationChain: wrong.text("p_destination_universal_chain_id", a.PDestinationUniversalChainID),
		}
	}
	if wrong.err != nil {
		return nil, wrong.err
	}
	counts, err := run(ctx, query)
	return each(counts, func(c index.RouteDayCount) routeCount { return routeCount{c} }), err
}

type latencyArguments struct {
	PSourceUniversalChainID, PDestinationUniversalChainID, PPhase *string
}

func (a *latencyArguments) query() (index.LatencyQuery, error) {
	if a == nil {
		a = &latencyArguments{}
	}
	var wrong fault
	return index.LatencyQuery{
		SourceChain:      wrong.text("p_source_universal_chain_id", a.PSourceUniversalChainID),
		DestinationChain: wrong.text("p_destination_universal_chain_id", a.PDestinationUniversalChainID),
		Phase:            parse(&wrong, "p_phase", a.PPhase, index.ParsePhase),
	}, wrong.err
}

// The resolvers of the object types in figures.graphql.

type stat struct{ index.Stat }

func (s stat) Name() *string  { return &s.Stat.Name }
func (s stat) Value() *string { return decimal(s.Stat.Value) }

type dayCount struct{ index.DayCount }

func (c dayCount) DayDate() *scalar { return &scalar{c.Day} }
func (c dayCount) Count() *string   { return decimal(c.DayCount.Count) }

type routeCount struct{ index.RouteDayCount }

func (c routeCount) DayDate() *scalar                     { return &scalar{c.Day} }
func (c routeCount) SourceUniversalChainID() *string      { return &c.SourceChain }
func (c routeCount) DestinationUniversalChainID() *string { return &c.DestinationChain }
func (c routeCount) TotalTransfers() *string              { return decimal(c.Count) }
func (c routeCount) TotalPackets() *string                { return decimal(c.Count) }

type latency struct{ index.Latency }

func (l latency) SecsUntilPacketRecv() *index.Percentiles { return l.PacketRecv }
func (l latency) SecsUntilWriteAck() *index.Percentiles   { return l.WriteAck }
func (l latency) SecsUntilPacketAck() *index.Percentiles  { return l.PacketAck }

type healthCheck struct{ index.HealthCheck }

func (c healthCheck) Status() *string      { return &c.HealthCheck.Status }
func (c healthCheck) Environment() *string { return (*string)(&c.HealthCheck.Environment) }

func (c healthCheck) LastUpdate() *scalar {
	if c.HealthCheck.LastUpdate == nil {
		return nil
	}
	return &scalar{c.HealthCheck.LastUpdate.UTC()}
}

// decimal formats a count: an Int ends at 2^31.
func decimal(n uint64) *string { return new(strconv.FormatUint(n, 10)) }

// scalar is a NaiveDate or a DateTime.
type scalar struct{ value any }

// ImplementsGraphQLType implements decode.Unmarshaler of graph-gophers, which all scalars must.
func (scalar) ImplementsGraphQLType(name string) bool {
	return name == "NaiveDate" || name == "DateTime"
}

// UnmarshalGraphQL implements decode.Unmarshaler. No argument of a figure has such a type.
func (*scalar) UnmarshalGraphQL(any) error { return errors.New("not an input type") }

// MarshalJSON implements json.Marshaler.
func (s scalar) MarshalJSON() ([]byte, error) { return json.Marshal(s.value) }
