package zkgm

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"math/big"
	"reflect"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/crypto"
)

// The types of UCS-03 for go-ethereum's ABI package, with which the encoding is compared.
type (
	abiInstruction struct {
		Version, Opcode uint8
		Operand         []byte
	}
	abiPacket struct {
		SourceChannelId, DestinationChannelId uint32
		Data                                  []byte
		TimeoutHeight, TimeoutTimestamp       uint64
	}
)

func component(name, kind string) abi.ArgumentMarshaling {
	return abi.ArgumentMarshaling{Name: name, Type: kind}
}

func arguments(t testing.TB, kinds ...string) abi.Arguments {
	t.Helper()
	var list abi.Arguments
	for _, kind := range kinds {
		var components []abi.ArgumentMarshaling
		switch kind {
		case "instruction":
			kind, components = "tuple", []abi.ArgumentMarshaling{component("version", "uint8"),
				component("opcode", "uint8"), component("operand", "bytes")}
		case "instruction[]":
			kind, components = "tuple[]", []abi.ArgumentMarshaling{component("version", "uint8"),
				component("opcode", "uint8"), component("operand", "bytes")}
		case "packet[]":
			kind, components = "tuple[]", []abi.ArgumentMarshaling{
				component("sourceChannelId", "uint32"), component("destinationChannelId", "uint32"),
				component("data", "bytes"),
				component("timeoutHeight", "uint64"), component("timeoutTimestamp", "uint64"),
			}
		}
		made, err := abi.NewType(kind, "", components)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, abi.Argument{Type: made})
	}
	return list
}

func pack(t testing.TB, kinds []string, values ...any) []byte {
	t.Helper()
	packed, err := arguments(t, kinds...).Pack(values...)
	if err != nil {
		t.Fatal(err)
	}
	return packed
}

var (
	orderV1 = &TokenOrderV1{
		Sender: []byte("union1sender"), Receiver: bytes.Repeat([]byte{7}, 20), BaseToken: []byte("au"),
		BaseAmount:      big.NewInt(1_000_000),
		BaseTokenSymbol: "U", BaseTokenName: "Union <é>", BaseTokenDecimals: 18, BaseTokenPath: big.NewInt(5),
		QuoteToken:  bytes.Repeat([]byte{9}, 20),
		QuoteAmount: new(big.Int).Lsh(big.NewInt(3), 200),
	}
	orderV2 = &TokenOrderV2{
		Sender: bytes.Repeat([]byte{1}, 20), Receiver: bytes.Repeat([]byte{2}, 32),
		BaseToken: bytes.Repeat([]byte{3}, 33), BaseAmount: big.NewInt(5),
		QuoteToken: []byte{4}, QuoteAmount: big.NewInt(6), Kind: OrderUnescrow, Metadata: []byte{},
	}
	call    = &Call{Sender: []byte{1, 2}, Eureka: true, ContractAddress: []byte{3}, ContractCalldata: make([]byte, 68)}
	batch   = &Batch{Instructions: []Instruction{orderV2.Instruction(), call.Instruction(), orderV1.Instruction()}}
	forward = &Forward{Path: new(big.Int).Lsh(big.NewInt(11), 32), TimeoutHeight: 4, TimeoutTimestamp: 1 << 63,
		Next: orderV1.Instruction()}
)

