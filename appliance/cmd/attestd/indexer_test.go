package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance/chain/chaintest"
	"github.com/attestd/attestd/appliance/chain/comettest"
	"github.com/attestd/attestd/appliance/daemontest"
)

// wasmZkgm is the contract for transfers of the CosmWasm chain.
const wasmZkgm = "union1336jj8ertl8h7rdvnz4dh5rqahd09cy0x43guhsxx6xyrztx292qpe64fh"

// realPacket returns a PacketSend of Sepolia on channel 25.
func realPacket(t *testing.T) chaintest.Emission {
	t.Helper()
	text, err := os.ReadFile("../../index/indexer/testdata/sample.json")
	if err != nil {
		t.Fatal(err)
	}
	var sample struct{ Log types.Log }
	if err := json.Unmarshal(text, &sample); err != nil {
		t.Fatal(err)
	}
	return chaintest.Emission{Topics: sample.Log.Topics, Data: sample.Log.Data}
}

// TestChainsAreAnsweredFrom starts a daemon with graphql.source chains. The chain has a real packet of Sepolia, which a
// GraphQL query returns. The commands show the chain, and read its blocks again. A second chain is a CosmWasm chain.
func TestChainsAreAnsweredFrom(t *testing.T) {
	t.Parallel()
	node := chaintest.New(t)
	text := func(s string) chaintest.Argument { return chaintest.Argument{Type: "string", Value: s} }
	number := func(n uint32) chaintest.Argument { return chaintest.Argument{Type: "uint32", Value: n} }
	node.Emit(t,
		chaintest.Event("CreateClient(string,string,uint32,string)", []common.Hash{{}, chaintest.Word(1)}, text("gno"),
			text("union-1")),
		chaintest.Event("ConnectionOpenTry(uint32,uint32,uint32,uint32)", []common.Hash{chaintest.Word(2),
			chaintest.Word(1)}, number(3), number(4)),
		chaintest.Event("ChannelOpenTry(address,uint32,bytes,uint32,uint32,string,string)",
			[]common.Hash{{31: 1}, chaintest.Word(25), {}}, chaintest.Argument{Type: "bytes", Value: []byte(wasmZkgm)},
			number(1), number(2), text("ucs03-zkgm-0")),
		realPacket(t))
	wasm := comettest.New(t, "union-1")
	wasm.Emit(t, comettest.NewEvent("create_client", "client_id", "7", "client_type", "trusted/evm",
		"counterparty_chain_id", "1337"))
	d := daemontest.New(t)
	d.Configure("ATTESTD_GRAPHQL_SOURCE=chains", "ATTESTD_INDEXER_POLL_INTERVAL=100ms", fmt.Sprintf(
		`ATTESTD_INDEXER_CHAINS=[{"id": "ethereum.1337", "rpcs": [%q], "core": %q, "zkgm": %q, "confirmations": 0},`+
			`{"id": "union.union-1", "rpcs": [%q], "core": %q, "zkgm": %q, "confirmations": 0}]`, node.URL,
		chaintest.Emitter, common.Address{19: 1}, wasm.URL, comettest.Core, wasmZkgm))
	d.Start(t)
	defer func() { d.Kill(t) }()
	daemontest.Await(t, "the chain is indexed", func() (bool, string) {
		var s wire.IndexerStatus
		out := d.Run(t, "indexer", "status", "--output", "json")
		err := json.Unmarshal([]byte(out), &s)
		return err == nil && len(s.Chains) == 2 && s.Chains[0].Events == 4 && s.Chains[0].Lag == 0 &&
			s.Chains[1].Events == 1 && s.Chains[1].Lag == 0, out
	})
	query, err := json.Marshal(map[string]string{"query": `{ v2_transfers {
		packet_hash status base_token_symbol receiver_display packet_shape
		destination_chain { universal_chain_id } traces { type height } } v2_stats_count { name value }
		v2_chains { universal_chain_id rpc_type addr_prefix } v2_clients { client_id counterparty_universal_chain_id } }`})
	if err != nil {
		t.Fatal(err)
	}
	_, answer := d.Ask(t, http.MethodPost, "/v1/graphql", "", bytes.NewReader(query))
	for _, want := range []string{
		`"packet_hash":"0x7ff1806fe5cb3c704e9d1a4061d7cdfc67beefeaf6fe852d6ace7e8e85da8841"`, `"status":"PACKET_SEND"`,
		`"base_token_symbol":"ugnot"`,
		`"receiver_display":"g1jg8mtutu`, `"packet_shape":"transfer_v2"`, `"universal_chain_id":"union.union-1"`,
		`{"universal_chain_id":"union.union-1","rpc_type":"cosmos","addr_prefix":"union"}`,
		`{"client_id":7,"counterparty_universal_chain_id":"ethereum.1337"}`, `{"type":"PACKET_SEND","height":"1"}`, `{"name":"total_transfers","value":"1"}`,
	} {
		if !strings.Contains(answer, want) {
			t.Errorf("the answer lacks %s: %s", want, answer)
		}
	}
	if out := d.Run(t, "indexer", "status"); !strings.Contains(out, "ethereum.1337") ||
		strings.Contains(out, "left out") {
		t.Errorf("status:\n%s", out)
	}
	d.Run(t, "indexer", "rescan", "--chain", "ethereum.1337", "--from", "0", "--to", "1")
	daemontest.Await(t, "the rescan is over", func() (bool, string) {
		out := d.Run(t, "indexer", "status", "--output", "json")
		return !strings.Contains(out, `"rescan"`), out
	})
	out := d.Run(t, "doctor", "--output", "json")
	for _, want := range []string{"ethereum.1337: indexed to block 1, 0 blocks behind the head; 4 events",
		"union.union-1: indexed to block 2, 0 blocks behind the head; 1 events"} {
		if !strings.Contains(out, want) {
			t.Errorf("doctor lacks %s:\n%s", want, out)
		}
	}
}
