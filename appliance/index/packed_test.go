package index_test

import (
	"bytes"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/dataset"
)

// madeUp returns generated packets and transfers.
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

// unlikely returns rows that no chain sends.
func unlikely(t testing.TB) (rows []index.Row) {
	t.Helper()
	for _, value := range []any{
		index.Packet{SortOrder: "1", PacketHash: "1"},
		index.Packet{SortOrder: "007", PacketHash: "0", TimeoutHeight: new("00"),
			SendHeight: new("9223372036854775808"), RecvHeight: new("-1"), AckHeight: new("+1")},
		index.Packet{SortOrder: "é<", PacketHash: "0x3c", SourceChannelID: new(int32(-1)), Data: new("0x"),
			Structure: new("éé<>&"), DestinationChainID: new("éé<>&")},
		index.Packet{SortOrder: "large", PacketHash: "0xaa",
			Data: new("0x" + strings.Repeat("0123456789abcdef", 20_000))},
		index.Packet{SortOrder: "larger", PacketHash: "0xab", SourcePortID: new(strings.Repeat("port", 40_000)),
			Acknowledgement: new(strings.Repeat("z", 100_000))},
		index.Packet{SortOrder: "decoded", PacketHash: "0xac", Decoded: []byte(`{"a":[1,2]}`),
			Traces: []index.Trace{{Type: "A", UniversalChainID: "a.1"}}},
		index.Transfer{SortOrder: "0x31", PacketHash: "0xb1", SenderCanonical: new("0x123456789012"),
			SenderZkgm: new("0x3078313233343536373839303132")},
		index.Transfer{SortOrder: "123456789012", PacketHash: "123456789012", BaseAmount: new("123456789012"),
			BaseToken: new("0x313233343536373839303132")},
		amount("0"), amount("00"), amount("000"), amount("0000"), amount("1000"), amount("01000"), amount("-1000"),
		amount("1e3"), amount("18446744073709551615"), amount("18446744073709551616"),
		amount("99999999999999999999999999999999999999"), amount("100000000000000000000000000000000000001"),
		amount("10000000000000000000"), amount("10000000000000000001"),
		amount("1" + strings.Repeat("0", 300)), amount("340282366920938463463374607431768211456"),
		amount("115792089237316195423570985008687907853269984665640564039457584007913129639935"),
		display("0x00aBcd", "0x00abcd"), display("0x00ABCD", "0x00abcd"), display("0X00abcd", "0x00abcd"),
		display("0x00abcé", "0x00abce"),
		display("cosmos1qpzqqqqqq", "0x00"), display("1qqqqqqqq", "0x00"), display("cosmos1qqqqqqqq", "0x0"),
		display("cosmos1QQqqqqqq", "0x00"),
		display("union1qqqqqqqq", "0x00"), display("", ""), display("0x", "0x"), display("0x", ""), display("0x", "zz"),
		display("union1", "0x"), display("union1qqqqqq", "0x"),
	} {
		rows = append(rows, rowOf(t, value))
	}
	const digits = "qpzry9x8gf2tvdw0s3jn54khce6mua7lqpzry9x8gf2tvdw0s3jn54khce6mua7l" // bech32 digits
	for n := range digits {
		rows = append(rows, rowOf(t, index.Packet{SortOrder: "digits " + digits[n:], PacketHash: "0xaf",
			Data: new(digits[n:]), Acknowledgement: new("1" + digits[:n] + "1" + digits[n/2:n])}))
	}
	return append(append(rows, unlikelyTimes(t)...), unlikelyTraces(t)...)
}

func rowOf(t testing.TB, value any) index.Row {
	t.Helper()
	row, err := index.NewRow(value)
	if err != nil {
		t.Fatal(err)
	}
	return row
}