func TestEncodingIsThatOfSolidity(t *testing.T) {
	inner := func(i Instruction) abiInstruction { return abiInstruction(i) }
	list := []abiInstruction{}
	for _, i := range batch.Instructions {
		list = append(list, inner(i))
	}
	for _, test := range []struct {
		name      string
		operation Operation
		want      []byte
	}{
		{"token order v1", orderV1, pack(t,
			[]string{"bytes", "bytes", "bytes", "uint256", "string", "string", "uint8", "uint256", "bytes", "uint256"},
			orderV1.Sender, orderV1.Receiver, orderV1.BaseToken, orderV1.BaseAmount, orderV1.BaseTokenSymbol,
			orderV1.BaseTokenName,
			orderV1.BaseTokenDecimals, orderV1.BaseTokenPath, orderV1.QuoteToken, orderV1.QuoteAmount)},
		{"token order v2", orderV2,
			pack(t, []string{"bytes", "bytes", "bytes", "uint256", "bytes", "uint256", "uint8", "bytes"},
				orderV2.Sender, orderV2.Receiver, orderV2.BaseToken, orderV2.BaseAmount, orderV2.QuoteToken,
				orderV2.QuoteAmount, orderV2.Kind, orderV2.Metadata)},
		{"call", call, pack(t, []string{"bytes", "bool", "bytes", "bytes"}, call.Sender, call.Eureka,
			call.ContractAddress, call.ContractCalldata)},
		{"batch", batch, pack(t, []string{"instruction[]"}, list)},
		{"empty batch", &Batch{}, pack(t, []string{"instruction[]"}, []abiInstruction{})},
		{"forward", forward, pack(t, []string{"uint256", "uint64", "uint64", "instruction"}, forward.Path,
			forward.TimeoutHeight, forward.TimeoutTimestamp, inner(forward.Next))},
	} {
		t.Run(test.name, func(t *testing.T) {
			i := test.operation.Instruction()
			if !bytes.Equal(i.Operand, test.want) {
				t.Fatalf("operand\n%x\nwant\n%x", i.Operand, test.want)
			}
			decoded, err := i.Operation()
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(decoded.Instruction(), i) {
				t.Fatalf("decoded %+v", decoded)
			}
			p := Packet{Salt: [32]byte{1, 31: 2}, Path: big.NewInt(77), Instruction: i}
			want := pack(t, []string{"bytes32", "uint256", "instruction"}, p.Salt, p.Path, inner(i))
			if got := p.Encode(); !bytes.Equal(got, want) {
				t.Fatalf("packet\n%x\nwant\n%x", got, want)
			}
			again, err := Decode(want)
			if err != nil || !bytes.Equal(again.Encode(), want) {
				t.Fatalf("decoded %+v, %v", again, err)
			}
		})
	}
}

func TestAcknowledgements(t *testing.T) {
	order := TokenOrderAck{FillType: FillMarketMaker, MarketMaker: []byte("maker")}
	if want := pack(t, []string{"uint256", "bytes"}, big.NewInt(FillMarketMaker),
		[]byte("maker")); !bytes.Equal(order.Encode(), want) {
		t.Errorf("order: %x", order.Encode())
	}
	acks := [][]byte{order.Encode(), {}, {1}}
	encoded := EncodeBatchAck(acks)
	if want := pack(t, []string{"bytes[]"}, acks); !bytes.Equal(encoded, want) {
		t.Errorf("batch: %x", encoded)
	}
	ack := Ack{Success: true, Inner: encoded}
	if want := pack(t, []string{"uint256", "bytes"}, big.NewInt(1), encoded); !bytes.Equal(ack.Encode(), want) {
		t.Errorf("ack: %x", ack.Encode())
	}
}

func TestPacketHash(t *testing.T) {
	for _, length := range []int{0, 1, 31, 32, 33, 500} {
		p := abiPacket{SourceChannelId: 7, DestinationChannelId: 1<<32 - 1, Data: bytes.Repeat([]byte{0xab}, length),
			TimeoutHeight: 3, TimeoutTimestamp: 1<<64 - 1}
		want := crypto.Keccak256Hash(pack(t, []string{"packet[]"}, []abiPacket{p}))
		if got := PacketHash(p.SourceChannelId, p.DestinationChannelId, p.Data, p.TimeoutHeight,
			p.TimeoutTimestamp); got != want {
			t.Errorf("%d bytes: %x, want %x", length, got, want)
		}
	}
	// Written by hand, to find an error that both implementations share.
	words := "0000000000000000000000000000000000000000000000000000000000000020" + // offset of the list
		"0000000000000000000000000000000000000000000000000000000000000001" + // one packet
		"0000000000000000000000000000000000000000000000000000000000000020" + // its offset
		"0000000000000000000000000000000000000000000000000000000000000001" +
		"0000000000000000000000000000000000000000000000000000000000000002" +
		"00000000000000000000000000000000000000000000000000000000000000a0" + // offset of its data
		"0000000000000000000000000000000000000000000000000000000000000000" +
		"0000000000000000000000000000000000000000000000000000000000000003" +
		"0000000000000000000000000000000000000000000000000000000000000002" +
		"cafe000000000000000000000000000000000000000000000000000000000000"
	raw, err := hex.DecodeString(words)
	if err != nil {
		t.Fatal(err)
	}
	if got := PacketHash(1, 2, []byte{0xca, 0xfe}, 0, 3); got != crypto.Keccak256Hash(raw) {
		t.Errorf("%x", got)
	}
}

