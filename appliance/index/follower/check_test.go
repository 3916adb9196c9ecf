package follower

import (
	"bytes"
	"context"
	"encoding/json"
	"math/big"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/dataset"
	"github.com/attestd/attestd/appliance/index/zkgm"
)

// generate returns generated packets and transfers, with the packets by hash.
func generate(transfers int) (packets map[string]index.Row, all []index.Row) {
	packets = make(map[string]index.Row)
	o := dataset.GenerateOptions{Transfers: transfers, Seed: 7, Now: time.Date(2026, 5, 20, 12, 0, 0, 0, time.UTC)}
	err := dataset.Generate(context.Background(), o, func(rows []index.Row) error {
		for _, row := range rows {
			switch row.Type() {
			case index.PacketType:
				packets[row.Key()] = row
			case index.TransferType:
				all = append(all, row)
			}
		}
		return nil
	})
	if err != nil {
		panic(err) // a defect of the generator
	}
	return packets, all
}

// manyGenerated is shared by the tests, which do not change it.
var manyGenerated = sync.OnceValues(func() (map[string]index.Row, []index.Row) { return generate(2000) })

// with returns row with one field set to a JSON value, or to null if value is empty.
func with(t testing.TB, row index.Row, field, value string) index.Row {
	t.Helper()
	var members map[string]json.RawMessage
	if err := json.Unmarshal(row.AppendObject(nil), &members); err != nil {
		t.Fatal(err)
	}
	if members[field] = json.RawMessage(value); value == "" {
		delete(members, field)
	}
	object, err := json.Marshal(members)
	if err != nil {
		t.Fatal(err)
	}
	changed, err := index.ParseRow(row.Type(), object)
	if err != nil {
		t.Fatal(err)
	}
	return changed
}

func textIn(row index.Row, field string) string {
	s, _ := row.Text(row.Type().MustField(field).Number)
	return s
}

func hashIn(transfer index.Row) string { return textIn(transfer, "packet_hash") }

// check checks a transfer as the follower does.
func check(transfer, packet index.Row) error {
	return checkTransfer(transfer, packet, decodeOrders(packet))
}

// other returns text as JSON with its last character changed.
func other(text string) string {
	last := byte('1')
	if text[len(text)-1] == last {
		last = '2'
	}
	return `"` + text[:len(text)-1] + string(last) + `"`
}

// changed is how many of the generated rows the test alters, field by field.
const changed = 300

var checkedOfPacket = []string{"packet_hash",
	"data", "timeout_height", "timeout_timestamp", "source_channel_id", "destination_channel_id"}

func TestGeneratedPacketsAgreeUntilAnythingIsChanged(t *testing.T) {
	packets, _ := manyGenerated()
	n := 0
	for hash, packet := range packets {
		if err := checkPacket(packet); err != nil {
			t.Fatalf("%s: %v", hash, err)
		}
		if n++; n > changed {
			continue
		}
		for _, field := range checkedOfPacket {
			value := "77"
			if !strings.HasSuffix(field, "channel_id") {
				value = other(textIn(packet, field))
			}
			err := checkPacket(with(t, packet, field, value))
			if err == nil || !strings.HasPrefix(err.Error(), "packet_hash is 0x") {
				t.Fatalf("%s with another %s: %v", hash, field, err)
			}
		}
	}
}

func TestPacketsThatCannotBeRecomputedSayWhy(t *testing.T) {
	packets, _ := generate(1)
	for _, packet := range packets {
		for _, field := range checkedOfPacket[1:] {
			if err := checkPacket(with(t, packet, field, "")); err == nil ||
				!strings.HasPrefix(err.Error(), field+" is missing") {
				t.Errorf("without %s: %v", field, err)
			}
		}
		for _, test := range []struct{ field, value, want string }{
			{"source_channel_id", `-1`, "source_channel_id is -1, which is not a channel"},
			{"data", `""`, "data must begin with 0x"},
			{"data", `"00"`, "data must begin with 0x"},
			{"data", `"0x0"`, "data is not hex"},
			{"data", `"0xzz"`, "data is not hex"},
			{"timeout_height", `""`, "timeout_height is , which is not a 64-bit decimal number"},
			{"timeout_timestamp", `"0x10"`, "timeout_timestamp is 0x10, which"},
			{"timeout_timestamp", `"18446744073709551616"`, "timeout_timestamp is 18446744073709551616, which"},
			{"timeout_timestamp", `"-1"`, "timeout_timestamp is -1, which"},
			{"packet_hash", `"\u001b[31m"`, `packet_hash is \x1b[31m, but channels, data and timeouts give 0x`},
		} {
			if err := checkPacket(with(t, packet, test.field, test.value)); err == nil ||
				!strings.HasPrefix(err.Error(), test.want) {
				t.Errorf("%s %s: %v", test.field, test.value, err)
			}
		}
		if err := checkPacket(
			with(t, packet, "packet_hash", `"`+strings.ToUpper(textIn(packet, "packet_hash"))+`"`)); err != nil {
			t.Error(err)
		}
	}
}

