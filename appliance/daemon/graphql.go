package daemon

import (
	"fmt"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/api/graphiql"
	"github.com/attestd/attestd/api/graphql"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/config"
)

const GraphQLPath = "/v1/graphql"

// routes returns the routes of GraphQL, none if graphql.source is off. attesting reports whether the appliance is
// attesting, which comes first. streams carries subscriptions.
func (r *reads) routes(attesting func() bool, streams *api.Events) ([]api.Route, error) {
	c := r.config.GraphQL
	if c.Source == config.FromOff {
		return nil, nil
	}
	options := graphql.Options{
		StaleIfError:    c.StaleIfError,
		Limits:          queryLimits(r.config),
		Executions:      c.Executions,
		Attesting:       attesting,
		AnswerBytes:     int64(c.AnswerMemory),
		Charge:          api.Charge,
		CacheBytes:      int64(c.CacheSize),
		NoIntrospection: !c.Introspection,
		RequireKey:      c.RequireKey,
		Registry:        r.registry,
		Log:             r.logger,
	}
	if r.replica != nil { // a nil *Replica in an Index is not nil
		options.Index, options.Subscribe = r.replica, streams.Subscribe
	}
	if c.Source == config.FromProxy || c.Fallback == config.FromProxy {
		options.Upstream = r.upstream
	}
	if r.follower != nil {
		options.Lag = r.follower.Lag
	}
	endpoint, err := graphql.New(options)
	if err != nil {
		return nil, fmt.Errorf("graphql: %w", err)
	}
	origins := graphqlOrigins(r.config)
	handler := endpoint.Handle
	if c.Playground {
		handler = graphiql.LeadBrowsers(handler)
	}
	var routes []api.Route
	for _, method := range graphqlMethods {
		route := api.Route{Method: method, Path: GraphQLPath, Scope: appliance.ScopeGraphQL, Open: !c.RequireKey,
			Rate: r.config.Limits.GraphQLRate, ReadsBody: true, Origins: origins, EndsWithClient: true, Read: true,
			Handler: handler}
		if method == fiber.MethodOptions {
			route.Open = true
		}
		routes = append(routes, route)
	}
	routes = append(routes,
		api.Route{Method: fiber.MethodGet, Path: "/api/rest/health", Origins: origins, Handler: endpoint.Health})
	if c.Playground {
		playground := graphiql.New(graphiql.Options{Endpoint: GraphQLPath, RequiresKey: c.RequireKey})
		for _, path := range []string{"/graphiql", "/graphiql/assets/*"} {
			routes = append(routes,
				api.Route{Method: fiber.MethodGet, Path: path, Rate: r.config.Limits.GraphQLRate, Handler: playground})
		}
		routes = append(routes, api.Route{Method: fiber.MethodGet, Path: "/graphiql/",
			Rate: r.config.Limits.GraphQLRate, Handler: graphiql.Lead})
	}
	return routes, nil
}

func queryLimits(config *config.Config) graphql.Limits {
	c := config.GraphQL
	return graphql.Limits{
		MaxQueryBytes: int(c.MaxQuery), MaxVariablesBytes: int(c.MaxVariables),
		MaxResponseBytes: int(c.MaxResponse),
		MaxTokens:        c.MaxTokens, MaxDepth: c.MaxDepth, MaxRootFields: c.MaxRootFields,
		MaxAliases: c.MaxAliases,
		MaxCost:    c.MaxCost, Timeout: c.Timeout,
	}
}

// graphqlOrigins returns the origins whose pages may read: graphql.origins, or all.
func graphqlOrigins(c *config.Config) []string {
	if len(c.GraphQL.Origins) == 0 {
		return []string{api.AnyOrigin}
	}
	return c.GraphQL.Origins
}

// graphqlMethods are all methods of the server. The endpoint answers wrong methods itself, as GraphQL errors.
var graphqlMethods = []string{
	fiber.MethodGet, fiber.MethodPost, fiber.MethodOptions, fiber.MethodPut, fiber.MethodPatch, fiber.MethodDelete,
}
