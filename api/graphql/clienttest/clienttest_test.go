package clienttest_test

import (
	"testing"

	"github.com/attestd/attestd/api/graphql/clienttest"
)

// The first line of each script describes its check and its client.
func TestPublishedClients(t *testing.T) {
	clienttest.Require(t, "node", "install Node.js 18 or later (make deps)")
	clienttest.Require(t, "./node_modules/graphql-http", "make clients")
	endpoint := clienttest.Serve(t, nil) + "/v1/graphql"
	for _, script := range []string{"audit.mjs",
		"requests.mjs", "graphqurl.mjs", "sdk.mjs", "staking.mjs", "persisted.mjs"} {
		t.Run(script, func(t *testing.T) { clienttest.Node(t, script, endpoint) })
	}
}

func TestTheDescriptionOfTheAPIPassesALinter(t *testing.T) {
	clienttest.Require(t, "node", "install Node.js 18 or later (make deps)")
	clienttest.Require(t, "./node_modules/@redocly/openapi-core", "make clients")
	clienttest.Node(t, "openapi.mjs", "../../openapi.yaml")
}
