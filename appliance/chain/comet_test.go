package chain_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/chain"
	"github.com/attestd/attestd/appliance/chain/chaintest"
	"github.com/attestd/attestd/appliance/chain/comettest"
)

func dialComet(t *testing.T, url string) *chain.Comet {
	t.Helper()
	rpcs, err := chain.DialComet([]string{url}, "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(rpcs[0].Close)
	return rpcs[0]
}

func numbered(n int) comettest.Event { return comettest.NewEvent("packet_recv", "n", fmt.Sprint(n)) }

// shown returns events as text: place, transaction and number.
func shown(found chain.WasmEvents, blocks ...comettest.Block) (lines []string) {
	of := map[appliance.Digest]string{{}: "none"}
	for _, b := range blocks {
		for i, hash := range b.Transactions {
			of[hash] = fmt.Sprint(i)
		}
	}
	for _, e := range found.Events {
		n, _ := e.Get("n")
		lines = append(lines, fmt.Sprintf("%d/%d %s tx %s n %s", e.Block.Number, e.Index, e.Name, of[e.Transaction], n))
	}
	return lines
}

// TestEventsOfACosmWasmChain reads the events of two blocks of a CometBFT node. Those of another contract and of failed
// transactions are left out, and count as the chain counts them. The first block needs several pages.
func TestEventsOfACosmWasmChain(t *testing.T) {
	t.Parallel()
	n := comettest.New(t, "union-1")
	foreign := numbered(7)
	foreign.Contract = "union1other"
	var txs []comettest.Transaction
	var want []string
	for i := range 250 {
		if i%2 == 1 {
			txs = append(txs, comettest.Transaction{Code: 5, Events: []comettest.Event{numbered(i)}})
			continue
		}
		txs = append(txs, comettest.Transaction{Events: []comettest.Event{foreign, numbered(i)}})
		want = append(want, fmt.Sprintf("2/%d packet_recv tx %d n %d", len(want)*2+1, i, i))
	}
	first := n.Make(t, nil, txs...)
	second := n.Make(t, []comettest.Event{foreign, numbered(1000)})
	want = append(want, "3/1 packet_recv tx none n 1000")
	rpc := dialComet(t, n.URL)
	found, err := rpc.Events(t.Context(), []string{comettest.Core}, 1, 3)
	if err != nil {
		t.Fatal(err)
	}
	if got := shown(found, first, second); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("the events are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if b := found.Last; b.Number != 3 || b.Hash != second.Hash || !b.Time.Equal(second.Time) {
		t.Errorf("the last block is %+v, not %+v", b, second)
	}
	for range 40 { // more than an answer of the method blockchain has
		second = n.Make(t, nil)
	}
	found, err = rpc.Events(t.Context(), []string{comettest.Core}, 2, second.Height)
	if err != nil || len(found.Events) != len(want) || found.Last.Hash != second.Hash {
		t.Errorf("%d events to block %d, %v", len(found.Events), found.Last.Number, err)
	}
}

// TestACosmWasmChain asks a CometBFT node about its chain.
func TestACosmWasmChain(t *testing.T) {
	t.Parallel()
	n := comettest.New(t, "union-1")
	made := n.Emit(t, numbered(1))
	rpc := dialComet(t, n.URL)
	if id, err := rpc.ChainID(t.Context()); err != nil || id != "union-1" {
		t.Errorf("the chain is %q, %v", id, err)
	}
	if has, err := rpc.HasContract(t.Context(), comettest.Core); err != nil || !has {
		t.Errorf("the contract exists: %t, %v", has, err)
	}
	if has, err := rpc.HasContract(t.Context(), "union1other"); err != nil || has {
		t.Errorf("another contract exists: %t, %v", has, err)
	}
	for _, c := range []struct {
		finalized     bool
		confirmations uint64
		want          uint64
		ok            bool
	}{{false, 0, 2, true}, {false, 1, 1, true}, {true, 0, 1, true}, {false, 2, 0, false}} {
		if at, ok, err := rpc.Safe(t.Context(), c.finalized, c.confirmations); err != nil || at != c.want || ok != c.ok {
			t.Errorf("%+v: %d, %t, %v", c, at, ok, err)
		}
	}
	if b, err := rpc.Block(t.Context(), made.Height); err != nil || b.Hash != made.Hash {
		t.Errorf("block %+v, %v", b, err)
	}
	for _, ask := range []func() error{
		func() error { _, err := rpc.Block(t.Context(), 3); return err },
		func() error { _, err := rpc.Events(t.Context(), []string{comettest.Core}, 2, 3); return err },
	} {
		err := ask()
		if err == nil || chain.TooLarge(err) || !strings.Contains(err.Error(), "the RPC does not have that block") {
			t.Errorf("a block that does not exist: %v", err)
		}
	}
}

// forge makes a proxy change the node's answers to a method.
func forge(p *chaintest.Proxy, method string, change func(answer map[string]any)) {
	p.Answer(func(q chaintest.Request) *chaintest.Reply {
		if q.Method != method {
			return nil
		}
		var answer map[string]any
		if json.Unmarshal(q.Pass(), &answer) != nil {
			return nil
		}
		change(answer)
		result, err := json.Marshal(answer)
		if err != nil {
			return nil
		}
		return &chaintest.Reply{Result: result}
	})
}

// withoutLast removes the last element of a list.
func withoutLast(in map[string]any, list string) {
	if all, ok := in[list].([]any); ok && len(all) > 0 {
		in[list] = all[:len(all)-1]
	}
}

// TestANodeThatLosesEventsIsRefused has a node whose two answers about a block differ. A smaller query may succeed, and
// the node is believed when it has all again.
func TestANodeThatLosesEventsIsRefused(t *testing.T) {
	t.Parallel()
	n := comettest.New(t, "union-1")
	n.Make(t, nil, comettest.Transaction{Events: []comettest.Event{numbered(1)}}, comettest.Transaction{Code: 5},
		comettest.Transaction{Events: []comettest.Event{numbered(2), numbered(3)}})
	for _, c := range []struct {
		method, want string
		change       func(answer map[string]any)
	}{
		{"tx_search", "block 2 has 2 successful transactions, tx_search returned 1",
			func(answer map[string]any) { withoutLast(answer, "txs"); answer["total_count"] = "2" }},
		{"tx_search", "block 2 has 2 successful transactions, tx_search returned 0",
			func(answer map[string]any) { answer["txs"], answer["total_count"] = []any{}, "0" }},
		{"tx_search", "transaction 2 of block 2 has other events in tx_search than in block_results",
			func(answer map[string]any) {
				txs := answer["txs"].([]any)
				withoutLast(txs[2].(map[string]any)["tx_result"].(map[string]any), "events")
			}},
		{"block_results", "transaction 2 of block 2 has other events in tx_search than in block_results",
			func(answer map[string]any) {
				txs, _ := answer["txs_results"].([]any)
				withoutLast(txs[2].(map[string]any), "events")
			}},
		{"block_results", "block 2 has 3 transactions, block_results returned 2",
			func(answer map[string]any) { withoutLast(answer, "txs_results") }},
	} {
		p := chaintest.NewProxy(t, n.URL)
		forge(p, c.method, c.change)
		rpc := dialComet(t, p.URL)
		_, err := rpc.Events(t.Context(), []string{comettest.Core}, 2, 2)
		if err == nil || !strings.Contains(err.Error(), c.want+": the answer is incomplete") || !chain.TooLarge(err) {
			t.Errorf("%s: %v, want %s", c.method, err, c.want)
		}
		p.Answer(nil)
		if found, err := rpc.Events(t.Context(), []string{comettest.Core}, 2, 2); err != nil || len(found.Events) != 3 {
			t.Errorf("when it has all again: %d events, %v", len(found.Events), err)
		}
	}
}

// A node that repeats a page endlessly is refused.
func TestANodeWithEndlessPagesIsRefused(t *testing.T) {
	t.Parallel()
	n := comettest.New(t, "union-1")
	n.Make(t, nil, comettest.Transaction{Events: []comettest.Event{numbered(1)}})
	p := chaintest.NewProxy(t, n.URL)
	var page json.RawMessage // of the only block
	p.Answer(func(q chaintest.Request) *chaintest.Reply {
		if q.Method != "tx_search" {
			return nil
		}
		if page == nil {
			page = bytes.Replace(q.Pass(), []byte(`"total_count":"1"`), []byte(`"total_count":"1000000"`), 1)
		}
		return &chaintest.Reply{Result: page}
	})
	_, err := dialComet(t, p.URL).Events(t.Context(), []string{comettest.Core}, 2, 2)
	const want = "block 2 has 1 transactions, tx_search returned 103: the answer is incomplete"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
}

// TestAThrottledCallIsRepeated has a node that limits the request rate in the middle of a range.
func TestAThrottledCallIsRepeated(t *testing.T) {
	t.Parallel()
	n := comettest.New(t, "union-1")
	n.Emit(t, numbered(1))
	p := chaintest.NewProxy(t, n.URL)
	var calls atomic.Int32
	p.Answer(func(q chaintest.Request) *chaintest.Reply {
		if q.Method == "tx_search" && calls.Add(1) == 1 {
			return &chaintest.Reply{Status: http.StatusTooManyRequests}
		}
		return nil
	})
	found, err := dialComet(t, p.URL).Events(t.Context(), []string{comettest.Core}, 1, 2)
	if err != nil || len(found.Events) != 1 || calls.Load() != 2 {
		t.Errorf("%d events after %d calls, %v", len(found.Events), calls.Load(), err)
	}
}
