package replica

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/dataset"
	"github.com/attestd/attestd/appliance/index/zkgm"
)

// staked returns a replica of generated data, and its packets, newest first.
func staked(t *testing.T, transfers int) (*Store, []index.Packet) {
	t.Helper()
	r, err := Open(filepath.Join(t.TempDir(), "replica.db"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	var all []index.Packet
	o := dataset.GenerateOptions{Transfers: transfers, Seed: 5, Now: time.Date(2026, 5, 20, 12, 0, 0, 0, time.UTC),
		Chains: 4}
	err = dataset.Generate(t.Context(), o, func(rows []index.Row) error {
		for _, row := range rows {
			var p index.Packet
			if row.Type() == index.PacketType && row.Decode(&p) == nil {
				all = append(all, p)
			}
		}
		_, err := r.Write(t.Context(), index.Batch{Rows: rows})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(all, func(a, b index.Packet) int { return strings.Compare(b.SortOrder, a.SortOrder) })
	return r, all
}

// ask returns all pages of a stake query.
func ask(t *testing.T, r *Store, q index.StakeQuery) (rows []index.Row) {
	t.Helper()
	err := r.View(t.Context(), func(s index.Snapshot) error {
		for {
			page, err := s.Stakes(context.Background(), q)
			if err != nil || len(page) == 0 {
				return err
			}
			rows = append(rows, page...)
			q.Cursor = page[len(page)-1].SortOrder()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// like returns the packets that produce a kind of stake, according to their calldata.
func like(all []index.Packet, does, not string) (found []index.Packet) {
	for _, p := range all {
		row, err := index.NewRow(p)
		if err != nil {
			panic(err)
		}
		decoded := string(row.AppendJSON(nil, index.PacketDecodedColumn))
		if strings.Contains(decoded, fmt.Sprintf("%x", "wasm")) && strings.Contains(*p.Structure, does) &&
			!strings.Contains(*p.Structure, not) {
			found = append(found, p)
		}
	}
	return found
}

func TestStakes(t *testing.T) {
	t.Parallel()
	r, all := staked(t, 1500)
	kinds := []zkgm.StakeKind{zkgm.Bond, zkgm.Unbond, zkgm.Withdraw, zkgm.DustWithdraw}
	seen := make(map[string]bool)
	for _, kind := range kinds {
		rows := ask(t, r, index.StakeQuery{Kind: kind, Page: index.Page{Limit: new(int32(3))}})
		if len(rows) == 0 {
			t.Fatalf("no stakes of kind %d", kind)
		}
		last := "~"
		for _, row := range rows {
			if row.SortOrder() >= last || seen[row.Key()] {
				t.Fatalf("%s of %s comes after %s, or twice", row.Key(), row.SortOrder(), last)
			}
			last, seen[row.Key()] = row.SortOrder(), true
		}
		t.Logf("kind %d: %d stakes", kind, len(rows))
		filters(t, r, kind, rows)
	}
	want := append(like(all, "batch_v0(token_order_v2,call_v0)", "forward"), like(all, "call_v0", "batch")...)
	for _, p := range want {
		if !seen[p.PacketHash] {
			t.Errorf("packet %s is no stake", p.PacketHash)
		}
	}
	if len(seen) != len(want) {
		t.Errorf("%d stakes, want %d", len(seen), len(want))
	}
	deliveries(t, r, all)
}

// filters queries each row by each of its own values, and by values that it does not have.
func filters(t *testing.T, r *Store, kind zkgm.StakeKind, rows []index.Row) {
	t.Helper()
	value := func(row index.Row, name string) string {
		text, _ := row.Text(row.Type().MustField(name).Number)
		return text
	}
	row := rows[len(rows)/2]
	sent := map[zkgm.StakeKind]string{zkgm.Bond: "bond", zkgm.Unbond: "unbond", zkgm.Withdraw: "withdraw",
		zkgm.DustWithdraw: "dust_withdraw"}[kind]
	for name, q := range map[string]index.StakeQuery{
		"staker":      {Addresses: []string{"0x01", strings.ToUpper(value(row, "staker_canonical"))}},
		"packet":      {PacketHash: row.Key()},
		"transaction": {TransactionHash: value(row, sent+"_send_transaction_hash")},
		"chains": {SourceChain: value(row, "source_universal_chain_id"),
			DestinationChain: value(row, "destination_universal_chain_id")},
		"network": {Network: index.Mainnet},
	} {
		q.Kind = kind
		found := ask(t, r, q)
		if !slices.ContainsFunc(found, func(f index.Row) bool { return string(f.Bytes()) == string(row.Bytes()) }) {
			t.Errorf("kind %d by %s: not among %d", kind, name, len(found))
		}
		for _, f := range found {
			if name == "staker" && value(f, "staker_canonical") != value(row, "staker_canonical") {
				t.Errorf("kind %d by staker: one of %s", kind, value(f, "staker_canonical"))
			}
		}
	}
	for name, q := range map[string]index.StakeQuery{
		"nobody": {Addresses: []string{}}, "a stranger": {Addresses: []string{"0xdead"}},
		"another network":     {Network: index.Testnet},
		"another source":      {SourceChain: "osmosis.osmosis-1"},
		"another destination": {DestinationChain: "osmosis.osmosis-1"},
	} {
		q.Kind = kind
		if found := ask(t, r, q); len(found) > 0 {
			t.Errorf("kind %d of %s: %d rows", kind, name, len(found))
		}
	}
}

// deliveries compares the deliveries of bonds with the packets.
func deliveries(t *testing.T, r *Store, all []index.Packet) {
	t.Helper()
	byHash := make(map[string]index.Packet)
	for _, p := range all {
		byHash[p.PacketHash] = p
	}
	delivered := 0
	for _, row := range ask(t, r, index.StakeQuery{Kind: zkgm.Bond}) {
		var b index.Bond
		if err := row.Decode(&b); err != nil {
			t.Fatal(err)
		}
		p := byHash[b.PacketHash]
		if b.DeliveryPacketHash == nil {
			if p.Success != nil && *p.Success && b.SendTimestamp.Before(time.Date(2026, 5, 19, 0, 0, 0, 0, time.UTC)) {
				t.Errorf("bond %s was received in %s, and has no delivery", b.PacketHash, *p.RecvTransactionHash)
			}
			continue
		}
		delivered++
		d := byHash[*b.DeliveryPacketHash]
		if *d.SendTransactionHash != *p.RecvTransactionHash || d.DestUniversalChainID != b.DestUniversalChainID ||
			b.DestUniversalChainID != p.SourceUniversalChainID {
			t.Errorf("bond %s is delivered by %s to %s", b.PacketHash, d.PacketHash, d.DestUniversalChainID)
		}
		if *b.ReceiverCanonical != *b.StakerCanonical || *b.SenderCanonical != *b.StakerCanonical ||
			*b.QuoteAmount != *b.RemoteQuoteAmount {
			t.Errorf("bond %+v", b)
		}
	}
	if delivered < 10 {
		t.Errorf("only %d bonds are delivered", delivered)
	}
}

// TestInstructions reads all instructions in both directions, in pages that end within packets.
func TestInstructions(t *testing.T) {
	t.Parallel()
	r, all := staked(t, 600)
	walk := func(q index.InstructionQuery) (rows []index.Row) {
		err := r.View(t.Context(), func(s index.Snapshot) error {
			for {
				page, err := s.Instructions(context.Background(), q)
				for _, row := range page {
					rows = append(rows, row.Clone())
				}
				if err != nil || len(page) < 7 {
					return err
				}
				q.Cursor = page[len(page)-1].SortOrder()
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		return rows
	}
	seven := index.Page{Limit: new(int32(7))}
	older := walk(index.InstructionQuery{Page: seven})
	want := 0
	for _, p := range all {
		row, err := index.NewRow(p)
		if err != nil {
			t.Fatal(err)
		}
		want += strings.Count(string(row.AppendJSON(nil, index.PacketDecodedFlattenedColumn)), `"_index"`)
	}
	if len(older) != want {
		t.Errorf("%d instructions, want %d", len(older), want)
	}
	for i := 1; i < len(older); i++ {
		if older[i].SortOrder() >= older[i-1].SortOrder() {
			t.Fatalf("%s comes behind %s", older[i].SortOrder(), older[i-1].SortOrder())
		}
	}
	oldest := older[len(older)-1]
	newer := walk(
		index.InstructionQuery{Page: index.Page{Limit: seven.Limit, Cursor: oldest.SortOrder(),
			Direction: index.Newer}})
	slices.Reverse(newer)
	if !slices.EqualFunc(newer, older[:len(older)-1], func(a, b index.Row) bool {
		return string(a.Bytes()) == string(b.Bytes())
	}) {
		t.Errorf("%d instructions from the oldest on, want %d", len(newer), len(older)-1)
	}
	calls(t, walk, older)
}

// calls queries the instructions of each sender and contract.
func calls(t *testing.T, walk func(index.InstructionQuery) []index.Row, all []index.Row) {
	t.Helper()
	operand := index.InstructionType.MustField("operand").Number
	by := make(map[index.InstructionQuery]int)
	for _, row := range all {
		var call struct{ Sender, ContractAddress string }
		if err := json.Unmarshal(row.AppendJSON(nil, operand), &call); err != nil {
			t.Fatal(err)
		}
		if call.ContractAddress != "" {
			by[index.InstructionQuery{Sender: call.Sender}]++
			by[index.InstructionQuery{Contract: call.ContractAddress}]++
			by[index.InstructionQuery{Sender: call.Sender, Contract: call.ContractAddress}]++
		}
	}
	if len(by) < 20 {
		t.Errorf("only %d queries", len(by))
	}
	for q, want := range by {
		q.Limit = new(int32(7))
		if got := walk(q); len(got) != want {
			t.Errorf("%d of %+v, want %d", len(got), q, want)
		}
	}
}

// TestStakesPageCost checks that the keys read for a page do not grow with packets that are no stakes, nor with stakes
// beyond the page.
func TestStakesPageCost(t *testing.T) {
	t.Parallel()
	var looked [2]uint64
	for i, transfers := range []int{500, 2000} {
		r, _ := staked(t, transfers)
		before := r.touched.Load()
		err := r.View(t.Context(), func(s index.Snapshot) error {
			for _, q := range []index.StakeQuery{{}, {SourceChain: "ethereum.1"}, {DestinationChain: "ethereum.1"},
				{DestinationChain: "xion.none-1"}} {
				q.Kind, q.Limit = zkgm.Bond, new(int32(5))
				if _, err := s.Stakes(t.Context(), q); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		looked[i] = r.touched.Load() - before
	}
	t.Logf("keys looked at: %d and %d", looked[0], looked[1])
	if looked[1] > looked[0]*3/2 {
		t.Errorf("%d keys are looked at among 4 times the packets, %d before", looked[1], looked[0])
	}
}
