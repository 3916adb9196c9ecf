package document_test

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vektah/gqlparser/v2/ast"

	"github.com/attestd/attestd/api/graphql/document"
)

// mostMemory bounds the bytes that reading a document may allocate per byte of the document, beyond baseMemory.
const (
	mostMemory = 500
	baseMemory = 64 << 10
)

var limits = document.Limits{
	MaxQueryBytes: 64 << 10, MaxVariablesBytes: 64 << 10, MaxTokens: 5000, MaxDepth: 12, MaxRootFields: 20,
	MaxAliases: 50,
	MaxCost:    2_000_000, MaxResponseBytes: 16 << 20, Timeout: time.Second,
}

// FuzzMemory looks for a document whose memory grows faster than its size. Allocated bytes stand for steps, because
// they do not depend on the machine's speed. A document is begins, then goesOn repeated, then closes repeated.
func FuzzMemory(f *testing.F) {
	for _, seed := range [][3]string{
		{"query($a:Boolean!){v2_chains{", "...@include(if:$a){chain_id ", "}"},
		{"{v2_chains{", "chain_id ", ""},
		{"{v2_chains{", "chain_ix ", ""},
		{"{v2_chains{chain_id", "chain_id", ""},
		{"{v2_chains{...f}} fragment f on v2_chain_type{", "...f ", ""},
		{"{v2_transfers(args:{", "a:1 ", ""},
		{"{v2_transfers(args:{p_addresses_canonical:", "[", "]"},
		{"{v2_transfers(args:{p_addresses_canonical:[", `"a" `, ""},
		{"query ", "@cached ", "{v2_chains{chain_id}}"},
		{"{v2_transfers(args:{p_sort_order:\"\"\"", "\n a", ""},
		{"query($a:", "[", "]"},
		{"", "query q{v2_chains{chain_id}}", ""},
		{"{v2_chains{chain_id}}", " fragment f on v2_chain_type{...f}", ""},
	} {
		for _, times := range []uint16{10, 100, 450} {
			f.Add(seed[0], seed[1], seed[2], times)
		}
	}
	schema := loadSchema(f)
	f.Fuzz(func(t *testing.T, begins, goesOn, ends string, times uint16) {
		n := min(int(times), limits.MaxQueryBytes/max(1, len(goesOn)))
		for _, closed := range []string{"", "}}", ")}", "}){sort_order}}", "]}){sort_order}}"} {
			query := begins + strings.Repeat(goesOn, n) + strings.Repeat(ends, n) + closed
			if used := memoryOf(schema, query); used > baseMemory+mostMemory*uint64(len(query)) {
				t.Errorf("%d bytes of a document took %d bytes of memory", len(query), used)
			}
		}
	})
}

// memoryOf returns the bytes allocated while a document is read.
func memoryOf(schema *ast.Schema, query string) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if op, err := document.Parse(query, "", limits); err == nil && len(op.Resolve(schema)) == 0 {
		_, _ = op.Bind(map[string]any{"a": true})
	}
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func loadSchema(tb testing.TB) *ast.Schema {
	tb.Helper()
	text, err := os.ReadFile("../schema.graphql")
	if err != nil {
		tb.Fatal(err)
	}
	schema, err := document.LoadSchema(string(text))
	if err != nil {
		tb.Fatal(fmt.Errorf("load the schema: %w", err))
	}
	return schema
}
