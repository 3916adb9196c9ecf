package chain_test

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/attest"
	"github.com/attestd/attestd/appliance/chain"
	"github.com/attestd/attestd/appliance/chain/chaintest"
)

// attesting returns a node with a contract that accepts the signer's signatures.
func attesting(t *testing.T) (*chaintest.Node, *signer) {
	t.Helper()
	node, key := chaintest.New(t), newSigner(t)
	node.SetAttestor(t, key.Address())
	return node, key
}

func TestRedemptionsAreHeldAgainstTheJournal(t *testing.T) {
	t.Parallel()
	node, key := attesting(t)
	r := newRig(t, chain.Contract{RPCs: []string{node.URL}})
	ours, stolen := key.attest(t), key.attest(t)
	r.journal.append(ours)
	first, _ := node.Redeem(t, ours, 70)
	node.Redeem(t, ours, 30)
	r.start()
	r.read(node.Head(t))
	if s := r.status(); s.Redemptions != 2 || s.Unknown != 0 || r.halted() {
		t.Fatalf("our own attestation, redeemed in two parts: %+v", s)
	}
	if all := r.all(); *all[0].AttestationID != ours.ID || all[0].KeyID != "payments" ||
		all[0].TransactionHash != first || all[0].Amount.String() != "70" || all[0].Time.IsZero() {
		t.Fatalf("a part: %+v", all[0])
	}

	tx, block := node.Redeem(t, stolen, 5_000)
	r.eventually("attesting is halted", r.halted)
	r.read(block)
	if s := r.status(); s.Unknown != 1 || s.Disputed != 0 || s.Redemptions != 3 {
		t.Errorf("status: %+v", s)
	}
	if len(r.logged("level=ERROR", "another party signs", stolen.Hash.String(), tx.String())) != 1 {
		t.Errorf("no ERROR line has the hash:\n%s", r.text())
	}
	if r.recorded(chain.EventUnknownRedemption) != 1 || r.recorded(chain.EventHalted) != 1 || r.Metrics().Unknown != 1 {
		t.Errorf("events %v, unknown %d", r.events, r.Metrics().Unknown)
	}
	if r.resume(); r.halted() {
		t.Fatal("halted again")
	}
	node.Mine(1)
	r.read(block + 1)
	if r.halted() {
		t.Error("the same redemption halts again")
	}
	node.Redeem(t, stolen, 1)
	r.eventually("another redemption of the same hash halts again", r.halted)
}

func TestAStartGoesOnWhereTheLastHasEnded(t *testing.T) {
	t.Parallel()
	node, key := attesting(t)
	proxy := chaintest.NewProxy(t, node.URL)
	r := newRig(t, chain.Contract{RPCs: []string{proxy.URL}})
	stolen, meanwhile := key.attest(t), key.attest(t)
	_, block := node.Redeem(t, stolen, 1)
	r.start()
	r.read(block)
	r.stop()
	r.resume()
	asked := len(proxy.Asked())
	_, block = node.Redeem(t, meanwhile, 2)
	r.start()
	r.read(block)
	for _, q := range proxy.Asked()[asked:] {
		if from, _, ok := q.Blocks(); ok && from < block {
			t.Errorf("block %d is read again, want from %d", from, block)
		}
	}
	if r.resume() != 1 {
		t.Error("the acknowledged redemption halts after a restart, or the new one does not")
	}
	if n := r.recorded(chain.EventUnknownRedemption); n != 2 || r.Metrics().Unknown != 2 || r.status().Unknown != 2 {
		t.Errorf("%d events, %d counted, want 2 each", n, r.Metrics().Unknown)
	}
	if len(r.logged("level=ERROR", stolen.Hash.String())) < 2 {
		t.Error("a start does not tell of what is known")
	}
}

func TestAReorganisationUndoesWhatItTakesBack(t *testing.T) {
	t.Parallel()
	node, key := attesting(t)
	r := newRig(t, chain.Contract{RPCs: []string{node.URL}, Confirmations: 2})
	kept, gone := key.attest(t), key.attest(t)
	r.journal.append(kept)
	r.journal.append(gone)
	node.Redeem(t, kept, 1)
	node.Mine(3)
	r.start()
	r.read(node.Head(t) - 2)
	_, block := node.Redeem(t, gone, 2)
	node.Mine(2)
	r.read(block)
	if n := r.status().Redemptions; n != 2 {
		t.Fatalf("%d redemptions, want 2", n)
	}
	node.Reorganise(t, 4) // deeper than the confirmations
	r.eventually("the redemption is undone", func() bool { return r.status().Redemptions == 1 })
	if all := r.all(); all[0].Hash != kept.Hash {
		t.Errorf("%s is left, want %s", all[0].Hash, kept.Hash)
	}
	r.eventually("it is told", func() bool {
		return len(r.logged("level=WARN", "removed a redemption", gone.Hash.String())) > 0
	})
	_, block = node.Redeem(t, gone, 2)
	node.Mine(2)
	r.read(block)
	if n := r.status().Redemptions; n != 2 || r.halted() {
		t.Errorf("%d redemptions after it came again, halted %t", n, r.halted())
	}
}

