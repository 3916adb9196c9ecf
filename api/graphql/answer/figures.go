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

// Figures are the computed root fields: counts, latencies and health. graph-gophers executes them over a schema of
// their own.

//go:embed figures.graphql
var figuresSchema string

func newFigures(log *slog.Logger) (*gophers.Schema, error) {
	return gophers.ParseSchema(figuresSchema, &figures{}, gophers.UseFieldResolvers(), gophers.DisableFieldSelections(),
		gophers.MaxParallelism(1),
		gophers.Logger(gopherslog.LoggerFunc(func(_ context.Context, cause any) {
			log.Error("graphql resolver panicked", "cause", cause, "stack", string(debug.Stack()))
		})))
}

// figuresOf returns the root fields that are neither introspection nor rows.
func figuresOf(root []*document.Selection) (figures []*document.Selection) {
	for _, s := range root {
		if !s.Meta && s.Def.Name != "__typename" && document.RowsOf(s.Def.Name) == nil {
			figures = append(figures, s)
		}
	}
	return figures
}

// computed is the answer of graph-gophers.
type computed struct {
	data   json.RawMessage  // an object with the values by response key, or null after an error
	failed map[string]error // by response key
}

// compute executes all figures in one operation.
func (x *execution) compute(figures []*document.Selection) computed {
	if len(figures) == 0 {
		return computed{}
	}
	query, variables := queryOf(figures)
	result := x.figures.Exec(context.WithValue(x.ctx, figuresKey{}, index.Figures(x.snap)), query, "", variables)
	c := computed{data: result.Data, failed: make(map[string]error)}
	for _, failed := range result.Errors {
		key, cause := figures[0].Key, error(failed)
		if len(failed.Path) > 0 {
			key, _ = failed.Path[0].(string)
		}
		if failed.ResolverError != nil {
			cause = failed.ResolverError
		}
		c.failed[key] = cause
	}
	return c
}

// figure writes the value of a figure in an operation that also has other root fields.
func (x *execution) figure(s *document.Selection, figures computed) error {
	if len(figures.failed) > 0 {
		return figures.failed[s.Key]
	}
	var values map[string]json.RawMessage
	if err := json.Unmarshal(figures.data, &values); err != nil {
		return err
	}
	return x.write(values[s.Key])
}

// queryOf prints figures as a query with variables for their arguments, because graph-gophers accepts only text.
func queryOf(figures []*document.Selection) (query string, variables map[string]any) {
	op := &ast.OperationDefinition{Operation: ast.Query}
	variables = make(map[string]any)
	for i, s := range figures {
		node := nodeOf(s)
		if args, given := s.Args["args"]; given {
			name := "args" + strconv.Itoa(i)
			op.VariableDefinitions = append(op.VariableDefinitions,
				&ast.VariableDefinition{Variable: name, Type: s.Def.Arguments.ForName("args").Type})
			node.Arguments = ast.ArgumentList{{Name: "args", Value: &ast.Value{Kind: ast.Variable, Raw: name}}}
			variables[name] = args
		}
		op.SelectionSet = append(op.SelectionSet, node)
	}
	var text strings.Builder
	formatter.NewFormatter(&text,
		formatter.WithCompacted()).FormatQueryDocument(&ast.QueryDocument{Operations: ast.OperationList{op}})
	return text.String(), variables
}

// nodeOf returns a field with its selection set. The nested fields of figures have no arguments.
func nodeOf(s *document.Selection) *ast.Field {
	node := &ast.Field{Alias: s.Key, Name: s.Def.Name}
	for _, child := range s.Children {
		node.SelectionSet = append(node.SelectionSet, nodeOf(child))
	}
	return node
}

// figuresKey is the context key of an index.Figures.
type figuresKey struct{}

func sourceOf(ctx context.Context) index.Figures { return ctx.Value(figuresKey{}).(index.Figures) }

// figures is the resolver of Query in figures.graphql.
type figures struct{}

func (figures) V2StatsCount(ctx context.Context) ([]stat, error) {
	stats, err := sourceOf(ctx).Stats(ctx)
	return each(stats, statOf), err
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
	return []latency{{found.PacketRecv, found.WriteAck, found.PacketAck}}, err
}

func (figures) V2HealthCheck(ctx context.Context) ([]healthCheck, error) {
	checks, err := sourceOf(ctx).Health(ctx)
	return each(checks, healthCheckOf), err
}

func each[T, R any](from []T, resolver func(T) R) []R {
	all := make([]R, len(from))
	for i, f := range from {
		all[i] = resolver(f)
	}
	return all
}

type dayArguments struct{ PDaysBack *int32 }

func (a *dayArguments) count(ctx context.Context,
	run func(context.Context, index.DayQuery) ([]index.DayCount, error)) ([]dayCount, error) {
	var query index.DayQuery
	if a != nil {
		query.DaysBack = a.PDaysBack
	}
	counts, err := run(ctx, query)
	return each(counts, dayCountOf), err
}

type routeArguments struct {
	PDaysBack                                             *int32
	PSourceUniversalChainID, PDestinationUniversalChainID *string
}

func (a *routeArguments) count(ctx context.Context,
	run func(context.Context, index.DayQuery) ([]index.RouteDayCount, error)) ([]routeCount, error) {
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
	return each(counts, routeCountOf), err
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

// The resolvers of the object types in figures.graphql are structs. graph-gophers matches their fields by name.

type stat struct{ Name, Value *string }

func statOf(s index.Stat) stat { return stat{&s.Name, decimal(s.Value)} }

type dayCount struct {
	DayDate *scalar
	Count   *string
}

func dayCountOf(c index.DayCount) dayCount { return dayCount{&scalar{c.Day}, decimal(c.Count)} }

// routeCount serves both transfers and packets: each GraphQL type has one of the two totals.
type routeCount struct {
	DayDate                                             *scalar
	SourceUniversalChainID, DestinationUniversalChainID *string
	TotalTransfers, TotalPackets                        *string
}

func routeCountOf(c index.RouteDayCount) routeCount {
	total := decimal(c.Count)
	return routeCount{&scalar{c.Day}, &c.SourceChain, &c.DestinationChain, total, total}
}

type latency struct{ SecsUntilPacketRecv, SecsUntilWriteAck, SecsUntilPacketAck *index.Percentiles }

type healthCheck struct {
	Status, Environment *string
	LastUpdate          *scalar
}

func healthCheckOf(c index.HealthCheck) healthCheck {
	check := healthCheck{Status: &c.Status, Environment: (*string)(&c.Environment)}
	if c.LastUpdate != nil {
		check.LastUpdate = &scalar{c.LastUpdate.UTC()}
	}
	return check
}

// decimal formats a count as text, because a GraphQL Int ends at 2^31.
func decimal(n uint64) *string { return new(strconv.FormatUint(n, 10)) }

// scalar is a NaiveDate or a DateTime.
type scalar struct{ value any }

// ImplementsGraphQLType implements graph-gophers' decode.Unmarshaler, which all scalars must implement.
func (scalar) ImplementsGraphQLType(name string) bool {
	return name == "NaiveDate" || name == "DateTime"
}

// UnmarshalGraphQL implements decode.Unmarshaler. No argument of a figure has such a type.
func (*scalar) UnmarshalGraphQL(any) error { return errors.New("not an input type") }

// MarshalJSON implements json.Marshaler.
func (s scalar) MarshalJSON() ([]byte, error) { return json.Marshal(s.value) }
