package graphql_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vektah/gqlparser/v2/ast"

	"github.com/attestd/attestd/api/graphql"
)

// Rows are written without graph-gophers. Every answer equals graph-gophers' own byte for byte.
func TestRowsEqualGophers(t *testing.T) {
	replica := openReplica(t)
	limits := graphql.Limits{MaxCost: 1 << 29, MaxAliases: 1000, MaxTokens: 50000}
	fast := newEndpoint(t, graphql.Options{Index: replica, Limits: limits})
	slow := newOracle(t, fast)

	n := 1000
	if testing.Short() {
		n = 200
	}
	answered := 0
	for seed := range n {
		g := generator{r: rand.New(rand.NewPCG(uint64(seed), 7)), schema: loadedSchema(t)}
		query, variables := g.query()
		got, want := fast.Execute(query, variables), slow.Execute(query, variables)
		if got != want {
			t.Fatalf("seed %d\n%s\n%s\nrows:\n%s\ngraph-gophers:\n%s", seed, query, variables, got, want)
		}
		if !strings.Contains(got, `"errors"`) {
			answered++
		} else if !strings.Contains(got, "invalid_field") {
			t.Fatalf("seed %d is no query at all\n%s\n%s\n%s", seed, query, variables, got)
		}
	}
	if answered < n*8/10 {
		t.Errorf("only %d of %d queries were answered", answered, n)
	}
}

// Merging fields and binding variables before graph-gophers changes no answer. Documents that graph-gophers accepts as
// written get the same answer without these steps.
func TestRewritingEqualsGophersAlone(t *testing.T) {
	e := newEndpoint(t, graphql.Options{Limits: graphql.Limits{MaxCost: 1 << 29, MaxAliases: 1000, MaxTokens: 50000}})
	oracle := newOracle(t, e)
	compared := 0
	for seed := range 600 {
		roots := []string{"v2_transfers", "v2_packets", "v2_tokens", "v2_chains", "v2_channels", "v2_clients"}
		root := roots[seed%len(roots)]
		g := generator{r: rand.New(rand.NewPCG(uint64(seed), 11)), schema: loadedSchema(t), roots: []string{root}}
		query, variables := g.query()
		query = strings.NewReplacer("$op: ComparisonOp", "$op: String", "Boolean! = false", "Boolean!").Replace(query)
		if strings.Contains(query, "p_comparison: gt") || strings.Contains(query, "p_addresses_canonical") {
			continue // graph-gophers alone does not accept these
		}
		full := "{" + root + everything(g.schema, g.schema.Query.Fields.ForName(root).Type.Name()) + "}"
		if want := oracle.Alone(query, variables, full); !strings.Contains(want, `"errors"`) {
			compared++
			if got := e.Execute(query, variables); got != want {
				t.Fatalf("seed %d\n%s\n%s\nhere:\n%s\ngraph-gophers alone:\n%s", seed, query, variables, got, want)
			}
		}
	}
	if compared < 300 {
		t.Errorf("only %d queries were compared", compared)
	}
}

var schemaOnce *ast.Schema

func loadedSchema(t testing.TB) *ast.Schema {
	if schemaOnce == nil {
		schemaOnce = loadSchema(t)
	}
	return schemaOnce
}

// generator makes valid queries over all list fields: aliases, fragments, inline fragments, @skip and @include,
// variables, __typename, nested conditions.
type generator struct {
	r         *rand.Rand
	schema    *ast.Schema
	fragments []string
	aliases   int
	roots     []string // root fields to choose from
}

var allRoots = []string{"v2_transfers", "v2_transfers", "v2_packets", "v1_packets", "v2_tokens", "v2_chains",
	"v2_channels", "v2_clients",
	"v2_connections", "v2_bonds", "v2_unbonds", "v2_withdraws", "v2_dust_withdraws", "v2_stats_count",
	"v2_health_check"}

func (g *generator) query() (query, variables string) {
	roots := g.roots
	if roots == nil {
		roots = allRoots
	}
	var body strings.Builder
	for range 1 + g.r.IntN(3) {
		name := roots[g.r.IntN(len(roots))]
		def := g.schema.Query.Fields.ForName(name)
		fmt.Fprintf(&body, " %s%s%s%s %s", g.alias(true), name, g.arguments(def), g.directives(),
			g.set(g.schema.Types[def.Type.Name()], 3))
	}
	if g.r.IntN(4) == 0 {
		body.WriteString(" __typename")
	}
	var declared, given []string
	for name, d := range map[string][2]string{
		"yes": {"Boolean!", "true"}, "no": {"Boolean! = false", "false"},
		"limit": {"Int", fmt.Sprint(1 + g.r.IntN(12))},
		"env":   {"String", `"PRODUCTION"`}, "cursor": {"String", fmt.Sprintf("%q", sortOrder(g.r.IntN(numTransfers)))},
		"op": {"ComparisonOp", `"gt"`},
	} {
		if strings.Contains(body.String()+strings.Join(g.fragments, ""), "$"+name) {
			declared = append(declared, "$"+name+": "+d[0])
			given = append(given, fmt.Sprintf("%q: %s", name, d[1]))
		}
	}
	query = "query Q"
	if len(declared) > 0 {
		query += "(" + strings.Join(declared, ", ") + ")"
	}
	return query + " {" + body.String() + " }" + strings.Join(g.fragments, ""), "{" + strings.Join(given, ",") + "}"
}

