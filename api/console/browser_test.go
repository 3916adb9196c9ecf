package console_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/attestd/attestd/api/graphql/clienttest"
)

// TestConsoleInChromium runs the console with a real daemon in a real browser. The scripts in browser/, one per page,
// hold the checks and run concurrently. TEST_SCREENSHOTS names a folder for screenshots.
func TestConsoleInChromium(t *testing.T) {
	clienttest.Require(t, "node", "install Node.js 18 or later (make deps)")
	clienttest.Require(t, clienttest.Chromium(), "install chromium (make deps)")
	clienttest.Require(t, "./node_modules/playwright-core", "run npm ci in api/console (make console)")
	clienttest.Require(t, "./dist/uplot.js", "bundle the graphs (make console)")
	r := start(t)
	rig, err := json.Marshal(map[string]string{"url": r.url, "api": r.api, "key": r.key, "socket": r.socket})
	if err != nil {
		t.Fatal(err)
	}
	replica := lied(t)
	following := r.startFollower(t, replica.URL())
	following.inStep(t)
	follower, err := json.Marshal(map[string]string{"url": following.url, "socket": following.socket})
	if err != nil {
		t.Fatal(err)
	}
	inQuorum := r.startInQuorum(t)
	quorum, err := json.Marshal(map[string]string{"url": inQuorum.url, "socket": inQuorum.socket})
	if err != nil {
		t.Fatal(err)
	}
	indexing := r.startIndexing(t)
	indexer, err := json.Marshal(map[string]string{"url": indexing.url, "socket": indexing.socket})
	if err != nil {
		t.Fatal(err)
	}
	troubled, mend := r.startTroubled(t)
	day, err := json.Marshal(map[string]string{"url": troubled.url, "api": troubled.api, "socket": troubled.socket,
		"mend": mend})
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"CHROMIUM": clienttest.Chromium(), "RIG": string(rig),
		"FOLLOWER": string(follower), "QUORUM": string(quorum), "INDEXER": string(indexer), "DAY": string(day)} {
		if err := os.Setenv(name, value); err != nil {
			t.Fatal(err)
		}
	}
	for _, script := range []string{"access", "oidc", "overview", "attestations", "activity", "keys", "approvals",
		"quorum", "replica", "indexer", "audit", "webhooks", "operations", "settings", "front", "day"} {
		t.Run(script, func(t *testing.T) {
			t.Parallel()
			clienttest.Node(t, "browser/run.mjs", script)
		})
	}
}
