package chain_test

import (
	"errors"
	"os"
	"testing"

	"github.com/attestd/attestd/appliance/chain"
	"github.com/attestd/attestd/appliance/chain/chaintest"
)

// Each part of a redemption is recorded once, also if the chain is read again. A redemption that the journal lacks is
// not recorded.
func TestARedemptionIsRecordedOnce(t *testing.T) {
	t.Parallel()
	node, key := attesting(t)
	r := newRig(t, chain.Contract{RPCs: []string{node.URL}})
	ours, stolen := key.attest(t), key.attest(t)
	r.journal.append(ours)
	r.unrecord(errors.New("the journal is away"))
	tx, _ := node.Redeem(t, ours, 70)
	_, block := node.Redeem(t, stolen, 5)
	r.start()
	r.eventually("an alarm, though the journal is away", r.halted)
	r.read(block)
	if all := r.redemptions(); len(all) != 0 {
		t.Fatalf("%v", all)
	}
	r.unrecord(nil)
	r.eventually("the redemption is recorded", func() bool { return len(r.redemptions()) == 1 })
	got := r.redemptions()[0]
	for name, want := range map[string]string{"id": ours.ID.String(), "keyId": "payments", "amount": "70",
		"contract": "usdc", "transactionHash": tx.String(), "hash": ours.Hash.String()} {
		if got[name] != want {
			t.Errorf("%s is %q, not %q", name, got[name], want)
		}
	}
	r.stop()
	if err := os.Remove(r.path); err != nil {
		t.Fatal(err)
	}
	_, block = node.Redeem(t, ours, 30)
	r.start() // reads all again
	r.read(block)
	r.eventually("both parts are recorded", func() bool { return len(r.redemptions()) >= 2 })
	if all := r.redemptions(); len(all) != 2 {
		t.Errorf("%v", all)
	}
}

// An RPC that lies alone gets nothing into the journal.
func TestARedemptionThatFewRPCsReportIsNotRecorded(t *testing.T) {
	t.Parallel()
	node, key := attesting(t)
	away := chaintest.NewProxy(t, node.URL)
	away.Answer(func(chaintest.Request) *chaintest.Reply { return &chaintest.Reply{Status: 503} })
	r := newRig(t, chain.Contract{RPCs: []string{node.URL, away.URL}})
	ours := key.attest(t)
	r.journal.append(ours)
	node.Redeem(t, ours, 70)
	r.start()
	r.eventually("one RPC reports it", func() bool { return len(r.all()) == 1 && r.all()[0].Verdict == chain.Known })
	if all := r.redemptions(); len(all) != 0 {
		t.Errorf("%v", all)
	}
	away.Answer(nil)
	r.eventually("it is recorded when both do", func() bool { return len(r.redemptions()) == 1 })
}
