package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/attestd/attestd/api/graphql"
	"github.com/attestd/attestd/appliance/chain/chaintest"
	"github.com/attestd/attestd/appliance/daemontest"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/follower/followertest"
	"github.com/attestd/attestd/appliance/index/indexer"
	"github.com/attestd/attestd/store/replica"
)

// realPacketRow returns the row of realPacket with another timeout, unless that is 0.
func realPacketRow(t *testing.T, timeout uint64) index.Row {
	t.Helper()
	e := realPacket(t)
	decoded, _, err := indexer.Decode(types.Log{Topics: e.Topics, Data: e.Data})
	if err != nil {
		t.Fatal(err)
	}
	p := decoded.Packet
	if timeout > 0 {
		p.TimeoutTimestamp = timeout
	}
	sent := time.Date(2026, 5, 20, 12, 0, 0, 0, time.UTC)
	text, err := json.Marshal(p.TimeoutTimestamp)
	if err != nil {
		t.Fatal(err)
	}
	row, err := index.NewRow(index.Packet{
		SortOrder: "20260520-" + p.Hash().String(), PacketHash: p.Hash().String(), ChannelVersion: new("ucs03-zkgm-0"),
		SourceUniversalChainID: "ethereum.1", DestUniversalChainID: "union.union-1",
		SourceChannelID: new(int32(p.SourceChannel)), DestinationChannelID: new(int32(p.DestinationChannel)),
		TimeoutHeight: new("0"), TimeoutTimestamp: new(string(text)), Data: new("0x" + common.Bytes2Hex(p.Data)),
		SendTimestamp: &sent, SendHeight: new("1"),
	})
	if err != nil {
		t.Fatal(err)
	}
	return row
}

// TestTheCommandsOfProofs types the commands of docs/proofs.md against a daemon with graphql.verify chain, and then
// without a daemon. The upstream has a real packet and a forged one. The chain has the commitment of the real one.
func TestTheCommandsOfProofs(t *testing.T) {
	t.Parallel()
	node := chaintest.NewChain(t, 1)
	honest, forged := realPacketRow(t, 0), realPacketRow(t, 5)
	node.Emit(t, chaintest.Emission{Store: true, Topics: []common.Hash{
		indexer.PacketSlot(common.HexToHash(honest.Key())), indexer.CommitmentSent}})
	idx := followertest.OpenReplica(t, filepath.Join(t.TempDir(), "upstream.db"), replica.Options{})
	if _, err := idx.Write(t.Context(), index.Batch{Rows: []index.Row{honest, forged}}); err != nil {
		t.Fatal(err)
	}
	d := daemontest.New(t)
	d.Configure("ATTESTD_GRAPHQL_UPSTREAM="+followertest.Serve(t, graphql.Options{Index: idx}),
		"ATTESTD_GRAPHQL_VERIFY=chain", "ATTESTD_GRAPHQL_POLL_INTERVAL=100ms",
		`ATTESTD_INDEXER_CHAINS=[{"id": "ethereum.1", "rpcs": ["`+node.URL+`"], "core": "`+chaintest.Emitter.String()+
			`", "confirmations": 0}]`)
	d.Start(t)
	daemontest.Await(t, "one packet is served, and one is quarantined", func() (bool, string) {
		out := d.Run(t, "replica", "status", "--output", "json")
		var s struct {
			Rows       map[string]int
			Unverified int
		}
		return json.Unmarshal([]byte(out), &s) == nil && s.Rows["packet"] == 1 && s.Unverified == 1, out
	})
	if out := d.Fails(t, "replica", "verify"); !strings.Contains(out,
		"its chain does not confirm it: the core contract of ethereum.1 does not know it in block 1") {
		t.Errorf("replica verify:\n%s", out)
	}
	if out := d.Fails(t, "replica", "proof", forged.Key()); !strings.Contains(out, "the replica does not have packet") {
		t.Errorf("the proof of the forged packet:\n%s", out)
	}
	typeProofs(t, d)
	verifyProofField(t, d)
	d.Kill(t)
	typeProofs(t, d)
	file := filepath.Join(d.Dir, "packet.json")
	if out := d.Fails(t, "verify", "packet", file); !strings.Contains(out, "NOT PROVEN") {
		t.Errorf("without a block's hash:\n%s", out)
	}
	if out := d.Fails(t, "verify", "packet", file, "--block-hash", common.Hash{5}.String()); !strings.Contains(out,
		"BAD: wrong block hash: the proof is about block 0x") {
		t.Errorf("with another block's hash:\n%s", out)
	}
	if out := d.Fails(t, "verify", "packet", file, "--core", common.Address{5}.String()); !strings.Contains(out,
		"BAD: wrong contract") {
		t.Errorf("with another contract:\n%s", out)
	}
	if out := d.Fails(t, "replica", "verify", "--from", "5"); !strings.Contains(out, "--from needs --chain") {
		t.Errorf("--from without --chain:\n%s", out)
	}
}

// verifyProofField checks the field proof of the only packet with 'attestd verify packet', and with a changed node.
func verifyProofField(t *testing.T, d *daemontest.Daemon) {
	t.Helper()
	_, answer := d.Ask(t, http.MethodPost, "/v1/graphql", "", strings.NewReader(`{"query": "{ v2_packets { proof } }"}`))
	var served struct {
		Data struct {
			Packets []struct{ Proof json.RawMessage } `json:"v2_packets"`
		}
	}
	if err := json.Unmarshal([]byte(answer), &served); err != nil || len(served.Data.Packets) != 1 {
		t.Fatalf("%v: %s", err, answer)
	}
	field := served.Data.Packets[0].Proof
	proof, err := indexer.ParsePacketProof(field)
	if err != nil {
		t.Fatal(err)
	}
	verify := func(content []byte) []string {
		file := filepath.Join(d.Dir, "field.json")
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return []string{"verify", "packet", file, "--block-hash", proof.Block.Hash.String()}
	}
	if out := d.Run(t, verify(field)...); !strings.Contains(out, "GOOD: the chain knows the packet.") {
		t.Errorf("the field proof:\n%s", out)
	}
	proof.StorageProof[0][9] ^= 1
	changed, err := json.Marshal(proof)
	if err != nil {
		t.Fatal(err)
	}
	if out := d.Fails(t, verify(changed)...); !strings.Contains(out, "BAD: missing node") {
		t.Errorf("with a changed node:\n%s", out)
	}
}

// typeProofs types the commands of docs/proofs.md. The elided block hash is taken from the proof.
func typeProofs(t *testing.T, d *daemontest.Daemon) {
	t.Helper()
	page, err := os.ReadFile("../../../docs/proofs.md")
	if err != nil {
		t.Fatal(err)
	}
	said := ""
	file := filepath.Join(d.Dir, "packet.json")
	for _, line := range regexp.MustCompile(`(?m)^[#$] attestd (.*)$`).FindAllStringSubmatch(string(page), -1) {
		args := strings.Fields(line[1])
		for i, arg := range args {
			switch arg {
			case "packet.json":
				args[i] = file
			case "0x…":
				var proof struct{ Block indexer.ProvenBlock }
				text, err := os.ReadFile(file)
				if err == nil {
					err = json.Unmarshal(text, &proof)
				}
				if err != nil {
					t.Fatal(err)
				}
				args[i] = proof.Block.Hash.String()
			}
		}
		said += d.Run(t, args...)
	}
	for _, want := range []string{"The chain confirms each packet.", "GOOD: the chain knows the packet."} {
		if !strings.Contains(said, want) {
			t.Errorf("the commands do not say %q:\n%s", want, said)
		}
	}
}