func TestOrdersAndShape(t *testing.T) {
	for _, test := range []struct {
		i      Instruction
		orders int
		shape  string
	}{
		{orderV1.Instruction(), 1, "token_order_v1"},
		{batch.Instruction(), 2, "batch_v0(token_order_v2,call_v0,token_order_v1)"},
		{forward.Instruction(), 0, "forward_v0(token_order_v1)"},
		{Instruction{Version: 3, Opcode: 9}, 0, "opcode_9_v3"},
		{Instruction{Opcode: OpCall, Operand: []byte{1}}, 0, "opcode_1_v0"},
	} {
		if n, shape := len(test.i.Orders()), test.i.Shape(); n != test.orders || shape != test.shape {
			t.Errorf("%d orders of %s, want %d of %s", n, shape, test.orders, test.shape)
		}
	}
}

func TestJSON(t *testing.T) {
	p := Packet{Path: big.NewInt(3),
		Instruction: (&Batch{Instructions: []Instruction{call.Instruction(),
			{Version: 1, Opcode: 99, Operand: []byte{1}}}}).Instruction()}
	want := `{"salt":"0x0000000000000000000000000000000000000000000000000000000000000000","path":"3","instruction":{"opcode":2,"version":0,"operand":` +
		`{"_type":"Batch","instructions":[{"opcode":1,"version":0,"operand":{"_type":"Call","sender":"0x0102","eureka":true,"contractAddress":"0x03","contractCalldata":"0x` +
		hex.EncodeToString(make([]byte, 68)) +
		`"}},{"opcode":99,"version":1,"operand":{"_type":"Unknown","operand":"0x01"}}]}}}`
	if got := string(p.AppendJSON(nil)); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	flat := p.AppendFlatJSON(nil)
	var list []map[string]any
	if err := json.Unmarshal(flat, &list); err != nil || len(list) != 3 || list[2]["_index"] != "1" {
		t.Errorf("%s, %v", flat, err)
	}
}

// repeated returns a batch of n instructions that all refer to the same bytes.
func repeated(i Instruction, n int) Instruction {
	elements := newWriter(n)
	for range n {
		elements.uint(uint64(wordSize * n))
	}
	list := append(newWriter(1).uint(uint64(n)).encoded(), append(elements.encoded(), i.encode()...)...)
	return Instruction{Opcode: OpBatch, Operand: newWriter(1).dynamic(list).encoded()}
}

// A crafted batch of instructions that share their bytes does not expand when it is decoded.
func TestAmplification(t *testing.T) {
	p := Packet{Instruction: repeated((&Call{ContractCalldata: make([]byte, 32<<10)}).Instruction(), 1000)}
	for _, decoded := range [][]byte{p.AppendJSON(nil), p.AppendFlatJSON(nil)} {
		if most := 40 * len(p.Instruction.Operand); len(decoded) > most {
			t.Errorf("%d bytes of JSON, want at most %d", len(decoded), most)
		}
	}
}

// Nested batches that share their bytes are detected quickly, and honest batches are accepted.
func TestBounded(t *testing.T) {
	nested := (&Batch{Instructions: []Instruction{forward.Instruction(), batch.Instruction(),
		orderV2.Instruction()}}).Instruction()
	for range MaxDepth {
		nested = (&Forward{Next: nested}).Instruction()
	}
	many := &Batch{}
	for range 5000 {
		many.Instructions = append(many.Instructions, (&Call{}).Instruction(), Instruction{Opcode: 99})
	}
	for _, test := range []struct {
		name    string
		i       Instruction
		bounded bool
	}{
		{"a deep one", nested, true},
		{"many small ones", many.Instruction(), true},
		{"a few that are the same bytes", repeated(call.Instruction(), 3), true},
		{"many that are the same bytes", repeated((&Call{ContractCalldata: make([]byte, 32<<10)}).Instruction(), 1000),
			false},
		{"batches that are the same bytes", repeated(repeated(repeated(orderV2.Instruction(), 8000), 8000), 8000),
			false},
	} {
		start := time.Now()
		if got := test.i.Bounded(); got != test.bounded {
			t.Errorf("%s: %v", test.name, got)
		}
		test.i.Orders()
		if took := time.Since(start); took > time.Minute { // without a bound, many minutes
			t.Errorf("%s took %v", test.name, took)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, o := range []Operation{orderV1, orderV2, call, batch, forward} {
		f.Add(Packet{Path: big.NewInt(1), Instruction: o.Instruction()}.Encode())
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := Decode(data)
		if err != nil {
			return
		}
		for _, decoded := range [][]byte{p.AppendJSON(nil), p.AppendFlatJSON(nil)} {
			if !json.Valid(decoded) {
				t.Fatalf("not JSON: %s", decoded)
			}
		}
		p.Instruction.Shape()
		p.Instruction.Orders()
		again, err := Decode(p.Encode())
		if err != nil || !bytes.Equal(again.Encode(), p.Encode()) {
			t.Fatalf("does not survive: %v", err)
		}
	})
}
