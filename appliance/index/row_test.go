package index

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
)

func samplePacket() Packet {
	at := time.Date(2026, 5, 20, 12, 0, 0, 123456000, time.UTC)
	return Packet{
		SortOrder: "0001", PacketHash: "0xab", SourceUniversalChainID: "union.union-1",
		DestUniversalChainID: "ethereum.1",
		SourceChannelID:      new(int32(-7)), SendTimestamp: &at, SendHeight: new(""), Success: new(false),
		Data:                new("0x" + strings.Repeat("00", 500) + "01"),
		SendTransactionHash: new("0x" + strings.Repeat("ab", 32)),
		RecvTransactionHash: new("0x" + strings.Repeat("ab", 32)),
		RecvMaker:           new("relayer <é> \"\\\u2028"), AckMaker: new("0x72656c61796572203cc3a93e20225ce280a8"),
		Acknowledgement: new("0xABcd"),
		Decoded:         json.RawMessage(`{"a": [1, "<b>"]}`),
		Traces: []Trace{{Type: TracePacketSend, UniversalChainID: "union.union-1", Timestamp: &at,
			Height: new("12")}, {Type: TracePacketAck, UniversalChainID: "x"}},
	}
}

func TestRowsHoldWhatTheyWereMadeOf(t *testing.T) {
	packet := samplePacket()
	row, err := NewRow(packet)
	if err != nil {
		t.Fatal(err)
	}
	var again Packet
	if err := row.Decode(&again); err != nil {
		t.Fatal(err)
	}
	packet.Decoded = json.RawMessage(`{"a":[1,"\u003cb\u003e"]}`)
	if !reflect.DeepEqual(again, packet) {
		t.Errorf("%+v\nwant %+v", again, packet)
	}
}

// AppendJSON writes every field as encoding/json does.
func TestFieldsAreWrittenAsEncodingJSONDoes(t *testing.T) {
	packet := samplePacket()
	row, err := NewRow(packet)
	if err != nil {
		t.Fatal(err)
	}
	v := reflect.ValueOf(packet)
	for _, f := range row.Type().Fields {
		if f.Kind == FieldList || f.Name == "decoded_flattened" {
			continue
		}
		want, err := json.Marshal(v.Field(f.member).Interface())
		if err != nil {
			t.Fatal(err)
		}
		if got := string(row.AppendJSON(nil, f.Number)); got != string(want) {
			t.Errorf("%s: %s, want %s", f.Name, got, want)
		}
	}
}

func TestRepeatedAndSparseValuesAreSmall(t *testing.T) {
	row, err := NewRow(samplePacket())
	if err != nil {
		t.Fatal(err)
	}
	for name, most := range map[string]int{"packet_recv_transaction_hash": 2, "packet_ack_maker": 2, "data": 8,
		"packet_send_transaction_hash": 33} {
		if n := len(row.value(row.Type().MustField(name).Number)); n > most {
			t.Errorf("%s takes %d bytes, want at most %d", name, n, most)
		}
	}
}

func TestLargeRows(t *testing.T) {
	packet := samplePacket()
	packet.Data = new("0x" + strings.Repeat("5a", 200_000))
	packet.RecvMakerMsg = new(strings.Repeat("é", 70_000))
	row, err := NewRow(packet)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := ParseLine(row.AppendLine(nil))
	if err != nil || !bytes.Equal(parsed.Bytes(), row.Bytes()) {
		t.Errorf("%v", err)
	}
	if s, _ := parsed.Text(row.Type().MustField("packet_recv_maker_msg").Number); s != *packet.RecvMakerMsg {
		t.Error("the text is another")
	}
}

func TestPagesAndParsers(t *testing.T) {
	for _, test := range []struct {
		limit *int32
		size  int
	}{{nil, 100}, {new(int32(1)), 1}, {new(int32(100)), 100}, {new(int32(101)), 100}, {new(int32(0)), 0},
		{new(int32(-5)), 0}} {
		size, err := Page{Limit: test.limit}.Size()
		if size != test.size || (err == nil) != (size > 0) {
			t.Errorf("limit %v: %d, %v", test.limit, size, err)
		}
	}
	if _, err := ParseDirection("LT"); appliance.CodeOf(err) != appliance.CodeInvalidField {
		t.Error(err)
	}
	for text, want := range map[string]time.Duration{
		"01:30:00": 90 * time.Minute, "2 hours": 2 * time.Hour, "1 day 30 minutes": 24*time.Hour + 30*time.Minute,
		"PT1H30M": 90 * time.Minute, "45s": 45 * time.Second,
	} {
		if d, err := ParseInterval(text); err != nil || d != want {
			t.Errorf("%q: %v, %v", text, d, err)
		}
	}
	for _, text := range []string{"", "soon", "1", "1 parsec", "hour 1"} {
		if d, err := ParseInterval(text); err == nil {
			t.Errorf("%q is %v", text, d)
		}
	}
}