func TestGeneratedTransfersAgreeUntilAnythingIsChanged(t *testing.T) {
	packets, transfers := manyGenerated()
	for n, transfer := range transfers {
		packet := packets[hashIn(transfer)]
		orders := decodeOrders(packet)
		if err := checkTransfer(transfer, packet, orders); err != nil {
			t.Fatalf("%s: %v", transfer.Key(), err)
		}
		if n >= changed {
			continue
		}
		fields := append([]string{"packet_hash", "source_universal_chain_id", "destination_universal_chain_id"},
			factNames()...)
		for _, field := range fields {
			err := checkTransfer(with(t, transfer, field, other(textIn(transfer, field))), packet, orders)
			if err == nil || !strings.HasPrefix(err.Error(), field+" is ") {
				t.Fatalf("%s with another %s: %v", transfer.Key(), field, err)
			}
		}
		for _, field := range factNames() {
			if err := checkTransfer(with(t, transfer, field, ""), packet, orders); err != nil {
				t.Fatalf("%s without %s: %v", transfer.Key(), field, err)
			}
		}
		if err := checkTransfer(with(t, transfer, "transfer_index", "9"), packet, orders); err == nil {
			t.Fatalf("%s has a tenth order", transfer.Key())
		}
	}
}

func factNames() (names []string) {
	for _, f := range transferFacts {
		names = append(names, index.TransferType.Fields[f].Name)
	}
	return names
}

// packetWith returns a packet with an instruction, and a transfer of it in which only the index is set.
func packetWith(t testing.TB, i zkgm.Instruction) (packet, transfer index.Row) {
	t.Helper()
	data := zkgm.Packet{Path: new(big.Int), Instruction: i}.Encode()
	hash := zkgm.PacketHash(1, 2, data, 0, 3)
	return rowsOf(t, hexFact(hash[:]).String(), hexFact(data).String())
}

func rowsOf(t testing.TB, hash, data string) (packet, transfer index.Row) {
	t.Helper()
	packet, err := index.NewRow(index.Packet{
		SortOrder: "1", PacketHash: hash, ChannelVersion: new(zkgm.ChannelVersion),
		SourceUniversalChainID: "union.union-1", DestUniversalChainID: "ethereum.1",
		SourceChannelID: new(int32(1)), DestinationChannelID: new(int32(2)), TimeoutHeight: new("0"),
		TimeoutTimestamp: new("3"), Data: new(data),
	})
	if err != nil {
		t.Fatal(err)
	}
	transfer, err = index.NewRow(index.Transfer{SortOrder: "1", PacketHash: hash,
		SourceUniversalChainID: "union.union-1", DestUniversalChainID: "ethereum.1"})
	if err != nil {
		t.Fatal(err)
	}
	return packet, transfer
}

const (
	cosmosAddress = "cosmos1qypqxpq9qcrsszg2pvxq6rs0zqg3yyc5lzv7xu" // bech32 of 010203…14
	otherAddress  = "cosmos1zyg3zyg3zyg3zyg3zyg3zyg3zyg3zyg36g7yd2"
)

func evm(last byte) []byte { return append(make([]byte, 19), last) }

