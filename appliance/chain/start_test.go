package chain_test

import (
	"testing"

	"github.com/attestd/attestd/appliance/chain"
	"github.com/attestd/attestd/appliance/chain/chaintest"
)

func TestNothingIsReadBelowTheStartBlock(t *testing.T) {
	t.Parallel()
	node, key := attesting(t)
	_, before := node.Redeem(t, key.attest(t), 1)
	_, block := node.Redeem(t, key.attest(t), 2)
	proxy := chaintest.NewProxy(t, node.URL)
	r := newRig(t, chain.Contract{RPCs: []string{proxy.URL}, StartBlock: before + 1})
	r.start()
	r.read(block)
	if s := r.status(); s.Redemptions != 1 || s.Unknown != 1 {
		t.Errorf("%+v", s)
	}
	for _, q := range proxy.Asked() {
		if from, _, ok := q.Blocks(); ok && from <= before {
			t.Errorf("events from block %d on are asked for", from)
		}
	}
}
