// Package bench measures appliances: attestations, reads, following an upstream, clusters and quorums. docs/performance.md
// has the results, and make bench runs it.
package bench

import (
	"testing"

	"github.com/attestd/attestd/appliance/daemontest"
)

func TestMain(m *testing.M) {
	daemontest.Main(m, map[string]func(){"static": serveStatic, "strangers": actAsStrangers})
}