func TestAddressesAgreeInAnyOfTheirForms(t *testing.T) {
	order := &zkgm.TokenOrderV2{Sender: []byte(cosmosAddress), Receiver: append(make([]byte, 12), evm(0xab)...),
		BaseAmount: big.NewInt(5), QuoteAmount: new(big.Int)}
	packet, transfer := packetWith(t, order.Instruction())
	for _, test := range []struct {
		field, value string
		agrees       bool
	}{
		{"sender_canonical", "0x0102030405060708090a0b0c0d0e0f1011121314", true},
		{"sender_canonical", "0x0102030405060708090A0B0C0D0E0F1011121314", true},
		{"sender_canonical", hexFact(cosmosAddress).String(), true},
		{"sender_canonical", "0x0102030405060708090a0b0c0d0e0f1011121315", false},
		{"sender_canonical", "0102030405060708090a0b0c0d0e0f1011121314", false},
		{"sender_canonical", "", false},
		{"sender_display", cosmosAddress, true},
		{"sender_display", strings.ToUpper(cosmosAddress), true},
		{"sender_display", "0x0102030405060708090a0b0c0d0e0f1011121314", true},
		{"sender_display", otherAddress, false},
		{"sender_display", "", false},
		{"receiver_display", "0x00000000000000000000000000000000000000AB", true},
		{"receiver_display", "0xab", true},
		{"receiver_display", "0xac", false},
		{"receiver_display", "0x", false},
		{"receiver_canonical", "0xab", false},
		{"receiver_zkgm", "0xab", false},
		{"base_amount", "5", true},
		{"base_amount", "005", true},
		{"base_amount", "0x5", false},
		{"base_amount", "5.0", false},
		{"base_amount", "", false},
		{"base_amount", "-5", false},
		{"base_amount", strings.Repeat("9", 1000), false},
		{"quote_amount", "0", true},
		{"quote_amount", "00", true},
		{"quote_amount", "", false},
		{"quote_token", "0x", true},
		{"quote_token", "", false},
		{"base_token", "0x00", false},
	} {
		err := check(with(t, transfer, test.field, `"`+test.value+`"`), packet)
		if (err == nil) != test.agrees {
			t.Errorf("%s %q: %v", test.field, test.value, err)
		}
	}
	err := check(with(t, transfer, "base_amount", `"6"`), packet)
	if want := "base_amount is 6, but the packet's data has 5"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	if err := check(with(t, transfer, "base_amount", `"`+strings.Repeat("9", 1000)+`"`),
		packet); len(err.Error()) > 500 {
		t.Errorf("an error of %d bytes", len(err.Error()))
	}
}

func TestOrdersAreCountedThroughBatchesAndForwardsOnlyWhereThereIsNothingElse(t *testing.T) {
	order := func(amount int64) zkgm.Instruction {
		return (&zkgm.TokenOrderV2{BaseAmount: big.NewInt(amount), QuoteAmount: new(big.Int)}).Instruction()
	}
	v1 := func(amount int64) zkgm.Instruction {
		return (&zkgm.TokenOrderV1{BaseAmount: big.NewInt(amount), QuoteAmount: new(big.Int),
			BaseTokenSymbol: "U"}).Instruction()
	}
	batch := func(inner ...zkgm.Instruction) zkgm.Instruction {
		return (&zkgm.Batch{Instructions: inner}).Instruction()
	}
	forward := func(next zkgm.Instruction) zkgm.Instruction { return (&zkgm.Forward{Next: next}).Instruction() }
	call := (&zkgm.Call{Sender: []byte{1}}).Instruction()
	deep := order(1)
	for range zkgm.MaxDepth {
		deep = batch(deep)
	}
	for _, test := range []struct {
		name    string
		i       zkgm.Instruction
		amounts []int64
	}{
		{"an order", order(1), []int64{1}},
		{"an order of version 1", v1(2), []int64{2}},
		{"a batch", batch(order(1), call, v1(2), batch(order(3))), []int64{1, 2, 3}},
		{"a forward", forward(order(4)), []int64{4}},
		{"a forward of a forward of a batch", forward(forward(batch(order(4), v1(5)))), []int64{4, 5}},
		{"a forward beside an order", batch(forward(order(4)), order(5)), []int64{5}},
		{"an unknown version", batch(zkgm.Instruction{Opcode: zkgm.OpTokenOrder, Version: 9, Operand: order(1).Operand},
			order(2)), []int64{2}},
		{"an operand that is none",
			batch(zkgm.Instruction{Opcode: zkgm.OpTokenOrder, Version: 2, Operand: []byte{1}}, order(2)), []int64{2}},
		{"a call", call, nil},
		{"an empty batch", batch(), nil},
		{"too deep", deep, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			packet, transfer := packetWith(t, test.i)
			orders := decodeOrders(packet)
			if orders.err != nil || len(orders.list) != len(test.amounts) {
				t.Fatalf("%d orders, %v", len(orders.list), orders.err)
			}
			for i, amount := range test.amounts {
				if orders.list[i].baseAmount.Int64() != amount {
					t.Errorf("order %d: %v, want %d", i, orders.list[i].baseAmount, amount)
				}
			}
			beyond := with(t, transfer, "transfer_index", big.NewInt(int64(len(orders.list))).String())
			if err := checkTransfer(beyond, packet, orders); err == nil ||
				!strings.HasPrefix(err.Error(), "transfer_index is ") {
				t.Error(err)
			}
		})
	}
}

