package indexer_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/core/types"

	"github.com/attestd/attestd/appliance/chain/chaintest"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/indexer"
)

// lie makes a proxy change its answers to eth_getLogs.
func lie(p *chaintest.Proxy, change func([]types.Log) []types.Log) {
	p.Answer(func(q chaintest.Request) *chaintest.Reply {
		if q.Method != "eth_getLogs" {
			return nil
		}
		var logs []types.Log
		if json.Unmarshal(q.Pass(), &logs) != nil {
			return nil
		}
		result, err := json.Marshal(change(logs))
		if err != nil {
			return nil
		}
		return &chaintest.Reply{Result: result}
	})
}

// hide leaves out the last event.
func hide(logs []types.Log) []types.Log { return logs[:max(0, len(logs)-1)] }

// invent repeats the last event in the next place.
func invent(logs []types.Log) []types.Log {
	if len(logs) == 0 {
		return logs
	}
	more := logs[len(logs)-1]
	more.Index++
	return append(logs, more)
}

// TestAnRPCThatHidesOrInventsEventsIsOutvoted has one RPC of three lie.
func TestAnRPCThatHidesOrInventsEventsIsOutvoted(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func([]types.Log) []types.Log{"hides": hide, "invents": invent} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := newWorld(t)
			all := exchange(t, a, b, 20)
			honest, liar := chaintest.NewProxy(t, a.URL), chaintest.NewProxy(t, a.URL)
			lie(liar, change)
			chains := chainsOf(a, b)
			chains[0].RPCs = []string{liar.URL, a.URL, honest.URL}
			idx := openIndex(t)
			x := newIndexer(t, idx, chains)
			run(t, x)
			caughtUp(t, x, a, b)
			sameRows(t, rowsOf(t, idx, index.PacketType, index.TransferType), expected(t, all))
			rpcs := x.Status()[0].RPCs
			if rpcs[0].Disagreements == 0 || rpcs[1].Disagreements+rpcs[2].Disagreements != 0 {
				t.Errorf("the RPCs are %+v", rpcs)
			}
		})
	}
}

// TestOfTwoRPCsThatDisagreeNeitherIsBelieved stops a chain, and not the other one.
func TestOfTwoRPCsThatDisagreeNeitherIsBelieved(t *testing.T) {
	t.Parallel()
	a, b := newWorld(t)
	exchange(t, a, b, 20)
	liar := chaintest.NewProxy(t, a.URL)
	lie(liar, hide)
	chains := chainsOf(a, b)
	chains[0].RPCs = []string{liar.URL, a.URL}
	idx := openIndex(t)
	x := newIndexer(t, idx, chains)
	run(t, x)
	eventually(t, "the disagreement is shown", func() bool {
		return strings.Contains(x.Status()[0].Error, "the RPCs disagree on the events of blocks 0 to ")
	})
	eventually(t, "the other chain is read", func() bool { return x.Status()[1].Indexed == b.Head(t) })
	for _, line := range rowsOf(t, idx, index.PacketType) {
		if strings.Contains(line, `"source_universal_chain_id":"ethereum.1001"`) {
			t.Errorf("a packet of the disputed chain: %s", line)
		}
	}
	liar.Answer(nil)
	caughtUp(t, x, a, b)
}

// TestAnRPCThatIsAwayStopsNothing has one RPC of three refuse everything, and one that serves another chain.
func TestAnRPCThatIsAwayStopsNothing(t *testing.T) {
	t.Parallel()
	a, b := newWorld(t)
	all := exchange(t, a, b, 20)
	away := chaintest.NewProxy(t, a.URL)
	away.Answer(func(chaintest.Request) *chaintest.Reply { return &chaintest.Reply{Status: 502} })
	chains := chainsOf(a, b)
	chains[0].RPCs = []string{away.URL, a.URL, chaintest.NewProxy(t, a.URL).URL}
	chains[1].RPCs = []string{a.URL, b.URL, chaintest.NewProxy(t, b.URL).URL}
	idx := openIndex(t)
	x := newIndexer(t, idx, chains)
	run(t, x)
	caughtUp(t, x, a, b)
	sameRows(t, rowsOf(t, idx, index.PacketType, index.TransferType), expected(t, all))
	if s := x.Status()[1].RPCs[0]; s.Error != "the RPC serves chain 1001, not 1002" {
		t.Errorf("the RPC of another chain: %+v", s)
	}
	if s := x.Status()[0].RPCs[0]; !strings.Contains(s.Error, "502") {
		t.Errorf("the RPC that is away: %+v", s)
	}
}

