package api_test

import (
	"strings"
	"testing"
	"time"

	"github.com/gofiber/fiber/v2"

	"github.com/attestd/attestd/api"
	"github.com/attestd/attestd/appliance"
)

// queries returns routes like the GraphQL ones, which require a key.
func queries(origins ...string) []api.Route {
	answer := func(c *fiber.Ctx) error { return c.SendString("{}") }
	var routes []api.Route
	for _, method := range []string{"GET", "POST", "OPTIONS", "PUT", "PATCH", "DELETE"} {
		routes = append(routes, api.Route{
			Method: method, Path: "/v1/graphql", Scope: appliance.ScopeGraphQL, Open: method == "OPTIONS",
			BodyLimit: 100, Origins: origins, Handler: answer,
		})
	}
	return routes
}

// preflight sends the CORS preflight of a page's request.
func (r *rig) preflight(path, origin string) answer {
	return r.do("OPTIONS", path, "", "Origin", origin, "Access-Control-Request-Method", "POST",
		"Access-Control-Request-Headers", "content-type,x-api-key")
}

func TestCORS(t *testing.T) {
	t.Parallel()
	const app, other = "https://app.example", "https://other.example"
	anywhere := newRig(t, func(o *api.Options) {
		o.Routes, o.Origins = queries(api.AnyOrigin), []string{api.AnyOrigin}
	})
	here := newRig(t, func(o *api.Options) { o.Routes, o.Origins = queries(app), []string{app} })
	nowhere := newRig(t)
	const graphQL, readBack = "/v1/graphql", attestPath + "/019aa5b4-0000-7000-8000-000000000000"
	for _, tt := range []struct {
		name                 string
		r                    *rig
		path, origin, allows string
		methods              string
	}{
		{"GraphQL, any origin", anywhere, graphQL, other, "*", "GET, POST, OPTIONS"},
		{"GraphQL, a listed origin", here, graphQL, app, app, "GET, POST, OPTIONS"},
		{"GraphQL, another origin", here, graphQL, other, "", ""},
		{"attest, any origin", anywhere, attestPath, other, "*", "POST, OPTIONS"},
		{"attest, a listed origin", here, attestPath, app, app, "POST, OPTIONS"},
		{"attest, another origin", here, attestPath, other, "", ""},
		{"attest, no origin listed", nowhere, attestPath, app, "", ""},
		{"reading back, a listed origin", here, readBack, app, app, "GET, OPTIONS"},
		{"reading back, another origin", here, readBack, other, "", ""},
		{"the attestor", nowhere, "/functions/v1/attestor", other, "*", "GET, OPTIONS"},
		{"a checkpoint", nowhere, "/log/checkpoint", other, "*", "GET, OPTIONS"},
		{"a tile", nowhere, "/log/tile/0/000.p/1", other, "*", "GET, OPTIONS"},
		{"readiness", nowhere, "/readyz", other, "*", "GET, OPTIONS"},
		{"the description", nowhere, "/openapi.yaml", other, "*", "GET, OPTIONS"},
		{"nothing", nowhere, "/nowhere", other, "", ""},
	} {
		method := "GET"
		if tt.path == attestPath {
			method = "POST"
		}
		a := tt.r.do(method, tt.path, "", "Origin", tt.origin)
		if got := a.header.Get("Access-Control-Allow-Origin"); got != tt.allows ||
			(got != "") != strings.Contains(a.header.Get("Access-Control-Expose-Headers"), "Retry-After") {
			t.Errorf("%s: %s allows %q, want %q: %v", tt.name, a, got, tt.allows, a.header)
		}
		if listed := strings.Contains(strings.Join(a.header.Values("Vary"), ","), "Origin"); listed != (tt.r == here &&
			(tt.path == graphQL || strings.HasPrefix(tt.path, attestPath))) {
			t.Errorf("%s: Vary is %q", tt.name, a.header.Values("Vary"))
		}
		a = tt.r.preflight(tt.path, tt.origin)
		methods, headers, age := a.header.Get("Access-Control-Allow-Methods"),
			a.header.Get("Access-Control-Allow-Headers"), a.header.Get("Access-Control-Max-Age")
		if allowed := methods == tt.methods && headers == "content-type,x-api-key" &&
			age == "86400"; allowed != (tt.allows != "") || methods != tt.methods {
			t.Errorf("%s: preflight %d %v", tt.name, a.status, a.header)
		}
		if a.header.Get("Access-Control-Allow-Credentials") != "" || tt.path != "/nowhere" && a.status != 204 {
			t.Errorf("%s: preflight %d %v", tt.name, a.status, a.header)
		}
	}
}

// Without these headers a browser reports a refusal to a page only as "Failed to fetch".
func TestEachRefusalCanBeReadByAPage(t *testing.T) {
	t.Parallel()
	const app = "https://app.example"
	r := newRig(t, func(o *api.Options) {
		o.Routes, o.Origins, o.AnonymousRate = queries(app), []string{app}, perSecond(1)
	})
	once, _ := r.newKey(appliance.KeyRequest{Rate: perSecond(1)})
	ask := func(path, token, body string) answer {
		return r.do("POST", path, body, "Origin", app, "x-api-key", token, "Content-Type", "application/json")
	}
	readable := func(name string, a answer, status int) {
		t.Helper()
		if a.status != status || a.header.Get("Access-Control-Allow-Origin") != app {
			t.Errorf("%s: %s %v", name, a, a.header)
		}
	}
	for _, path := range []string{"/v1/graphql", attestPath} {
		r.clock.move(2 * time.Minute)
		readable("no key", r.do("POST", path, "", "Origin", app), 401)
		readable("over the rate of an address", r.do("POST", path, "", "Origin", app), 429)
		readable("too large", ask(path, r.token, strings.Repeat("a", 20<<10)), 413)
		readable("another type", r.do("POST", path, "a", "Origin", app, "x-api-key", r.token), 415)
		ask(path, once, "")
		readable("over the rate of a key", ask(path, once, ""), 429)
	}
	readable("another method", r.do("DELETE", attestPath, "", "Origin", app, "x-api-key", r.token), 405)
	r.signer.fail(func() error { panic("the roof is on fire") })
	readable("a defect", ask(attestPath, r.token, good), 500)
	r.signer.fail(func() error { return appliance.Errorf(appliance.CodeHSMUnavailable, "away") })
	readable("no HSM", ask(attestPath, r.token, good), 503)

	w := r.dial()
	w.send("GET /v1/graphql?query=" + strings.Repeat("a", 17<<10) + " HTTP/1.1\r\nHost: x\r\nOrigin: " + app +
		"\r\n\r\n")
	if a := w.receive(); a.status != 414 || a.header.Get("Access-Control-Allow-Origin") != "*" {
		t.Errorf("too long: %s %v", a, a.header)
	}
}

func TestPreflightsAreNotCharged(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *api.Options) {
		o.Routes, o.AnonymousRate, o.Origins = queries(api.AnyOrigin), perSecond(2), []string{api.AnyOrigin}
	})
	for range 20 {
		for _, path := range []string{"/v1/graphql", attestPath, "/log/checkpoint"} {
			if a := r.preflight(path, "https://app.example"); a.status != 204 ||
				a.header.Get("Access-Control-Allow-Origin") != "*" || a.header.Get("RateLimit") != "" {
				t.Fatalf("%s: %s %v", path, a, a.header)
			}
		}
	}
	if got := r.allowed("/functions/v1/attestor", ""); got != 2 {
		t.Errorf("%d were answered after the preflights, want 2", got)
	}
}
