package index_test

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/dataset"
)

// madeUp returns packets and transfers.
func madeUp(t testing.TB, transfers int) (rows []index.Row) {
	t.Helper()
	o := dataset.GenerateOptions{Transfers: transfers, Seed: 1, Now: time.Date(2026, 5, 20, 12, 0, 0, 0, time.UTC)}
	err := dataset.Generate(t.Context(), o, func(batch []index.Row) error {
		for _, row := range batch {
			if row.Type() == index.PacketType || row.Type() == index.TransferType {
				rows = append(rows, row)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// unlikely are rows that no chain sends.
func unlikely(t *testing.T) (rows []index.Row) {
	t.Helper()
	for _, value := range []any{
		index.Packet{SortOrder: "1", PacketHash: "1"},
		index.Packet{SortOrder: "007", PacketHash: "0", TimeoutHeight: new("00"), SendHeight: new("9223372036854775808"), RecvHeight: new("-1"), AckHeight: new("+1")},
		index.Packet{SortOrder: "é<", PacketHash: "0x3c", SourceChannelID: new(int32(-1)), Data: new("0x"), Structure: new("éé<>&"), DestinationChainID: new("éé<>&")},
		index.Packet{SortOrder: "large", PacketHash: "0xaa", Data: new("0x" + strings.Repeat("0123456789abcdef", 20_000))},
		index.Packet{SortOrder: "larger", PacketHash: "0xab", SourcePortID: new(strings.Repeat("port", 40_000)), Acknowledgement: new(strings.Repeat("z", 100_000))},
		index.Packet{SortOrder: "decoded", PacketHash: "0xac", Decoded: []byte(`{"a":[1,2]}`), Traces: []index.Trace{{Type: "A", UniversalChainID: "a.1"}}},
		index.Transfer{SortOrder: "0x31", PacketHash: "0xb1", SenderCanonical: new("0x123456789012"), SenderZkgm: new("0x3078313233343536373839303132")},
		index.Transfer{SortOrder: "123456789012", PacketHash: "123456789012", BaseAmount: new("123456789012"), BaseToken: new("0x313233343536373839303132")},
		display("0x00aBcd", "0x00abcd"), display("0x00ABCD", "0x00abcd"), display("0X00abcd", "0x00abcd"), display("0x00abcé", "0x00abce"),
		display("cosmos1qpzqqqqqq", "0x00"), display("1qqqqqqqq", "0x00"), display("cosmos1qqqqqqqq", "0x0"), display("cosmos1QQqqqqqq", "0x00"),
		display("union1qqqqqqqq", "0x00"), display("", ""), display("0x", "0x"), display("union1", "0x"), display("union1qqqqqq", "0x"),
	} {
		row, err := index.NewRow(value)
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, row)
	}
	return rows
}

// display is a transfer from an address as it is shown and as it is.
func display(shown, canonical string) index.Transfer {
	return index.Transfer{SortOrder: shown + " of " + canonical, PacketHash: "0xc1", SenderCanonical: &canonical, SenderDisplay: &shown}
}

// TestPackedRowsReadAsPlainOnes packs rows before there is a sample, with one, and with the next, as a store does.
func TestPackedRowsReadAsPlainOnes(t *testing.T) {
	t.Parallel()
	rows := append(madeUp(t, 250), unlikely(t)...)
	p := index.NewPacker(nil, nil)
	var packed, samples [][]byte
	for i, row := range rows {
		if i == len(rows)/3 || i == len(rows)/2 {
			samples = append(samples, p.Learn(rows[:i/8]))
		}
		packed = append(packed, p.Pack(nil, row))
	}
	again := index.NewPacker(p.Texts(0), samples)
	plainSize, packedSize := 0, 0
	for i, row := range rows {
		for _, d := range []*index.Dictionary{p.Dictionary(), again.Dictionary()} {
			samePacked(t, d.Row(row.Type(), []byte(row.SortOrder()), packed[i]), row)
		}
		order := []byte(row.SortOrder())
		if repacked := again.Pack(nil, p.Row(row.Type(), order, packed[i])); !bytes.Equal(again.Row(row.Type(), order, repacked).Bytes(), row.Bytes()) {
			t.Errorf("%s of %s is another when it is packed again", row.Type().Name, row.Key())
		}
		if i > len(rows)/2 && i < len(rows)-len(unlikely(t)) {
			plainSize, packedSize = plainSize+len(row.Bytes()), packedSize+len(packed[i])
		}
	}
	if packedSize > plainSize*2/3 {
		t.Errorf("packed %d bytes to %d", plainSize, packedSize)
	}
}

// The key that a row is under is not in the row, too.
func TestPackedRowsLeaveOutTheirKeys(t *testing.T) {
	t.Parallel()
	p := index.NewPacker(nil, nil)
	for _, row := range madeUp(t, 20) {
		order := []byte(row.SortOrder())
		packed := p.Pack(nil, row)
		if bytes.Contains(packed, order) {
			t.Errorf("%s %s has its key in its packed form", row.Type().Name, order)
		}
		kept := p.Row(row.Type(), order, packed).Clone()
		clear(order)
		if kept.SortOrder() != row.SortOrder() {
			t.Errorf("a copy of %s %s has changed with what it is a copy of", row.Type().Name, row.SortOrder())
		}
	}
}

// decoded returns what a row of packets or of transfers decodes to.
func decoded(t *testing.T, row index.Row) any {
	t.Helper()
	var value any = new(index.Packet)
	if row.Type() == index.TransferType {
		value = new(index.Transfer)
	}
	if err := row.Decode(value); err != nil {
		t.Fatal(err)
	}
	return value
}

func samePacked(t *testing.T, packed, row index.Row) {
	t.Helper()
	what := fmt.Sprintf("%s %s", row.Type().Name, row.SortOrder())
	if !bytes.Equal(packed.Bytes(), row.Bytes()) || !bytes.Equal(packed.Clone().Bytes(), row.Bytes()) {
		t.Errorf("%s has other bytes", what)
	}
	if got, want := packed.AppendLine(nil), row.AppendLine(nil); !bytes.Equal(got, want) {
		t.Errorf("%s is\n%s, want\n%s", what, got, want)
	}
	if !reflect.DeepEqual(decoded(t, packed), decoded(t, row)) {
		t.Errorf("%s decodes to another", what)
	}
	for f := range row.Type().Fields {
		got, want := packed.AppendJSON(nil, f), row.AppendJSON(nil, f)
		gotText, wantText := "", ""
		if row.Type().Fields[f].Kind == index.FieldText {
			gotText, _ = packed.Text(f)
			wantText, _ = row.Text(f)
		}
		if !bytes.Equal(got, want) || gotText != wantText || packed.IsNull(f) != row.IsNull(f) {
			t.Errorf("%s: %s is %s, want %s", what, row.Type().Fields[f].Name, got, want)
		}
	}
}
