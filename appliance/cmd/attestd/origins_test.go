package main

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/attestd/attestd/api/graphql/clienttest"
	"github.com/attestd/attestd/appliance/daemontest"
)

// A page of another origin can read the reason of a refusal, in a real browser. The script describes the steps.
func TestAPageOfAnotherOriginReadsRefusals(t *testing.T) {
	t.Parallel()
	const script = "../../../api/graphiql/origins_test.mjs"
	clienttest.Require(t, "node", "install Node.js 18 or later (make deps)")
	clienttest.Require(t, "/usr/bin/chromium", "install chromium (make deps)")
	clienttest.Require(t, "../../../api/graphiql/node_modules/playwright-core",
		"run npm ci in api/graphiql (make playground)")
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte("<title>another origin</title>"))
	}))
	defer page.Close()
	d := daemontest.New(t)
	d.Configure("ATTESTD_GRAPHQL_REQUIRE_KEY=true", "ATTESTD_LIMITS_GRAPHQL_RATE=2/m",
		"ATTESTD_SERVER_ORIGINS="+page.URL)
	d.Start(t)
	defer d.Kill(t)
	clienttest.Node(t, script, page.URL, d.URL, d.Token)
}