func (g *generator) alias(always bool) string {
	if !always && g.r.IntN(6) > 0 {
		return ""
	}
	g.aliases++
	return fmt.Sprintf("a%d: ", g.aliases)
}

func (g *generator) arguments(def *ast.FieldDefinition) string {
	args := def.Arguments.ForName("args")
	if args == nil {
		return ""
	}
	fields := g.schema.Types[args.Type.Name()].Fields
	var given []string
	add := func(name string, values ...string) {
		if fields.ForName(name) != nil && g.r.IntN(2) == 0 {
			given = append(given, name+": "+values[g.r.IntN(len(values))])
		}
	}
	if fields.ForName("p_limit") != nil {
		given = append(given, "p_limit: "+[]string{fmt.Sprint(1 + g.r.IntN(8)), "$limit"}[g.r.IntN(2)])
	}
	add("p_sort_order", fmt.Sprintf("%q", sortOrder(g.r.IntN(numTransfers))), "$cursor")
	add("p_comparison", `"lt"`, `"gt"`, "gt", "$op", "null")
	switch g.r.IntN(8) {
	case 0:
		add("p_network", `"mainnet"`, `"testnet"`)
	case 1:
		add("p_source_universal_chain_id", `"union.union-1"`, `"nowhere.1"`)
	case 2:
		add("p_addresses_canonical", fmt.Sprintf(`["0x%040x"]`, g.r.IntN(9)))
	case 3:
		add("p_transaction_hash", fmt.Sprintf("%q", hash("bb", g.r.IntN(numTransfers/2))))
	case 4:
		add("p_limit_", "0")
	}
	if len(given) == 0 {
		return ""
	}
	return "(args: {" + strings.Join(given, ", ") + "})"
}

func (g *generator) directives() string {
	switch g.r.IntN(12) {
	case 0:
		return " @skip(if: " + []string{"false", "$no", "$yes"}[g.r.IntN(3)] + ")"
	case 1:
		return " @include(if: " + []string{"true", "$no", "$yes"}[g.r.IntN(3)] + ")"
	}
	return ""
}

// set selects fields of a type. The first is always selected, so that no set is empty.
func (g *generator) set(def *ast.Definition, depth int) string {
	var b strings.Builder
	b.WriteString("{ __typename")
	for range 1 + g.r.IntN(6) {
		f := def.Fields[g.r.IntN(len(def.Fields))]
		switch pick := g.r.IntN(10); {
		case pick == 0 && depth > 0:
			fmt.Fprintf(&b, " ... on %s%s %s", def.Name, g.directives(), g.set(def, depth-1))
		case pick == 1 && depth > 0:
			fmt.Fprintf(&b, " ...F%d%s", g.fragment(def, depth-1), g.directives())
		default:
			g.field(&b, f, depth)
		}
	}
	return b.String() + " }"
}

func (g *generator) field(b *strings.Builder, f *ast.FieldDefinition, depth int) {
	inner := g.schema.Types[f.Type.Name()]
	if inner.Kind == ast.Object && depth == 0 {
		return
	}
	condition := ""
	if len(f.Arguments) > 0 && g.r.IntN(2) == 0 {
		condition = "(where: {destination_channel_id: {_eq: 1}})"
		if f.Name == "features" {
			condition = "(where: {environment: {_eq: " + []string{`"PRODUCTION"`, "$env", "null"}[g.r.IntN(3)] + "}})"
		}
	}
	b.WriteString(" " + g.alias(condition != "") + f.Name + condition + g.directives())
	if inner.Kind == ast.Object {
		b.WriteString(" " + g.set(inner, depth-1))
	}
}

func (g *generator) fragment(def *ast.Definition, depth int) int {
	body := g.set(def, depth)
	g.fragments = append(g.fragments, fmt.Sprintf(" fragment F%d on %s %s", len(g.fragments), def.Name, body))
	return len(g.fragments) - 1
}

const pageOf7 = `{ v2_transfers(args: {p_limit: 100}) { sender_canonical receiver_canonical base_amount base_token_symbol source_universal_chain_id destination_universal_chain_id sort_order } }`

// BenchmarkPage measures the benefit of writing rows directly from the index. The endpoint and graph-gophers
// alternately answer a page of 100 transfers with 7 fields, so that noise affects both equally.
func BenchmarkPage(b *testing.B) {
	e := newEndpoint(b, graphql.Options{Index: openReplica(b)})
	oracle := newOracle(b, e)
	ways := []func(query, variables string) string{e.Execute, oracle.Execute}
	var took [2][]time.Duration
	var allocated [2]uint64
	for b.Loop() {
		for i, execute := range ways {
			allocated[i] = allocatedBy(func() {
				began := time.Now()
				execute(pageOf7, "")
				took[i] = append(took[i], time.Since(began))
			})
		}
	}
	var median [2]time.Duration
	for i := range took {
		slices.Sort(took[i])
		median[i] = took[i][len(took[i])/2]
	}
	b.ReportMetric(float64(median[0].Microseconds()), "µs-rows")
	b.ReportMetric(float64(median[1].Microseconds()), "µs-graph-gophers")
	b.ReportMetric(float64(median[1])/float64(median[0]), "times-slower")
	b.ReportMetric(float64(allocated[0]), "B-rows")
	b.ReportMetric(float64(allocated[1]), "B-graph-gophers")
}