func TestAnObjectIsReadAsARowOfItsType(t *testing.T) {
	row, err := NewRow(samplePacket())
	if err != nil {
		t.Fatal(err)
	}
	object := string(row.AppendObject(nil))
	parsed, err := ParseRow(PacketType, []byte(object))
	if err != nil || parsed.Type() != PacketType || !bytes.Equal(parsed.Bytes(), row.Bytes()) {
		t.Errorf("%v", err)
	}
	for _, test := range []struct {
		name, object string
		of           *Type
		code         appliance.Code
	}{
		{"a kind", `{"kind":"packet",` + object[1:], PacketType, appliance.CodeUnknownField},
		{"another type", object, TransferType, appliance.CodeUnknownField},
		{"no key", strings.Replace(object, `"packet_hash":"0xab",`, "", 1), PacketType, appliance.CodeMissingField},
		{"a key that is null", strings.Replace(object, `"0xab"`, "null", 1), PacketType, appliance.CodeMissingField},
		{"a number for text", strings.Replace(object, `"0xab"`, "5", 1), PacketType, appliance.CodeInvalidField},
		{"a bad time", strings.Replace(object, "2026-05-20T", "2026-05-99T", 1), PacketType,
			appliance.CodeInvalidField},
		{"half an object", object[:len(object)/2], PacketType, appliance.CodeInvalidJSON},
		{"two objects", object + object, PacketType, appliance.CodeInvalidJSON},
		{"null", "null", PacketType, appliance.CodeInvalidJSON},
		{"nothing", "", PacketType, appliance.CodeInvalidJSON},
	} {
		if _, err := ParseRow(test.of, []byte(test.object)); appliance.CodeOf(err) != test.code {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

// FuzzParseLine compares ParseLine with encoding/json. Input that both accept means the same. Accepted input is written
// in one form, which reads as the same row.
func FuzzParseLine(f *testing.F) {
	row, err := NewRow(samplePacket())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(row.AppendLine(nil))
	f.Add(
		[]byte(
			`{"kind":"transfer","sort_order":"1","packet_hash":"0x01","transfer_index":3,"source_universal_chain_id":"a","destination_universal_chain_id":"b"}`))
	f.Add(
		[]byte(
			`{"kind":"channel","sort_order":"1","source_universal_chain_id":"a","source_channel_id":1,"destination_universal_chain_id":"b","tags":["x","\ud83d\ude00"],"fees":[{"fee":"1"}]}`))
	f.Add(
		[]byte(
			`{"kind":"token","universal_chain_id":"a","denom":"0x01","representations":[{"universal_chain_id":"a","sources":[{"universal_chain_id":"b","source":{"name":"n"}}]}],"bucket":null}`))
	f.Add([]byte(`{"kind":"chain","universal_chain_id":"a","status":{"timestamp":"2026-01-01T00:00:00+02:00"}}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		row, err := ParseLine(line)
		if err != nil {
			if code := appliance.CodeOf(err); code == appliance.CodeInternal {
				t.Fatalf("an error without a code: %v", err)
			}
			return
		}
		if !json.Valid(line) {
			t.Fatal("taken though it is not JSON")
		}
		written := row.AppendLine(nil)
		again, err := ParseLine(written)
		if err != nil || !bytes.Equal(again.Bytes(), row.Bytes()) {
			t.Fatalf("%s: %v", written, err)
		}
		decoded := reflect.New(row.Type().goType)
		if err := json.Unmarshal(line, decoded.Interface()); err != nil {
			t.Fatalf("encoding/json: %v", err)
		}
		want, err := NewRow(decoded.Elem().Interface())
		if err != nil || !bytes.Equal(want.Bytes(), row.Bytes()) {
			t.Fatalf("%s\nby encoding/json %s, %v", written, want.AppendLine(nil), err)
		}
	})
}
