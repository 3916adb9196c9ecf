package chain_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/chain"
	"github.com/attestd/attestd/appliance/chain/chaintest"
)

func TestTheContractOfAQuorumIsRead(t *testing.T) {
	t.Parallel()
	node := chaintest.New(t)
	a, b, c := appliance.Address{19: 1}, appliance.Address{19: 2}, appliance.Address{19: 3}
	q := node.DeployQuorum(t, 2, a, b, c)
	watched := []chain.Contract{{Name: "usdc", RPCs: []string{node.URL, "http://127.0.0.1:1/s3cr3t"}}}
	got := chain.InspectQuorum(t.Context(), watched, q.Address, "attestd/test")
	if len(got) != 2 || got[0].Error != "" || got[0].Threshold != 2 || got[0].Watched != "usdc" ||
		!slices.Equal(got[0].Members, []appliance.Address{a, b, c}) {
		t.Errorf("%+v", got)
	}
	if got[1].Error == "" || strings.Contains(got[1].Error+got[1].RPC, "s3cr3t") {
		t.Errorf("an RPC that does not answer: %+v", got[1])
	}
	q.RemoveMember(t, b)
	q.SetThreshold(t, 1)
	got = chain.InspectQuorum(t.Context(), watched[:1], q.Address, "attestd/test")
	if got[0].Threshold != 1 || len(got[0].Members) != 2 {
		t.Errorf("after a change: %+v", got)
	}
	for name, other := range map[string]appliance.Address{"no contract": {19: 7},
		"another contract": chaintest.Contract} {
		if got := chain.InspectQuorum(t.Context(), watched[:1], other, "attestd/test"); got[0].Error == "" {
			t.Errorf("%s: %+v", name, got[0])
		}
	}
}
