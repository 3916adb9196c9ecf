package indexer_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/attestd/attestd/appliance/chain"
	"github.com/attestd/attestd/appliance/chain/chaintest"
	"github.com/attestd/attestd/appliance/chain/comettest"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/indexer"
)

// hideWasm makes a proxy leave out the last event of each transaction, in the answers to some methods.
func hideWasm(p *chaintest.Proxy, methods string) {
	hide := func(result any) {
		if r, ok := result.(map[string]any); ok {
			if events, ok := r["events"].([]any); ok && len(events) > 0 {
				r["events"] = events[:len(events)-1]
			}
		}
	}
	p.Answer(func(q chaintest.Request) *chaintest.Reply {
		var answer map[string]any
		if !strings.Contains(methods, q.Method) || json.Unmarshal(q.Pass(), &answer) != nil {
			return nil
		}
		results, _ := answer["txs_results"].([]any)
		for _, r := range results {
			hide(r)
		}
		found, _ := answer["txs"].([]any)
		for _, tx := range found {
			hide(tx.(map[string]any)["tx_result"])
		}
		text, err := json.Marshal(answer)
		if err != nil {
			return nil
		}
		return &chaintest.Reply{Result: text}
	})
}

// TestACometNodeThatHidesEventsIsOutvoted has one RPC of three leave out events in all of its answers.
func TestACometNodeThatHidesEventsIsOutvoted(t *testing.T) {
	t.Parallel()
	a, b := newMixedWorld(t)
	all := exchange(t, a, b, 20)
	liar := chaintest.NewProxy(t, b.comet.URL)
	hideWasm(liar, "tx_search block_results")
	chains := chainsOf(a, b)
	chains[1].RPCs = []string{liar.URL, b.comet.URL, chaintest.NewProxy(t, b.comet.URL).URL}
	idx := openIndex(t)
	x := newIndexer(t, idx, chains)
	run(t, x)
	caughtUp(t, x, a, b)
	sameRows(t, rowsOf(t, idx, index.PacketType, index.TransferType), expected(t, all))
	rpcs := x.Status()[1].RPCs
	if rpcs[0].Disagreements == 0 || rpcs[1].Disagreements+rpcs[2].Disagreements != 0 {
		t.Errorf("the RPCs are %+v", rpcs)
	}
}

// TestACometNodeThatLosesEventsIsReadAgain has the only RPC lose events in one of its answers. The chain waits, and is
// read when the node has the events again.
func TestACometNodeThatLosesEventsIsReadAgain(t *testing.T) {
	t.Parallel()
	a, b := newMixedWorld(t)
	all := exchange(t, a, b, 20)
	loses := chaintest.NewProxy(t, b.comet.URL)
	hideWasm(loses, "tx_search")
	chains := chainsOf(a, b)
	chains[1].RPCs = []string{loses.URL}
	idx := openIndex(t)
	x := newIndexer(t, idx, chains)
	run(t, x)
	eventually(t, "the loss is shown", func() bool {
		return strings.Contains(x.Status()[1].Error, "has other events in tx_search than in block_results: the answer is "+
			"incomplete")
	})
	loses.Answer(nil)
	caughtUp(t, x, a, b)
	sameRows(t, rowsOf(t, idx, index.PacketType, index.TransferType), expected(t, all))
}

// TestAWasmEventThatIsMalformedIsRefused decodes events with a mistake in each.
func TestAWasmEventThatIsMalformedIsRefused(t *testing.T) {
	t.Parallel()
	b := &side{comet: new(comettest.Node), id: "union.union-1", number: 3}
	b.other = &side{id: "ethereum.1001", number: 1}
	p := newParcel(b)
	for _, c := range []struct {
		event      comettest.Event
		key, value string
		want       string
	}{
		{p.send().wasm, "", "", ""},
		{p.send().wasm, "packet_data", "0x12", "the packet's bytes have the hash 0x"},
		{p.send().wasm, "channel_id", "5", "the packet's bytes have the hash 0x"},
		{p.send().wasm, "channel_id", "x", `attribute channel_id is "x", which is not a number of 32 bits`},
		{p.send().wasm, "packet_hash", "0x12", "attribute packet_hash has 1 bytes instead of 32"},
		{p.receive().wasm, "maker_msg", "0g", `attribute maker_msg is "0g", which is not hex`},
		{comettest.NewEvent("packet_ack", "channel_id", "1"), "", "", "attribute packet_hash is missing"},
	} {
		e := chain.WasmEvent{Name: c.event.Name}
		for _, a := range c.event.Attributes {
			if a.Key == c.key {
				a.Value = c.value
			}
			e.Attributes = append(e.Attributes, chain.Attribute{Key: a.Key, Value: a.Value})
		}
		_, ok, err := indexer.DecodeWasm(e)
		if !ok || (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s with %s %q: %t, %v; want %s", c.event.Name, c.key, c.value, ok, err, c.want)
		}
	}
	if _, ok, err := indexer.DecodeWasm(chain.WasmEvent{Name: "commit_packet"}); ok || err != nil {
		t.Errorf("an event that is not read: %t, %v", ok, err)
	}
}
