package indexer_test

import (
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/common"

	"github.com/attestd/attestd/appliance/chain"
	"github.com/attestd/attestd/appliance/chain/chaintest"
	"github.com/attestd/attestd/appliance/index/indexer"
)

// TestAProofShowsThePacketsCommitment asks a go-ethereum node for proofs of slots, and checks them against the state
// root of a header.
func TestAProofShowsThePacketsCommitment(t *testing.T) {
	t.Parallel()
	node := chaintest.New(t)
	sent := readSample(t)
	e, _, err := indexer.Decode(sent.Log)
	if err != nil {
		t.Fatal(err)
	}
	slot := indexer.PacketSlot(e.PacketHash)
	node.Emit(t, chaintest.Emission{Topics: []common.Hash{slot, indexer.CommitmentSent}, Store: true},
		chaintest.Emission{Topics: []common.Hash{{7}, {8}}, Store: true})
	rpcs, err := chain.Dial([]string{node.URL}, "test")
	if err != nil {
		t.Fatal(err)
	}
	defer rpcs[0].Close()
	_, root, err := rpcs[0].StateRoot(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	core := common.Address(chaintest.Emitter)
	prove := func(slot common.Hash) (p indexer.Proof) {
		if err := rpcs[0].Proof(t.Context(), core, slot, 1, &p); err != nil {
			t.Fatal(err)
		}
		return p
	}
	proof := prove(slot)
	if value, err := proof.Verify(root, core, slot); err != nil || value != indexer.CommitmentSent {
		t.Errorf("the commitment is %s, %v", value, err)
	}
	other := common.Hash{9}
	if value, err := prove(other).Verify(root, core, other); err != nil || value != (common.Hash{}) {
		t.Errorf("an empty slot is %s, %v", value, err)
	}
	if value, err := proof.Verify(common.Hash{1}, core, slot); err == nil {
		t.Errorf("against another state root: %s", value)
	}
	if value, err := proof.Verify(root, core, common.Hash{7}); err == nil {
		t.Errorf("the proof of another slot: %s", value)
	}
	nodes := proof.Storage[0].Proof
	nodes[len(nodes)-1][3] ^= 1
	if _, err := proof.Verify(root, core, slot); err == nil || !strings.Contains(err.Error(), "the storage proof") {
		t.Errorf("a changed proof: %v", err)
	}
}
