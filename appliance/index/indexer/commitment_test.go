package indexer_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/common"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/chain/chaintest"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/indexer"
)

// core is the core contract of the tests' chains.
var core = common.Address(chaintest.Emitter)

// commit writes the commitment of a packet into the core contract of its chain.
func commit(p common.Hash, value common.Hash) chaintest.Emission {
	return chaintest.Emission{Topics: []common.Hash{indexer.PacketSlot(p), value}, Store: true}
}

// receipt writes the receipt of a packet into the core contract of its destination.
func receipt(p common.Hash, value common.Hash) chaintest.Emission {
	return chaintest.Emission{Topics: []common.Hash{indexer.ReceiptSlot(p), value}, Store: true}
}

// newVerifier returns a verifier of sides, each with its own RPCs.
func newVerifier(t testing.TB, chains ...indexer.Chain) *indexer.Verifier {
	t.Helper()
	v, err := indexer.NewVerifier(chains, "test")
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// sentOn returns rows of packets that were sent on a side, whose commitments its core contract has.
func sentOn(t testing.TB, s *side, n int) (rows []index.Row) {
	t.Helper()
	for _, p := range committedOn(t, s, n) {
		rows = append(rows, rowOf(t, p.row))
	}
	return rows
}

// committedOn sends packets on a side, and stores their commitments.
func committedOn(t testing.TB, s *side, n int) (all []*parcel) {
	t.Helper()
	var sends []emission
	var commitments []chaintest.Emission
	for range n {
		p := newParcel(s)
		all, sends = append(all, p), append(sends, p.send())
		commitments = append(commitments, commit(p.packet.Hash(), indexer.CommitmentSent))
	}
	const most = 60 // in one transaction
	for first := 0; first < n; first += most {
		last := min(first+most, n)
		for i, l := range s.emit(t, sends[first:last]...) {
			all[first+i].started(l)
		}
		s.Emit(t, commitments[first:last]...)
	}
	return all
}

func rowOf(t testing.TB, value any) index.Row {
	t.Helper()
	row, err := index.NewRow(value)
	if err != nil {
		t.Fatal(err)
	}
	return row
}

// altered returns a row with other fields.
func altered(t testing.TB, row index.Row, change func(*index.Packet)) index.Row {
	t.Helper()
	var p index.Packet
	if err := row.Decode(&p); err != nil {
		t.Fatal(err)
	}
	change(&p)
	return rowOf(t, p)
}

// TestEachProofTellsWhatTheChainKnows checks packets against a go-ethereum node: sent, acknowledged, invented, altered,
// moved to another chain, too new, and ended in the row only.
func TestEachProofTellsWhatTheChainKnows(t *testing.T) {
	t.Parallel()
	a, b := newWorld(t)
	v := newVerifier(t, chainsOf(a, b)...)
	rows := sentOn(t, a, 3)
	b.Mine(10)
	done := rows[1]
	hash := common.HexToHash(done.Key())
	a.Emit(t, commit(hash, indexer.CommitmentDone))
	b.Emit(t, receipt(hash, indexer.CommitmentOfAck(acknowledgement(true))))
	end := func(height string) func(*index.Packet) {
		return func(p *index.Packet) { p.AckTimestamp, p.AckHeight = p.SendTimestamp, &height }
	}
	invented := newParcel(a)
	invented.started(a.emit(t, invented.send())[0])
	for _, test := range []struct {
		what      string
		row       index.Row
		want      string // empty: the chain knows it
		temporary bool
	}{
		{"sent", rows[0], "", false},
		{"acknowledged", altered(t, done, end("1")), "", false},
		{"not shown as acknowledged yet", done, "", false},
		{"invented", rowOf(t, invented.row), "the core contract of ethereum.1001 does not know it in block", false},
		{"altered", altered(t, rows[0], func(p *index.Packet) { p.Data = new(*p.Data + "00") }),
			"its fields have the hash 0x", false},
		{"altered, with its hash", altered(t, rows[0], func(p *index.Packet) {
			p.TimeoutTimestamp = new("1900000000000000001")
			other := newParcelLike(t, *p)
			p.PacketHash = other.Hash().String()
		}), "does not know it", false},
		{"on another chain", altered(t, rows[0], func(p *index.Packet) { p.SourceUniversalChainID = b.id }),
			"the core contract of ethereum.1002 does not know it", false},
		{"on a chain that is not read", altered(t, rows[0], func(p *index.Packet) {
			p.SourceUniversalChainID = "union.union-1"
		}), `its chain "union.union-1" is not an EVM chain of indexer.chains`, false},
		{"too new", altered(t, rows[0], func(p *index.Packet) { p.SendHeight = new("99999") }),
			"it was sent in block 99999, and block", true},
		{"ended in the row only", altered(t, rows[0], end("1")), "it is neither acknowledged nor timed out", false},
		{"ended too lately", altered(t, rows[0], end("99999")), "it ended in block 99999, and block", true},
	} {
		err := v.Check(t.Context(), []index.Row{rows[2], test.row})
		if err[0] != nil {
			t.Fatalf("%s: the packet before it: %v", test.what, err[0])
		}
		if test.want == "" {
			if err[1] != nil {
				t.Errorf("%s: %v", test.what, err[1])
			}
			continue
		}
		unproven := new(indexer.Unproven)
		if !errors.As(err[1], &unproven) || !strings.Contains(unproven.Text, test.want) ||
			unproven.Temporary() != test.temporary {
			t.Errorf("%s: %v, want %q", test.what, err[1], test.want)
		}
	}
	if text := v.Failure(); text != "" {
		t.Errorf("the failure is %q", text)
	}
}

// newParcelLike returns the packet of a row.
func newParcelLike(t testing.TB, p index.Packet) *indexer.Packet {
	t.Helper()
	var timeout uint64
	if err := json.Unmarshal([]byte(*p.TimeoutTimestamp), &timeout); err != nil {
		t.Fatal(err)
	}
	return &indexer.Packet{SourceChannel: uint32(*p.SourceChannelID),
		DestinationChannel: uint32(*p.DestinationChannelID), Data: common.FromHex(*p.Data), TimeoutTimestamp: timeout}
}

// TestOnlyTheHashOfABlockIsBelieved has RPCs lie about the header and about the proof, and be away.
func TestOnlyTheHashOfABlockIsBelieved(t *testing.T) {
	t.Parallel()
	a, _ := newWorld(t)
	rows := sentOn(t, a, 3)
	forged := altered(t, rows[0], func(p *index.Packet) {
		p.TimeoutTimestamp = new("5")
		p.PacketHash = newParcelLike(t, *p).Hash().String()
	})
	// cheat answers every proof with that of a packet that was sent
	cheat := func(q chaintest.Request) *chaintest.Reply {
		if q.Method != "eth_getProof" {
			return nil
		}
		var slots []common.Hash
		_ = json.Unmarshal(q.Params[1], &slots) // the verifier's request is valid
		for i := range slots {
			slots[i] = indexer.PacketSlot(common.HexToHash(rows[0].Key()))
		}
		q.Params[1], _ = json.Marshal(slots)
		return &chaintest.Reply{Result: chaintest.NewProxy(t, a.URL).Get(q)}
	}
	// other answers with a changed header
	other := func(q chaintest.Request) *chaintest.Reply {
		if q.Method != "eth_getBlockByNumber" || string(q.Params[0]) == `"latest"` {
			return nil
		}
		var header map[string]any
		if json.Unmarshal(q.Pass(), &header) != nil {
			return nil
		}
		header["stateRoot"] = common.Hash{7}.String()
		result, _ := json.Marshal(header)
		return &chaintest.Reply{Result: result}
	}
	away := func(chaintest.Request) *chaintest.Reply { return &chaintest.Reply{Status: 502} }
	for _, test := range []struct {
		what       string
		lies       []func(chaintest.Request) *chaintest.Reply // of each RPC; nil tells the truth
		unreadable string
	}{
		{"one RPC", []func(chaintest.Request) *chaintest.Reply{nil}, ""},
		{"a forged proof, from the only RPC", []func(chaintest.Request) *chaintest.Reply{cheat}, "missing"},
		{"a forged proof, from one of two", []func(chaintest.Request) *chaintest.Reply{cheat, nil}, ""},
		{"a forged header, from one of three", []func(chaintest.Request) *chaintest.Reply{other, nil, nil}, ""},
		{"a forged header, from one of two", []func(chaintest.Request) *chaintest.Reply{other, nil},
			"its fields have the hash"},
		{"one of three is away", []func(chaintest.Request) *chaintest.Reply{away, nil, nil}, ""},
		{"two of three are away", []func(chaintest.Request) *chaintest.Reply{away, away, nil}, "502"},
	} {
		c := chainsOf(a)[0]
		c.RPCs = nil
		for _, lie := range test.lies {
			p := chaintest.NewProxy(t, a.URL)
			p.Answer(lie)
			c.RPCs = append(c.RPCs, p.URL)
		}
		v := newVerifier(t, c)
		all := v.Check(t.Context(), append([]index.Row{forged}, rows...))
		for i, err := range all {
			unproven := new(indexer.Unproven)
			switch errors.As(err, &unproven); {
			case test.unreadable != "":
				if err == nil || !unproven.Temporary() || !strings.Contains(err.Error(), test.unreadable) {
					t.Errorf("%s: packet %d: %v", test.what, i, err)
				}
			case (err == nil) == (i == 0) || err != nil && unproven.Temporary():
				t.Errorf("%s: packet %d: %v", test.what, i, err)
			}
		}
		if failed := v.Failure() != ""; failed != (test.unreadable != "") {
			t.Errorf("%s: the failure is %q", test.what, v.Failure())
		}
	}
}

// TestARequestThatARPCRefusesIsSplit has a node that proves at most three slots at once.
func TestARequestThatARPCRefusesIsSplit(t *testing.T) {
	t.Parallel()
	a, _ := newWorld(t)
	rows := sentOn(t, a, 20)
	narrow := chaintest.NewProxy(t, a.URL)
	narrow.Answer(func(q chaintest.Request) *chaintest.Reply {
		var slots []common.Hash
		if q.Method == "eth_getProof" && json.Unmarshal(q.Params[1], &slots) == nil && len(slots) > 3 {
			return &chaintest.Reply{Error: "too many slots"}
		}
		return nil
	})
	c := chainsOf(a)[0]
	c.RPCs = []string{narrow.URL}
	for i, err := range newVerifier(t, c).Check(t.Context(), rows) {
		if err != nil {
			t.Errorf("packet %d: %v", i, err)
		}
	}
}

// TestAProofIsCheckedWithNothingButABlockHash makes the proof of a packet, and breaks each part of it.
func TestAProofIsCheckedWithNothingButABlockHash(t *testing.T) {
	t.Parallel()
	a, _ := newWorld(t)
	rows := sentOn(t, a, 40)
	idx := openIndex(t)
	if _, err := idx.Write(t.Context(), index.Batch{Rows: rows}); err != nil {
		t.Fatal(err)
	}
	v := newVerifier(t, chainsOf(a)...)
	made, err := v.Prove(t.Context(), idx, rows[7].Key())
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(made)
	if err != nil {
		t.Fatal(err)
	}
	block := made.Block.Hash
	parse := func() *indexer.PacketProof {
		p, err := indexer.ParsePacketProof(text)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	if p := parse(); p.Value != indexer.CommitmentSent || p.Verify(core, block) != nil ||
		p.Verify(core, common.Hash{}) != nil {
		t.Errorf("the proof %s: %v", text, p.Verify(core, block))
	}
	other, err := v.Prove(t.Context(), idx, rows[8].Key())
	if err != nil {
		t.Fatal(err)
	}
	for what, test := range map[string]struct {
		want  indexer.Fault
		spoil func(*indexer.PacketProof)
	}{
		"data":           {indexer.FaultPacketHash, func(p *indexer.PacketProof) { p.Packet.Data[9] ^= 1 }},
		"timeout":        {indexer.FaultPacketHash, func(p *indexer.PacketProof) { p.Packet.TimeoutTimestamp++ }},
		"contract":       {indexer.FaultContract, func(p *indexer.PacketProof) { p.Core[0] ^= 1 }},
		"slot":           {indexer.FaultSlot, func(p *indexer.PacketProof) { p.Slot = other.Slot }},
		"block's hash":   {indexer.FaultBlockHash, func(p *indexer.PacketProof) { p.Block.Hash[0] ^= 1 }},
		"block's number": {indexer.FaultBlockHash, func(p *indexer.PacketProof) { p.Block.Number++ }},
		"header":         {indexer.FaultBlockHash, func(p *indexer.PacketProof) { p.Header[99] ^= 1 }},
		"value":          {indexer.FaultValue, func(p *indexer.PacketProof) { p.Value = indexer.CommitmentDone }},
		"truncated node": {indexer.FaultNode, func(p *indexer.PacketProof) {
			node := &p.StorageProof[len(p.StorageProof)-1]
			*node = (*node)[:len(*node)-1]
		}},
		"missing node":    {indexer.FaultNode, func(p *indexer.PacketProof) { p.StorageProof = p.StorageProof[1:] }},
		"missing account": {indexer.FaultNode, func(p *indexer.PacketProof) { p.AccountProof = nil }},
		"another's proof": {indexer.FaultNode, func(p *indexer.PacketProof) { p.StorageProof = other.StorageProof }},
	} {
		p := parse()
		test.spoil(p)
		fault := new(indexer.ProofError)
		if err := p.Verify(core, block); !errors.As(err, &fault) || fault.Fault != test.want {
			t.Errorf("%s: %v, want %s", what, err, test.want)
		}
	}
	fault := new(indexer.ProofError)
	if err := parse().Verify(core, common.Hash{9}); !errors.As(err, &fault) || fault.Fault != indexer.FaultBlockHash {
		t.Errorf("another block's hash: %v", err)
	}
	if _, err := v.Prove(t.Context(), idx, common.Hash{3}.String()); appliance.CodeOf(err) != appliance.CodeNotFound {
		t.Errorf("a packet that the index does not have: %v", err)
	}
	for _, bad := range []string{"", "{}", `{"header": 5}`, `{"packet": {"data": "xy"}}`} {
		if _, err := indexer.ParsePacketProof([]byte(bad)); err == nil {
			t.Errorf("%q was parsed", bad)
		}
	}
}
