package indexer_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/big"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/btcsuite/btcd/btcutil/bech32"
	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"

	"github.com/attestd/attestd/appliance/chain/chaintest"
	"github.com/attestd/attestd/appliance/chain/comettest"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/indexer"
	"github.com/attestd/attestd/appliance/index/zkgm"
	"github.com/attestd/attestd/store/replica"
)

// side is one of the two chains of a test: a go-ethereum node, in which the emitter stands for the core contract, or a
// CometBFT node.
type side struct {
	*chaintest.Node
	comet   *comettest.Node // nil for an EVM chain
	id      string
	chainID string
	number  uint32
	other   *side
	update  place  // of the newest UpdateClient
	sent    int    // packets sent
	lane    uint32 // channels have ids that differ by their lane
	foreign []byte // the port of the channel, if it is not zkgm's
}

// The ids on each chain. Each differs from the other chain's, so that a mix-up shows.
func (s *side) client() uint32     { return s.number }
func (s *side) connection() uint32 { return s.number + 10 }
func (s *side) channel() uint32    { return s.number + 20 + 10*s.lane }

// Head returns the number of the newest block.
func (s *side) Head(t testing.TB) uint64 {
	if s.comet != nil {
		return s.comet.Head(t)
	}
	return s.Node.Head(t)
}

var (
	port  = common.HexToAddress("0x5fbe74a283f7954f10aa04c2edf55578811aeb03")
	maker = common.HexToAddress("0x00000000000000000000000000000000000000aa")
)

// wasmPort is zkgm's contract on Union.
const wasmPort = "union1336jj8ertl8h7rdvnz4dh5rqahd09cy0x43guhsxx6xyrztx292qpe64fh"

// contracts are the contracts for transfers of all chains of tests.
var contracts = map[string]string{"ethereum.1001": port.String(), "ethereum.1002": port.String(),
	"union.union-1": wasmPort}

// The bytes of addresses as the chain's events have them: text on a CosmWasm chain.
func (s *side) port() []byte {
	if s.foreign != nil {
		return s.foreign
	}
	if s.comet != nil {
		return []byte(wasmPort)
	}
	return port[:]
}

func (s *side) maker() []byte { return s.address(maker[:]) }

func (s *side) address(raw []byte) []byte {
	if s.comet == nil {
		return raw
	}
	text, err := bech32.EncodeFromBase256("union", raw)
	if err != nil {
		panic(err)
	}
	return []byte(text)
}

func newEVM(t testing.TB, number int64) *side {
	t.Helper()
	id := fmt.Sprint(1000 + number)
	return &side{Node: chaintest.NewChain(t, 1000+number), id: "ethereum." + id, chainID: id, number: uint32(number)}
}

// newWorld starts two EVM chains with clients, a connection and a channel between them.
func newWorld(t testing.TB) (a, b *side) {
	t.Helper()
	a, b = newEVM(t, 1), newEVM(t, 2)
	connect(t, a, b)
	return a, b
}

// newMixedWorld starts an EVM chain and a CosmWasm chain, connected as in newWorld.
func newMixedWorld(t testing.TB) (a, b *side) {
	t.Helper()
	a = newEVM(t, 1)
	b = &side{comet: comettest.New(t, "union-1"), id: "union.union-1", chainID: "union-1", number: 3}
	connect(t, a, b)
	return a, b
}

func connect(t testing.TB, a, b *side) {
	t.Helper()
	a.other, b.other = b, a
	for _, s := range []*side{a, b} {
		s.emit(t, emission{
			chaintest.Event("CreateClient(string,string,uint32,string)",
				[]common.Hash{crypto.Keccak256Hash([]byte("trusted/evm")), chaintest.Word(s.client())},
				arg{Type: "string", Value: "trusted/evm"}, arg{Type: "string", Value: s.other.chainID}),
			comettest.NewEvent("create_client", "client_id", text(s.client()), "client_type", "trusted/evm",
				"counterparty_chain_id", s.other.chainID),
		})
	}
	connected := func(s *side, solidity, wasm string) {
		s.emit(t, emission{
			chaintest.Event(solidity+"(uint32,uint32,uint32,uint32)", []common.Hash{
				chaintest.Word(s.connection()), chaintest.Word(s.client())},
				arg{Type: "uint32", Value: s.other.client()}, arg{Type: "uint32", Value: s.other.connection()}),
			comettest.NewEvent(wasm, "connection_id", text(s.connection()), "client_id", text(s.client()),
				"counterparty_client_id", text(s.other.client()), "counterparty_connection_id",
				text(s.other.connection())),
		})
	}
	connected(b, "ConnectionOpenTry", "connection_open_try")
	connected(a, "ConnectionOpenAck", "connection_open_ack")
	openChannel(t, a, b)
}

