// Package drills tests whole appliances, each a process: quorums and clusters of them, and appliances under load whose
// parts fail. Tests that need time or luck are named TestDrill, and make test-drills runs them.
package drills

import (
	"testing"

	"github.com/attestd/attestd/appliance/daemontest"
)

func TestMain(m *testing.M) { daemontest.Main(m, nil) }
