// Package graphqltest makes endpoints with the default settings, for tests.
package graphqltest

import (
	"os"
	"reflect"
	"testing"

	"github.com/attestd/attestd/api/graphql"
	"github.com/attestd/attestd/appliance/config"
)

// New returns an Endpoint. Limits and sizes that are zero in o get the defaults of the settings.
func New(tb testing.TB, o graphql.Options) *graphql.Endpoint {
	tb.Helper()
	c, err := new(config.Source).LoadFile(os.DevNull, nil)
	if err != nil {
		tb.Fatal(err)
	}
	g := c.GraphQL
	byDefault := graphql.Limits{
		MaxQueryBytes: int(g.MaxQuery), MaxVariablesBytes: int(g.MaxVariables), MaxResponseBytes: int(g.MaxResponse),
		MaxTokens: g.MaxTokens, MaxDepth: g.MaxDepth, MaxRootFields: g.MaxRootFields, MaxAliases: g.MaxAliases,
		MaxCost: g.MaxCost, Timeout: g.Timeout,
	}
	for _, name := range o.Limits.Unset() {
		reflect.ValueOf(&o.Limits).Elem().FieldByName(name).Set(reflect.ValueOf(byDefault).FieldByName(name))
	}
	if o.AnswerBytes == 0 {
		o.AnswerBytes = int64(g.AnswerMemory)
	}
	if o.CacheBytes == 0 {
		o.CacheBytes = int64(g.CacheSize)
	}
	e, err := graphql.New(o)
	if err != nil {
		tb.Fatal(err)
	}
	return e
}