func openChannel(t testing.TB, a, b *side) {
	t.Helper()
	version := crypto.Keccak256Hash([]byte(zkgm.ChannelVersion))
	topics := func(s *side) []common.Hash {
		return []common.Hash{common.BytesToHash(s.port()), chaintest.Word(s.channel())}
	}
	attributes := func(s *side) []string {
		return []string{"port_id", string(s.port()), "channel_id", text(s.channel()), "counterparty_port_id",
			common.Bytes2Hex(s.other.port()), "connection_id", text(s.connection())}
	}
	other := func(s *side) []string {
		return append(attributes(s), "counterparty_channel_id", text(s.other.channel()))
	}
	a.emit(t, emission{
		chaintest.Event("ChannelOpenInit(address,uint32,bytes,uint32,string,string)", append(topics(a), version),
			arg{Type: "bytes", Value: b.port()}, arg{Type: "uint32", Value: a.connection()},
			arg{Type: "string", Value: zkgm.ChannelVersion}),
		comettest.NewEvent("channel_open_init", append(attributes(a), "version", zkgm.ChannelVersion)...),
	})
	b.emit(t, emission{
		chaintest.Event("ChannelOpenTry(address,uint32,bytes,uint32,uint32,string,string)",
			append(topics(b), version), arg{Type: "bytes", Value: a.port()}, arg{Type: "uint32", Value: a.channel()},
			arg{Type: "uint32", Value: b.connection()}, arg{Type: "string", Value: zkgm.ChannelVersion}),
		comettest.NewEvent("channel_open_try", append(other(b), "counterparty_version", zkgm.ChannelVersion)...),
	})
	a.emit(t, emission{
		chaintest.Event("ChannelOpenAck(address,uint32,bytes,uint32,uint32)", topics(a),
			arg{Type: "bytes", Value: b.port()},
			arg{Type: "uint32", Value: b.channel()}, arg{Type: "uint32", Value: a.connection()}),
		comettest.NewEvent("channel_open_ack", other(a)...),
	})
}

type arg = chaintest.Argument

func text(n uint32) string { return fmt.Sprint(n) }

// emission is an event of the core contract on either kind of chain.
type emission struct {
	evm  chaintest.Emission
	wasm comettest.Event
}

// place is where an event was emitted.
type place struct {
	block    uint64
	hash, tx common.Hash // tx is zero for an event of a block itself
	index    uint
	time     time.Time
}

// emit emits events in one block.
func (s *side) emit(t testing.TB, events ...emission) (places []place) {
	t.Helper()
	if s.comet != nil {
		return s.emitWasm(t, events)
	}
	var list []chaintest.Emission
	for _, e := range events {
		list = append(list, e.evm)
	}
	for _, l := range s.Emit(t, list...).Logs {
		places = append(places, place{l.BlockNumber, l.BlockHash, l.TxHash, l.Index,
			time.Unix(int64(l.BlockTimestamp), 0).UTC()})
	}
	return places
}