// TestARangeThatARPCRefusesIsHalved has a provider that allows three blocks.
func TestARangeThatARPCRefusesIsHalved(t *testing.T) {
	t.Parallel()
	a, b := newWorld(t)
	all := exchange(t, a, b, 20)
	a.Mine(50)
	narrow := chaintest.NewProxy(t, a.URL)
	narrow.Answer(func(q chaintest.Request) *chaintest.Reply {
		if from, to, ok := q.Blocks(); ok && to-from >= 3 {
			return &chaintest.Reply{Error: "query exceeds max block range 3"}
		}
		return nil
	})
	chains := chainsOf(a, b)
	chains[0].RPCs = []string{narrow.URL}
	idx := openIndex(t)
	x := newIndexer(t, idx, chains)
	run(t, x)
	caughtUp(t, x, a, b)
	sameRows(t, rowsOf(t, idx, index.PacketType, index.TransferType), expected(t, all))
}

// TestConfirmations reads a block when enough others are on top of it, or when it is final.
func TestConfirmations(t *testing.T) {
	t.Parallel()
	a, b := newWorld(t)
	chains := chainsOf(a, b)
	chains[0].Confirmations, chains[1].Finalized = 3, true
	x := newIndexer(t, openIndex(t), chains)
	run(t, x)
	b.Mine(40) // every 32nd block of the test's chain is final
	eventually(t, "both are read", func() bool {
		s := x.Status()
		return s[0].Indexed == a.Head(t)-3 && s[1].Indexed == 32
	})
}

// TestARescanReadsBlocksAgain removes rows, which a rescan of their blocks restores.
func TestARescanReadsBlocksAgain(t *testing.T) {
	t.Parallel()
	a, b := newWorld(t)
	all := exchange(t, a, b, 20)
	idx := openIndex(t)
	x := newIndexer(t, idx, chainsOf(a, b))
	run(t, x)
	caughtUp(t, x, a, b)
	removed := all[0].row.PacketHash
	_, err := idx.Write(t.Context(), index.Batch{Removed: []index.RowID{{Type: index.PacketType, Key: removed}}})
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range []*side{a, b} {
		if err := x.Rescan(t.Context(), s.id, indexer.Range{From: 0, To: x.Status()[i].Indexed}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the rescans are over", func() bool {
		s := x.Status()
		return s[0].Rescan == nil && s[1].Rescan == nil
	})
	sameRows(t, rowsOf(t, idx, index.PacketType, index.TransferType), expected(t, all))
	for range 2 { // of the middle only, in which the clients' last updates are unknown
		to := x.Status()[0].Indexed
		if err := x.Rescan(t.Context(), a.id, indexer.Range{From: to - 1, To: to}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the rescan is over", func() bool { return x.Status()[0].Rescan == nil })
	}
	sameRows(t, rowsOf(t, idx, index.PacketType, index.TransferType), expected(t, all))
	if err := x.Rescan(t.Context(), a.id, indexer.Range{From: 1, To: 1 << 40}); err == nil {
		t.Error("a rescan of blocks that were not read was accepted")
	}
	if err := x.Rescan(t.Context(), "ethereum.5", indexer.Range{}); err == nil {
		t.Error("a rescan of a chain that is not indexed was accepted")
	}
}

// TestTables compares the rows of chains, clients, connections and channels.
func TestTables(t *testing.T) {
	t.Parallel()
	a, b := newWorld(t)
	idx := openIndex(t)
	a.update = a.emit(t, a.updateClient())[0]
	x := newIndexer(t, idx, chainsOf(a, b))
	run(t, x)
	caughtUp(t, x, a, b)
	rows := strings.Join(rowsOf(t, idx, index.TableTypes...), "\n")
	for _, want := range []string{
		`"universal_chain_id":"ethereum.1001","client_id":1,"counterparty_universal_chain_id":"ethereum.1002","status":{` +
			`"block_hash":"` + a.update.hash.String() + `"`,
		`"counterparty_height":"77"`,
		`"universal_chain_id":"ethereum.1002","client_id":2,"counterparty_universal_chain_id":"ethereum.1001"`,
		`"source_universal_chain_id":"ethereum.1001","source_connection_id":11,"source_client_id":1,` +
			`"destination_universal_chain_id":"ethereum.1002","destination_connection_id":12,"destination_client_id":2`,
		`"source_universal_chain_id":"ethereum.1002","source_channel_id":22,"source_client_id":2,` +
			`"source_connection_id":12,"source_port_id":"0x5fbe74a283f7954f10aa04c2edf55578811aeb03",` +
			`"destination_universal_chain_id":"ethereum.1001","destination_channel_id":21,"destination_client_id":1,` +
			`"destination_connection_id":11,"destination_port_id":"0x5fbe74a283f7954f10aa04c2edf55578811aeb03",` +
			`"version":"ucs03-zkgm-0"`,
		`"source_universal_chain_id":"ethereum.1001","source_channel_id":21`,
		`"kind":"chain","universal_chain_id":"ethereum.1001","chain_id":"1001"`,
	} {
		if !strings.Contains(rows, want) {
			t.Errorf("the rows lack %s\n%s", want, rows)
		}
	}
}
