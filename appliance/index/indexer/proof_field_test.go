package indexer_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/common"

	"github.com/attestd/attestd/api/graphql"
	"github.com/attestd/attestd/appliance/chain/chaintest"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/follower/followertest"
	"github.com/attestd/attestd/appliance/index/indexer"
)

// proofField returns the field proof of a packet from a GraphQL endpoint; "null" if there is none.
func proofField(t *testing.T, url, packet string) string {
	t.Helper()
	query, err := json.Marshal(map[string]string{
		"query": fmt.Sprintf(`{ v2_packets(args: {p_packet_hash: %q}) { proof } }`, packet)})
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(string(query)))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var body struct {
		Data struct {
			Packets []struct{ Proof json.RawMessage } `json:"v2_packets"`
		}
	}
	if err := json.NewDecoder(answer.Body).Decode(&body); err != nil || len(body.Data.Packets) != 1 {
		t.Fatalf("packet %s: %d packets, %v", packet, len(body.Data.Packets), err)
	}
	return string(body.Data.Packets[0].Proof)
}

// provenField checks the field proof as 'attestd verify packet' does.
func provenField(t *testing.T, field string) *indexer.PacketProof {
	t.Helper()
	proof, err := indexer.ParsePacketProof([]byte(field))
	if err != nil {
		t.Fatal(err)
	}
	if err := proof.Verify(core, proof.Block.Hash); err != nil {
		t.Errorf("packet %s: %v", proof.PacketHash, err)
	}
	return proof
}

// TestTheFieldProofIsTheKeptProof asks for the proofs of packets: none is kept at first, then one, then those of all
// packets that the chain confirms. Serving them reads no chain.
func TestTheFieldProofIsTheKeptProof(t *testing.T) {
	t.Parallel()
	a, _ := newWorld(t)
	rows := sentOn(t, a, 150)
	forged := altered(t, rows[9], func(p *index.Packet) {
		p.TimeoutTimestamp = new("7")
		p.PacketHash = newParcelLike(t, *p).Hash().String()
		p.SortOrder += "x"
	})
	idx := openIndex(t)
	if _, err := idx.Write(t.Context(), index.Batch{Rows: append(rows, forged)}); err != nil {
		t.Fatal(err)
	}
	proxy := chaintest.NewProxy(t, a.URL)
	c := chainsOf(a)[0]
	c.RPCs = []string{proxy.URL}
	v := newVerifier(t, c)
	url := followertest.Serve(t, graphql.Options{Index: idx})
	if field := proofField(t, url, rows[3].Key()); field != "null" {
		t.Errorf("no proof is kept, and the field is %s", field)
	}
	made, err := v.Prove(t.Context(), idx, rows[3].Key())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.Prove(t.Context(), idx, forged.Key()); err != nil {
		t.Fatal(err)
	}
	a.Emit(t, commit(common.HexToHash(rows[3].Key()), indexer.CommitmentDone))

	proxy.Answer(func(q chaintest.Request) *chaintest.Reply {
		t.Errorf("a query has called %s", q.Method)
		return nil
	})
	field := proofField(t, url, rows[3].Key())
	if proof := provenField(t, field); proof.Block != made.Block || proof.Value != indexer.CommitmentSent ||
		proof.PacketHash.String() != rows[3].Key() {
		t.Errorf("the field is %s", field)
	}
	for _, row := range []index.Row{rows[4], forged} {
		if field := proofField(t, url, row.Key()); field != "null" {
			t.Errorf("packet %s has the proof %s", row.Key(), field)
		}
	}
	node := made.StorageProof[len(made.StorageProof)-1].String()
	changed, err := indexer.ParsePacketProof([]byte(strings.Replace(field, node, node[:len(node)-2]+"77", 1)))
	if err != nil {
		t.Fatal(err)
	}
	fault := new(indexer.ProofError)
	if err := changed.Verify(core, made.Block.Hash); !errors.As(err, &fault) || fault.Fault != indexer.FaultNode {
		t.Errorf("with a changed node: %v", err)
	}

	proxy.Answer(nil)
	report, err := newVerifier(t, c).CheckReplica(t.Context(), indexer.ReplicaCheck{Index: idx, Chain: a.id, Keep: true})
	if err != nil || report.Known != len(rows) || report.Unknown != 1 {
		t.Fatalf("%+v, %v", report, err)
	}
	for i, row := range rows {
		proof, want := provenField(t, proofField(t, url, row.Key())), indexer.CommitmentSent
		if i == 3 {
			want = indexer.CommitmentDone // the newer proof replaces the earlier one
		}
		if proof.Value != want {
			t.Errorf("packet %d has the value %s", i, proof.Value)
		}
	}
	if field := proofField(t, url, forged.Key()); field != "null" {
		t.Errorf("the forged packet has the proof %s", field)
	}
}

// TestAPacketWhoseSendingIsUndoneLosesItsProof reorganises the chain of a packet whose proof is kept.
func TestAPacketWhoseSendingIsUndoneLosesItsProof(t *testing.T) {
	t.Parallel()
	a, b := newWorld(t)
	idx := openIndex(t)
	x := newIndexer(t, idx, chainsOf(a, b))
	run(t, x)
	settled(t, idx, x, a, b)
	p := newParcel(a)
	hash := p.packet.Hash()
	a.emit(t, emission{evm: commit(hash, indexer.CommitmentSent)}, p.send())
	settled(t, idx, x, a, b)
	if _, err := newVerifier(t, chainsOf(a)...).Prove(t.Context(), idx, hash.String()); err != nil {
		t.Fatal(err)
	}
	kept := func() (kept bool) {
		err := idx.View(t.Context(), func(snap index.Snapshot) (err error) {
			_, kept, err = snap.Position(t.Context(), index.ProofPosition(hash.String()))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return kept
	}
	if !kept() {
		t.Error("the proof is not kept")
	}
	a.Reorganise(t, 1)
	settled(t, idx, x, a, b)
	if kept() {
		t.Error("the proof is kept although the packet was never sent")
	}
}