func TestNothingIsReadBeforeItsConfirmations(t *testing.T) {
	t.Parallel()
	node, key := attesting(t)
	depth := newRig(t, chain.Contract{RPCs: []string{node.URL}, Confirmations: 3})
	proxy := chaintest.NewProxy(t, node.URL)
	final := newRig(t, chain.Contract{RPCs: []string{proxy.URL}, Finalized: true})
	_, block := node.Redeem(t, key.attest(t), 1)
	node.Mine(2)
	depth.start()
	final.start()
	depth.read(block - 1)
	if s := depth.status(); s.Block != block-1 || s.Redemptions != 0 {
		t.Errorf("with two confirmations: %+v", s)
	}
	node.Mine(1)
	depth.eventually("the third confirmation halts", depth.halted)
	asked := func() (n int) {
		for _, q := range proxy.Asked() {
			if q.Method == "eth_getBlockByNumber" && string(q.Params[0]) == `"finalized"` {
				n++
			}
		}
		return n
	}
	before := asked()
	final.eventually("the finalized block is asked for", func() bool { return asked() > before+2 })
	if s := final.status(); s.Redemptions != 0 || final.halted() {
		t.Errorf("before the block is final: %+v", s)
	}
	node.Mine(64 - int(block)) // every 32nd block of the test's chain is final
	final.eventually("the finalized block halts", final.halted)
}

func TestARecordThatComesLateIsNoAlarm(t *testing.T) {
	t.Parallel()
	node, key := attesting(t)
	r := newRig(t, chain.Contract{RPCs: []string{node.URL}})
	late := key.attest(t)
	var asked atomic.Int64
	r.journal.asked = func(appliance.Digest) {
		if asked.Add(1) == 1 { // after the first lookup
			r.journal.append(late)
		}
	}
	_, block := node.Redeem(t, late, 1)
	r.start()
	r.read(block)
	if s := r.status(); s.Unknown != 0 || r.halted() || asked.Load() < 2 {
		t.Errorf("asked %d times: %+v", asked.Load(), s)
	}
}

func TestAJournalThatDoesNotAnswerIsNoAlarmAndHidesNothing(t *testing.T) {
	t.Parallel()
	node, key := attesting(t)
	r := newRig(t, chain.Contract{RPCs: []string{node.URL}})
	r.journal.fail(errors.New("the database does not answer"))
	_, block := node.Redeem(t, key.attest(t), 1)
	r.start()
	r.eventually("the block is read", func() bool { return r.status().Block >= block })
	r.eventually("the failure is told", func() bool {
		return len(r.logged("level=WARN", "the database does not answer")) > 0
	})
	if r.halted() || r.status().Unknown != 0 {
		t.Error("an alarm while nothing is known")
	}
	r.journal.fail(nil)
	r.eventually("the alarm comes", r.halted)
}

func TestARedemptionBecomesKnownWithItsRecord(t *testing.T) {
	t.Parallel()
	node, key := attesting(t)
	r := newRig(t, chain.Contract{RPCs: []string{node.URL}})
	lost := key.attest(t) // the journal was restored from an older copy
	node.Redeem(t, lost, 1)
	r.start()
	r.eventually("the alarm comes", r.halted)
	r.journal.append(lost)
	r.eventually("it is known", func() bool { return r.status().Unknown == 0 })

	r.stop()
	r.journal.records = nil // lost again
	r.resume()
	r.start()
	r.eventually("a start holds all against the journal again", func() bool { return r.status().Unknown == 1 })
}

func TestAttestor(t *testing.T) {
	t.Parallel()
	node, ours := chaintest.New(t), newSigner(t)
	other, retiring := newSigner(t), newSigner(t)
	r := newRig(t, chain.Contract{RPCs: []string{node.URL}})
	r.options.Signers = func() []attest.Signer { return []attest.Signer{ours, retiring} }
	r.start()
	matches := func(want bool) func() bool {
		return func() bool {
			s := r.status()
			return s.SignerMatches != nil && *s.SignerMatches == want && (r.Ready() == nil) == want
		}
	}
	for _, step := range []struct {
		what string
		do   func()
		want bool
	}{
		{"no attestor is set", func() {}, false},
		{"our signer", func() { node.SetAttestor(t, ours.Address()) }, true},
		{"another", func() { node.SetAttestor(t, other.Address()) }, false},
		{"our retiring signer", func() { node.SetAttestor(t, retiring.Address()) }, true},
		{"a contract that does not take our signatures", func() { node.SetAttestor(t, chaintest.Attestor) }, false},
		{"a contract that does", func() { node.Allow(t, ours.Address(), 1) }, true},
		{"and no more", func() { node.Allow(t, ours.Address(), 0) }, false},
	} {
		step.do()
		r.eventually(step.what, matches(step.want))
	}
	if len(r.logged("level=ERROR", "expects another attestor", other.Address().String())) == 0 {
		t.Errorf("nothing tells:\n%s", r.text())
	}
	if code := appliance.CodeOf(r.Ready()); code != appliance.CodeAttestorMismatch {
		t.Errorf("code %q", code)
	}
	node.Allow(t, ours.Address(), 1)
	node.Redeem(t, ours.attest(t), 1) // the contract asks its attestor just as the watchtower does
}

func TestOneRPCDoesNotEndReadiness(t *testing.T) {
	t.Parallel()
	node, key := attesting(t)
	liar := chaintest.NewProxy(t, node.URL)
	liar.Answer(func(q chaintest.Request) *chaintest.Reply {
		if q.Method != "eth_call" {
			return nil
		}
		return &chaintest.Reply{Result: []byte(`"0x000000000000000000000000000000000000000000000000000000000000dead"`)}
	})
	r := newRig(t, chain.Contract{RPCs: []string{liar.URL, node.URL}})
	r.options.Signers = func() []attest.Signer { return []attest.Signer{key} }
	r.start()
	r.read(node.Head(t))
	r.eventually("both were asked", func() bool {
		return slices.ContainsFunc(liar.Asked(), func(q chaintest.Request) bool { return q.Method == "eth_call" })
	})
	r.eventually("the signer matches", func() bool { m := r.status().SignerMatches; return m != nil && *m })
	if err := r.Ready(); err != nil {
		t.Error(err)
	}
}