func TestPacketsOfAnotherVersionOrUnreadableDataHaveNoTransfers(t *testing.T) {
	order := (&zkgm.TokenOrderV2{BaseAmount: big.NewInt(5), QuoteAmount: new(big.Int)}).Instruction()
	packet, transfer := packetWith(t, order)
	if err := check(transfer, with(t, packet, "channel_version", "")); err != nil {
		t.Errorf("without a version: %v", err)
	}
	if err := check(with(t, transfer, "transfer_index", "-1"), packet); err == nil {
		t.Error("an order before the first")
	}
	for _, test := range []struct{ field, value, want string }{
		{"channel_version", `"ucs00-pingpong-1"`,
			"the packet's channel_version is ucs00-pingpong-1, which does not support transfers"},
		{"data", "", "data is missing"},
		{"data", `"0x"`, "the packet's data does not have the format of ucs03-zkgm-0"},
		{"data", `"` + textIn(packet, "data")[:200] + `"`,
			"the packet's data does not have the format of ucs03-zkgm-0"},
	} {
		if err := check(transfer, with(t, packet, test.field, test.value)); err == nil ||
			!strings.HasPrefix(err.Error(), test.want) {
			t.Errorf("%s %s: %v", test.field, test.value, err)
		}
	}
}

// A batch of a few kilobytes may not expand through instructions that all point to the same bytes.
func TestACraftedPacketIsNotFollowed(t *testing.T) {
	word := func(n int) []byte { return big.NewInt(int64(n)).FillBytes(make([]byte, 32)) }
	const n = 1000
	list := append(word(32), word(n)...)
	for range n {
		list = append(list, word(32*n)...)
	}
	operand := make([]byte, 32<<10)
	list = append(list, bytes.Join([][]byte{word(0), word(9), word(96), word(len(operand)), operand}, nil)...)
	packet, transfer := packetWith(t, zkgm.Instruction{Opcode: zkgm.OpBatch, Operand: list})
	if err := checkPacket(packet); err != nil {
		t.Error(err)
	}
	if err := check(transfer, packet); err == nil ||
		err.Error() != "the packet's data does not have the format of ucs03-zkgm-0" {
		t.Error(err)
	}
}

// FuzzCheckPacket checks that packet data of any form leads to an error at most.
func FuzzCheckPacket(f *testing.F) {
	for _, data := range fuzzSeeds(f) {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		hash := zkgm.PacketHash(1, 2, data, 0, 3)
		packet, _ := rowsOf(t, hexFact(hash[:]).String(), hexFact(data).String())
		if err := checkPacket(packet); err != nil {
			t.Fatal(err)
		}
		if err := checkPacket(with(t, packet, "timeout_height", `"1"`)); err == nil {
			t.Fatal("another timeout is not noticed")
		}
	})
}

// FuzzCheckTransfer checks that decoding survives any data, and that go-ethereum's abi finds the orders that zkgm
// finds.
func FuzzCheckTransfer(f *testing.F) {
	for _, data := range fuzzSeeds(f) {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		packet, transfer := rowsOf(t, "0x01", hexFact(data).String())
		decoded := decodeOrders(packet)
		orders := decoded.list
		if err := checkTransfer(transfer, packet, decoded); (err == nil) != (len(orders) > 0) {
			t.Fatalf("%d orders: %v", len(orders), err)
		}
		if decoded.err != nil {
			return
		}
		p, err := zkgm.Decode(data)
		if err != nil {
			t.Fatal(err)
		}
		own := p.Instruction.Orders()
		if len(own) > len(orders) {
			t.Fatalf("zkgm reads %d orders, abi %d", len(own), len(orders))
		}
		for i, o := range own {
			if o, ok := o.(*zkgm.TokenOrderV2); ok && len(own) == len(orders) &&
				(o.BaseAmount.Cmp(orders[i].baseAmount) != 0 || string(o.Sender) != string(orders[i].sender)) {
				t.Fatalf("order %d: zkgm reads %+v, abi %+v", i, o, orders[i])
			}
		}
	})
}

func fuzzSeeds(f *testing.F) (seeds [][]byte) {
	packets, _ := generate(60)
	for _, packet := range packets {
		data, err := packetData(packet)
		if err != nil {
			f.Fatal(err)
		}
		seeds = append(seeds, data)
	}
	return seeds
}

func BenchmarkChecks(b *testing.B) {
	packets, transfers := manyGenerated()
	for n := 0; b.Loop(); n++ {
		transfer := transfers[n%len(transfers)]
		packet := packets[hashIn(transfer)]
		if err := checkPacket(packet); err != nil {
			b.Fatal(err)
		}
		if err := check(transfer, packet); err != nil {
			b.Fatal(err)
		}
	}
}
