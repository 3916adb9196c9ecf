package chain_test

import (
	"net/http"
	"slices"
	"testing"

	"github.com/attestd/attestd/appliance/attest"
	"github.com/attestd/attestd/appliance/chain"
	"github.com/attestd/attestd/appliance/chain/chaintest"
)

func TestOneRPCOfThreeDoesNotEndReadinessWhileOthersAreAway(t *testing.T) {
	t.Parallel()
	node, key := attesting(t)
	calls := func(reply *chaintest.Reply) string {
		p := chaintest.NewProxy(t, node.URL)
		p.Answer(func(q chaintest.Request) *chaintest.Reply {
			if q.Method != "eth_call" {
				return nil
			}
			return reply
		})
		return p.URL
	}
	liar := calls(
		&chaintest.Reply{Result: []byte(`"0x000000000000000000000000000000000000000000000000000000000000dead"`)})
	r := newRig(t, chain.Contract{RPCs: []string{liar, calls(&chaintest.Reply{Status: http.StatusBadGateway}),
		calls(&chaintest.Reply{Status: http.StatusBadGateway})}})
	r.options.Signers = func() []attest.Signer { return []attest.Signer{key} }
	r.start()
	r.eventually("each is read, and so was asked for the attestor before", func() bool {
		return !slices.ContainsFunc(r.status().RPCs, func(one chain.RPCStatus) bool { return one.Block < node.Head(t) })
	})
	if m := r.status().SignerMatches; m != nil || r.Ready() != nil {
		t.Errorf("signer matches: %v, ready: %v", m, r.Ready())
	}
}