// emitWasm emits events in transactions of two each. A transaction that fails emits the same events before each one.
// Each transaction emits the events of another contract, too. The last event of several has no transaction.
func (s *side) emitWasm(t testing.TB, events []emission) []place {
	t.Helper()
	var list, alone []comettest.Event
	for _, e := range events {
		list = append(list, e.wasm)
	}
	if n := len(list); n > 1 {
		list, alone = list[:n-1], list[n-1:]
	}
	var txs []comettest.Transaction
	var places []place
	seen := uint(0)
	for some := range slices.Chunk(list, 2) {
		foreign := some[0]
		foreign.Contract = wasmPort
		tx := append([]comettest.Event{foreign}, some...)
		txs = append(txs, comettest.Transaction{Code: 5, Events: tx}, comettest.Transaction{Events: tx})
		for i := range some {
			places = append(places, place{index: seen + 1 + uint(i), block: uint64(len(txs) - 1)})
		}
		seen += uint(len(tx))
	}
	made := s.comet.Make(t, alone, txs...)
	for i := range places {
		places[i].tx = made.Transactions[places[i].block]
	}
	if len(alone) > 0 {
		places = append(places, place{index: seen})
	}
	for i := range places {
		places[i].block, places[i].hash = made.Height, made.Hash
		places[i].time = made.Time.Truncate(time.Microsecond)
	}
	return places
}

func (s *side) updateClient() emission {
	return emission{
		chaintest.Event("UpdateClient(uint32,uint64)", []common.Hash{chaintest.Word(s.client())},
			arg{Type: "uint64", Value: uint64(77)}),
		comettest.NewEvent("update_client", "client_id", text(s.client()), "counterparty_height", "77"),
	}
}

// parcel is a packet of a test, and the row that is expected of it.
type parcel struct {
	from   *side
	number int
	packet indexer.Packet
	order  *zkgm.TokenOrderV2
	row    index.Packet
	// the addresses of the order without their form on the chain
	sender, receiver []byte
}

func (p *parcel) topics(channel uint32) []common.Hash {
	return []common.Hash{chaintest.Word(channel), p.packet.Hash()}
}

func (p *parcel) wasm(name string, channel uint32, attributes ...string) comettest.Event {
	return comettest.NewEvent(name, append([]string{"channel_id", text(channel), "packet_hash",
		p.packet.Hash().String()}, attributes...)...)
}

// newParcel returns the next packet of a chain, which is not sent yet.
func newParcel(from *side) *parcel {
	from.sent++
	n := from.sent
	p := &parcel{
		from: from, number: n, sender: binary.BigEndian.AppendUint64(make([]byte, 12), uint64(n)),
		receiver: binary.BigEndian.AppendUint64(append(make([]byte, 11), 1), uint64(n)),
	}
	p.order = &zkgm.TokenOrderV2{
		Sender: from.address(p.sender), Receiver: from.other.address(p.receiver),
		BaseToken: from.maker(), BaseAmount: big.NewInt(int64(1000 + n)), QuoteToken: from.other.port(),
		QuoteAmount: big.NewInt(int64(900 + n)), Kind: zkgm.OrderEscrow, Metadata: []byte{},
	}
	data := zkgm.Packet{Salt: crypto.Keccak256Hash([]byte(fmt.Sprint(from.id, n))), Path: new(big.Int),
		Instruction: p.order.Instruction()}.Encode()
	p.packet = indexer.Packet{SourceChannel: from.channel(), DestinationChannel: from.other.channel(), Data: data,
		TimeoutTimestamp: 1_900_000_000_000_000_000}
	return p
}

func (p *parcel) send() emission {
	return emission{
		chaintest.Emission{
			Topics: append([]common.Hash{
				crypto.Keccak256Hash([]byte("PacketSend(uint32,bytes32,(uint32,uint32,bytes,uint64,uint64))"))},
				p.topics(p.from.channel())...),
			Data: encodePacket(p.packet),
		},
		p.wasm("packet_send", p.from.channel(), "packet_source_channel_id", text(p.packet.SourceChannel),
			"packet_destination_channel_id", text(p.packet.DestinationChannel), "packet_data", hexText(p.packet.Data),
			"packet_timeout_height", "0", "packet_timeout_timestamp", fmt.Sprint(p.packet.TimeoutTimestamp)),
	}
}