// unlikelyTimes returns packets with every combination of send, receive and acknowledge times, also null.
func unlikelyTimes(t testing.TB) (rows []index.Row) {
	t.Helper()
	at := func(seconds, nanoseconds int64) *time.Time { return new(time.Unix(seconds, nanoseconds).UTC()) }
	times := []*time.Time{
		nil, at(0, 0), at(0, 1), at(-1, 0), at(-1, 999_999_999), at(1_779_206_761, 870_037_213), at(1_779_206_761, 0),
		at(1_779_206_762, 0), at(1_779_272_296, 0),
		at(1_779_272_297, 0), at(1_779_207_861, 1), at(1_779_206_760, 5), at(1<<32-1, 0), at(1<<32, 0),
		at(0, math.MinInt64), at(0, math.MaxInt64),
		at(0, 0x0421<<48), // its bytes begin like a reference to field 33, which has the same value
	}
	for i, sent := range times {
		for j, received := range times {
			written := times[(i+j)%len(times)]
			rows = append(rows, rowOf(t, index.Packet{
				SortOrder: fmt.Sprintf("times %d %d", i, j), PacketHash: "0xad", SendTimestamp: sent,
				RecvTimestamp: received, WriteAckTimestamp: written, AckTimestamp: sent,
				Traces: []index.Trace{{Type: index.TracePacketRecv, UniversalChainID: "a.1", Timestamp: written},
					{Type: index.TraceWriteAck, UniversalChainID: "b.1", Timestamp: sent},
					{Type: index.TracePacketAck, UniversalChainID: "a.1", Timestamp: sent}},
			}))
		}
	}
	return rows
}

// unlikelyTraces returns packets with traces that differ from the packet's own steps, some only slightly.
func unlikelyTraces(t testing.TB) (rows []index.Row) {
	t.Helper()
	hash, other := "0x"+strings.Repeat("ab", 32), "0x"+strings.Repeat("cd", 32)
	like := index.Trace{Type: index.TracePacketSend, UniversalChainID: "a.1", TransactionHash: &hash,
		Height: new("1234"), Timestamp: new(time.Unix(5, 0).UTC()), BlockHash: &other, EventIndex: new("0")}
	for i, change := range []func(*index.Trace){
		func(*index.Trace) {},
		func(s *index.Trace) { s.Type = "" },
		func(s *index.Trace) { s.Type = "PACKET_SEND_LC_UPDATE_L6" },
		func(s *index.Trace) { s.Type = index.TraceSendUpdate + "5" },
		func(s *index.Trace) { s.UniversalChainID = "b.1" },
		func(s *index.Trace) { s.UniversalChainID = "c.1" },
		func(s *index.Trace) { s.UniversalChainID = "é<" },
		func(s *index.Trace) { s.TransactionHash = nil },
		func(s *index.Trace) { s.TransactionHash = &other },
		func(s *index.Trace) { s.TransactionHash = new("0xab") },
		func(s *index.Trace) { s.TransactionHash = new(strings.ToUpper(hash)) },
		func(s *index.Trace) { s.Height = nil },
		func(s *index.Trace) { s.Height = new("9223372036854775807") },
		func(s *index.Trace) { s.Height = new("012") },
		func(s *index.Trace) { s.Height = new("1233") },
		func(s *index.Trace) { s.Height = new("") },
		func(s *index.Trace) { s.Timestamp = nil },
		func(s *index.Trace) { s.Timestamp = new(time.Unix(0, math.MaxInt64).UTC()) },
		func(s *index.Trace) { s.BlockHash = nil },
		func(s *index.Trace) { s.BlockHash = &hash },
		func(s *index.Trace) { s.EventIndex = nil },
		func(s *index.Trace) { s.EventIndex = new("-1") },
		func(s *index.Trace) { s.EventIndex = new("9223372036854775807") },
		func(s *index.Trace) {
			s.TransactionHash, s.Height, s.Timestamp, s.BlockHash, s.EventIndex = nil, nil, nil, nil, nil
		},
		func(s *index.Trace) { s.TransactionHash, s.Height, s.Timestamp, s.BlockHash = nil, nil, nil, nil },
		func(s *index.Trace) { s.Timestamp, s.BlockHash, s.EventIndex = nil, nil, nil },
	} {
		for n, kind := range []string{index.TracePacketSend, index.TraceAckUpdate + "0"} {
			trace := like
			trace.Type = kind
			change(&trace)
			rows = append(rows, rowOf(t, index.Packet{
				SortOrder: fmt.Sprintf("traces %d %d", i, n), PacketHash: "0xae", SourceUniversalChainID: "a.1",
				DestUniversalChainID: "b.1", SendTransactionHash: &hash, SendHeight: new("1234"),
				Structure:     new("1234"),
				SendTimestamp: like.Timestamp, SendBlockHash: &other, AckTransactionHash: &hash,
				AckHeight: new("9223372036854775808"), Traces: []index.Trace{like, trace},
			}))
		}
	}
	return rows
}

