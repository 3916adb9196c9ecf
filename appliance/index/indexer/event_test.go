package indexer_test

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/attestd/attestd/appliance/index/indexer"
)

// sample is a real PacketSend of Sepolia with its packet.
type sample struct {
	Log    types.Log `json:"log"`
	Packet struct {
		SourceChannelID      uint32 `json:"sourceChannelId"`
		DestinationChannelID uint32 `json:"destinationChannelId"`
		TimeoutTimestamp     string `json:"timeoutTimestamp"`
		PacketHash           string `json:"packetHash"`
	} `json:"packet"`
}

func readSample(t *testing.T) (s sample) {
	t.Helper()
	text, err := os.ReadFile("testdata/sample.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestARealPacketHasItsHashAndItsSlot decodes an event of a real chain. The slot was computed independently.
func TestARealPacketHasItsHashAndItsSlot(t *testing.T) {
	s := readSample(t)
	e, ok, err := indexer.Decode(s.Log)
	if err != nil || !ok {
		t.Fatalf("decode: %v, %v", ok, err)
	}
	if e.Kind != indexer.PacketSend || e.PacketHash.String() != s.Packet.PacketHash ||
		e.Packet.Hash().String() != s.Packet.PacketHash {
		t.Errorf("%s %s, %s; want the hash %s", e.Kind, e.PacketHash, e.Packet.Hash(), s.Packet.PacketHash)
	}
	if e.Packet.SourceChannel != s.Packet.SourceChannelID ||
		e.Packet.DestinationChannel != s.Packet.DestinationChannelID || e.Packet.TimeoutHeight != 0 ||
		e.Packet.TimeoutTimestamp != 1779221239000000000 || len(e.Packet.Data) != 1280 || e.Channel != 25 {
		t.Errorf("the packet is %+v", e.Packet)
	}
	if e.At.Block != 10881012 || e.At.Index != 32 || e.At.Time.Unix() != 0x6a0ca73c {
		t.Errorf("its place is %+v", e.At)
	}
	const slot = "0xda42f4e550c5209dfa2dfa78fe1487f208f54514332b8534a0fc70313b061a7a"
	if got := indexer.PacketSlot(e.PacketHash).String(); got != slot {
		t.Errorf("the slot is %s, want %s", got, slot)
	}
}

// TestAPacketWithOtherBytesThanItsHashIsRefused changes a byte of the packet.
func TestAPacketWithOtherBytesThanItsHashIsRefused(t *testing.T) {
	s := readSample(t)
	s.Log.Data = slices.Clone(s.Log.Data)
	s.Log.Data[300] ^= 1
	if _, _, err := indexer.Decode(s.Log); err == nil || !strings.Contains(err.Error(), "its topic says") {
		t.Errorf("the error is %v", err)
	}
	s.Log.Data = s.Log.Data[:100]
	if _, _, err := indexer.Decode(s.Log); err == nil {
		t.Error("an event that is cut off was decoded")
	}
}

// TestTopics compares the topics with those of the deployed contracts.
func TestTopics(t *testing.T) {
	want := []string{
		"0x03f4bda014b6bddaa31ba73f9e94f6bf6b7ba5b4f9c65b67640800c2b6296431", // CreateClient
		"0x078276040a4f9f4dea1214e38413d6bac929b39330be19599176564d23d5ef41", // UpdateClient
		"0x0a9d00e740d5a7292ecf25db89826a19ca7963a06c398a7f95947e84d1ce8f31", // ConnectionOpenTry
		"0xdb439789af7a0ed4968cc1f35b0c7dfd9c878c6508bd7fd48053e87df31231d0", // ConnectionOpenAck
		"0x370d54a331c7da62dbd4e3f464f8ca9b0c4726640604fcb08cd4cfb5ed41d033", // ChannelOpenInit
		"0x9856c775e40c73b8fdab7ee177e147e26a1ee9cda934ab9497a46da9ab5481ce", // ChannelOpenTry
		"0x958d927ded58a29a450e24013886756bcee58e1146c05e9d0c671e5003cf8d90", // ChannelOpenAck
		"0x635b5d234fe7abddfb29b6c8498780a3175c9002c537f20a3d1bf9d0e625b5fe", // PacketSend
		"0xe450e03249d131499e278eeafd8e27effcceeb40b0b95628a087aa16b4b101d5", // PacketRecv
		"0xdbb36eab1a905641d6490533e8dfb257a8633c9a26a166c0954a1fc59d7946b7", // IntentPacketRecv
		"0x488830ba53f27b7033e966a79427476ad47d550358e894bafeef8b97c6559251", // WriteAck
		"0x41d958a7d93b50b1f7541c6fc345d0c4657b1e83497baa562c866611ac1f69bb", // PacketAck
		"0x34df62ed9d26dbe71f13d2bd3f645d6cd16b0c44645ef783c2ed799748c80a74", // PacketTimeout
		"0x18469840730c2cbbd67b9f99f6421667b07f0169a795be80a28f182d602daf5b", // CreateWrappedToken
		"0x1b1302794bb5570d2f5ac77ad92788d5ee5795731e03203c6b37503ac696057f", // TokenBucketUpdate
	}
	var got []string
	for _, topic := range indexer.Topics() {
		got = append(got, topic.String())
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("topics\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if _, ok, err := indexer.Decode(types.Log{Topics: []common.Hash{{1}}}); ok || err != nil {
		t.Errorf("another contract's event: %v, %v", ok, err)
	}
}