func encodePacket(p indexer.Packet) []byte {
	tuple, err := abi.NewType("tuple", "", []abi.ArgumentMarshaling{{Name: "a", Type: "uint32"},
		{Name: "b", Type: "uint32"}, {Name: "c", Type: "bytes"}, {Name: "d", Type: "uint64"},
		{Name: "e", Type: "uint64"}})
	if err != nil {
		panic(err)
	}
	packed, err := abi.Arguments{{Type: tuple}}.Pack(struct {
		A, B uint32
		C    []byte
		D, E uint64
	}{p.SourceChannel, p.DestinationChannel, p.Data, p.TimeoutHeight, p.TimeoutTimestamp})
	if err != nil {
		panic(err)
	}
	return packed
}

func (p *parcel) receive() emission {
	to := p.from.other
	return emission{
		chaintest.Event("PacketRecv(uint32,bytes32,address,bytes)",
			append(p.topics(to.channel()), common.BytesToHash(maker[:])), arg{Type: "bytes", Value: []byte{1, 2}}),
		p.wasm("packet_recv", to.channel(), "maker", string(to.maker()), "maker_msg", "0102"),
	}
}

func acknowledgement(success bool) []byte {
	return zkgm.Ack{Success: success, Inner: zkgm.TokenOrderAck{FillType: zkgm.FillProtocol}.Encode()}.Encode()
}

func (p *parcel) writeAck(success bool) emission {
	to := p.from.other
	return emission{
		chaintest.Event("WriteAck(uint32,bytes32,bytes)", p.topics(to.channel()),
			arg{Type: "bytes", Value: acknowledgement(success)}),
		p.wasm("write_ack", to.channel(), "acknowledgement", common.Bytes2Hex(acknowledgement(success))),
	}
}

func (p *parcel) acknowledge(success bool) emission {
	return emission{
		chaintest.Event("PacketAck(uint32,bytes32,bytes,address)",
			append(p.topics(p.from.channel()), common.BytesToHash(maker[:])),
			arg{Type: "bytes", Value: acknowledgement(success)}),
		p.wasm("packet_ack", p.from.channel(), "acknowledgement", common.Bytes2Hex(acknowledgement(success)), "maker",
			string(p.from.maker())),
	}
}

// timeOut returns a timeout. CosmWasm contracts of different ages name it differently.
func (p *parcel) timeOut() emission {
	name := []string{"packet_timeout", "timeout_packet"}[p.number%2]
	return emission{
		chaintest.Event("PacketTimeout(uint32,bytes32,address)",
			append(p.topics(p.from.channel()), common.BytesToHash(maker[:]))),
		p.wasm(name, p.from.channel(), "maker", string(p.from.maker())),
	}
}

// openIndex opens a replica that closes with the test.
func openIndex(t testing.TB) *replica.Store {
	t.Helper()
	s, err := replica.Open(filepath.Join(t.TempDir(), "replica.db"), replica.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// chainsOf returns the configuration of sides, each with one RPC.
func chainsOf(sides ...*side) (chains []indexer.Chain) {
	for _, s := range sides {
		one := indexer.Chain{ID: s.id, Core: common.Address(chaintest.Emitter)}
		if s.comet != nil {
			one.Contract, one.RPCs = comettest.Core, []string{s.comet.URL}
		} else {
			one.RPCs = []string{s.URL}
		}
		chains = append(chains, one)
	}
	return chains
}

func newIndexer(t testing.TB, idx index.Index, chains []indexer.Chain) *indexer.Indexer {
	t.Helper()
	x, err := indexer.New(indexer.Options{Index: idx, Chains: chains, Zkgm: contracts, PollInterval: 5 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// run runs an indexer until stop is called or the test ends.
func run(t testing.TB, x *indexer.Indexer) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = x.Run(ctx)
	}()
	stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(stop)
	return stop
}

// patience ends a test that hangs. It tests no speed.
const patience = 3 * time.Minute

func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !is(); {
		if time.Now().After(deadline) {
			t.Fatalf("not reached: %s", what)
		}
		time.Sleep(2 * time.Millisecond) // polling interval
	}
}

// caughtUp waits until all chains are indexed to their heads.
func caughtUp(t testing.TB, x *indexer.Indexer, sides ...*side) {
	t.Helper()
	eventually(t, "the chains are indexed", func() bool {
		for i, s := range sides {
			if x.Status()[i].Indexed < s.Head(t) {
				return false
			}
		}
		return true
	})
}