// amount returns a transfer of this amount.
func amount(of string) index.Transfer {
	return index.Transfer{SortOrder: "amount " + of, PacketHash: "0xc2", BaseAmount: &of, QuoteAmount: new("1" + of),
		FeeAmount: new(of + "7")}
}

// display returns a transfer with this sender.
func display(shown, canonical string) index.Transfer {
	return index.Transfer{SortOrder: shown + " of " + canonical, PacketHash: "0xc1", SenderCanonical: &canonical,
		SenderDisplay: &shown}
}

// crowded returns the contents of a dictionary with so many heads that a new one is not added at once.
func crowded() (texts [][]byte) {
	const mark, none = 0xff, 0xff
	for i := range 1 << 12 {
		texts = append(texts, []byte{mark, none, byte(i), none, byte(i >> 8)})
	}
	return texts
}

// full returns the contents of a dictionary without room for more texts.
func full() (texts [][]byte) {
	for i := range 1 << 15 {
		texts = append(texts, fmt.Appendf(nil, "\x00text %d", i))
	}
	return texts
}

// Rows are packed without a sample, with one, and with the next, as a store does.
func TestPackedRowsReadAsPlainOnes(t *testing.T) {
	t.Parallel()
	for name, texts := range map[string][][]byte{"into an empty dictionary": nil, "into a crowded one": crowded(),
		"into a full one": full()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			readAsPlainOnes(t, index.NewPacker(texts, nil))
		})
	}
}

func readAsPlainOnes(t *testing.T, p *index.Packer) {
	t.Helper()
	likely := madeUp(t, 250)
	rows := append(likely, unlikely(t)...)
	var packed, samples [][]byte
	for i, row := range rows {
		if i == len(likely)/3 || i == len(likely)/2 {
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
		if repacked := again.Pack(nil, p.Row(row.Type(), order, packed[i])); !bytes.Equal(
			again.Row(row.Type(), order, repacked).Bytes(), row.Bytes()) {
			t.Errorf("%s of %s is another when it is packed again", row.Type().Name, row.Key())
		}
		if i > len(likely)/2 && i < len(likely) {
			plainSize, packedSize = plainSize+len(row.Bytes()), packedSize+len(packed[i])
		}
	}
	if packedSize > plainSize/2 {
		t.Errorf("packed %d bytes to %d", plainSize, packedSize)
	}
}

// Clones outlive the row, both with a head in the row and with one in the dictionary.
func TestCopiesOutliveWhatTheyAreCopiesOf(t *testing.T) {
	t.Parallel()
	for _, p := range []*index.Packer{index.NewPacker(nil, nil), index.NewPacker(crowded(), nil)} {
		for _, row := range madeUp(t, 20) {
			order, packed := []byte(row.SortOrder()), p.Pack(nil, row)
			kept := p.Row(row.Type(), order, packed).Clone()
			clear(order)
			clear(packed)
			samePacked(t, kept, row)
		}
	}
}

// A packed row does not repeat the key under which it is stored.
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

// decoded returns the Go struct of a packet or transfer row.
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
