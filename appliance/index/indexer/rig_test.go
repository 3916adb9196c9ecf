package indexer_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math/big"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"

	"github.com/attestd/attestd/appliance/chain/chaintest"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/indexer"
	"github.com/attestd/attestd/appliance/index/zkgm"
	"github.com/attestd/attestd/store/replica"
)

// side is one of the two chains of a test. Its emitter stands for the core contract.
type side struct {
	*chaintest.Node
	id      string
	chainID int64
	other   *side
	update  types.Log // the newest UpdateClient
	sent    int       // packets sent
}

// The ids on each chain. Each differs from the other chain's, so that a mix-up shows.
func (s *side) client() uint32     { return uint32(s.chainID % 1000) }
func (s *side) connection() uint32 { return s.client() + 10 }
func (s *side) channel() uint32    { return s.client() + 20 }

var (
	port  = common.HexToAddress("0x5fbe74a283f7954f10aa04c2edf55578811aeb03")
	maker = common.HexToAddress("0x00000000000000000000000000000000000000aa")
)

// newWorld starts two chains with clients, a connection and a channel between them.
func newWorld(t testing.TB) (a, b *side) {
	t.Helper()
	a = &side{Node: chaintest.NewChain(t, 1001), id: "ethereum.1001", chainID: 1001}
	b = &side{Node: chaintest.NewChain(t, 1002), id: "ethereum.1002", chainID: 1002}
	a.other, b.other = b, a
	for _, s := range []*side{a, b} {
		s.Emit(t, chaintest.Event("CreateClient(string,string,uint32,string)",
			[]common.Hash{crypto.Keccak256Hash([]byte("trusted/evm")), chaintest.Word(s.client())},
			arg{Type: "string", Value: "trusted/evm"}, arg{Type: "string", Value: fmt.Sprint(s.other.chainID)}))
	}
	connected := func(s *side, name string) {
		s.Emit(t, chaintest.Event(name+"(uint32,uint32,uint32,uint32)", []common.Hash{
			chaintest.Word(s.connection()), chaintest.Word(s.client())},
			arg{Type: "uint32", Value: s.other.client()}, arg{Type: "uint32", Value: s.other.connection()}))
	}
	connected(b, "ConnectionOpenTry")
	connected(a, "ConnectionOpenAck")
	version := crypto.Keccak256Hash([]byte(zkgm.ChannelVersion))
	topics := func(s *side) []common.Hash {
		return []common.Hash{common.BytesToHash(port[:]), chaintest.Word(s.channel())}
	}
	a.Emit(t, chaintest.Event("ChannelOpenInit(address,uint32,bytes,uint32,string,string)", append(topics(a), version),
		arg{Type: "bytes", Value: port[:]}, arg{Type: "uint32", Value: a.connection()},
		arg{Type: "string", Value: zkgm.ChannelVersion}))
	b.Emit(t, chaintest.Event("ChannelOpenTry(address,uint32,bytes,uint32,uint32,string,string)",
		append(topics(b), version), arg{Type: "bytes", Value: port[:]}, arg{Type: "uint32", Value: a.channel()},
		arg{Type: "uint32", Value: b.connection()},
		arg{Type: "string", Value: zkgm.ChannelVersion}))
	a.Emit(t, chaintest.Event("ChannelOpenAck(address,uint32,bytes,uint32,uint32)", topics(a),
		arg{Type: "bytes", Value: port[:]},
		arg{Type: "uint32", Value: b.channel()}, arg{Type: "uint32", Value: a.connection()}))
	return a, b
}

type arg = chaintest.Argument

func (s *side) updateClient() chaintest.Emission {
	return chaintest.Event("UpdateClient(uint32,uint64)", []common.Hash{chaintest.Word(s.client())},
		arg{Type: "uint64", Value: uint64(77)})
}

// parcel is a packet of a test, and the row that is expected of it.
type parcel struct {
	from   *side
	packet indexer.Packet
	order  *zkgm.TokenOrderV2
	row    index.Packet
}

func (p *parcel) topics(channel uint32) []common.Hash {
	return []common.Hash{chaintest.Word(channel), p.packet.Hash()}
}

// newParcel returns the next packet of a chain, which is not sent yet.
func newParcel(from *side) *parcel {
	from.sent++
	n := from.sent
	order := &zkgm.TokenOrderV2{
		Sender:    binary.BigEndian.AppendUint64(make([]byte, 12), uint64(n)),
		Receiver:  binary.BigEndian.AppendUint64(append(make([]byte, 11), 1), uint64(n)),
		BaseToken: maker[:], BaseAmount: big.NewInt(int64(1000 + n)), QuoteToken: port[:],
		QuoteAmount: big.NewInt(int64(900 + n)), Kind: zkgm.OrderEscrow, Metadata: []byte{},
	}
	data := zkgm.Packet{Salt: crypto.Keccak256Hash([]byte(fmt.Sprint(from.id, n))), Path: new(big.Int),
		Instruction: order.Instruction()}.Encode()
	return &parcel{from: from, order: order, packet: indexer.Packet{SourceChannel: from.channel(),
		DestinationChannel: from.other.channel(), Data: data, TimeoutTimestamp: 1_900_000_000_000_000_000}}
}

func (p *parcel) send() chaintest.Emission {
	return chaintest.Emission{
		Topics: append([]common.Hash{
			crypto.Keccak256Hash([]byte("PacketSend(uint32,bytes32,(uint32,uint32,bytes,uint64,uint64))"))},
			p.topics(p.from.channel())...),
		Data: encodePacket(p.packet),
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

func (p *parcel) receive() chaintest.Emission {
	return chaintest.Event("PacketRecv(uint32,bytes32,address,bytes)",
		append(p.topics(p.from.other.channel()), common.BytesToHash(maker[:])), arg{Type: "bytes", Value: []byte{1, 2}})
}

func acknowledgement(success bool) []byte {
	return zkgm.Ack{Success: success, Inner: zkgm.TokenOrderAck{FillType: zkgm.FillProtocol}.Encode()}.Encode()
}

func (p *parcel) writeAck(success bool) chaintest.Emission {
	return chaintest.Event("WriteAck(uint32,bytes32,bytes)", p.topics(p.from.other.channel()),
		arg{Type: "bytes", Value: acknowledgement(success)})
}

func (p *parcel) acknowledge(success bool) chaintest.Emission {
	return chaintest.Event("PacketAck(uint32,bytes32,bytes,address)",
		append(p.topics(p.from.channel()), common.BytesToHash(maker[:])),
		arg{Type: "bytes", Value: acknowledgement(success)})
}

func (p *parcel) timeOut() chaintest.Emission {
	return chaintest.Event("PacketTimeout(uint32,bytes32,address)",
		append(p.topics(p.from.channel()), common.BytesToHash(maker[:])))
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
		chains = append(chains, indexer.Chain{ID: s.id, Core: common.Address(chaintest.Emitter), RPCs: []string{s.URL}})
	}
	return chains
}

func newIndexer(t testing.TB, idx index.Index, chains []indexer.Chain) *indexer.Indexer {
	t.Helper()
	x, err := indexer.New(indexer.Options{Index: idx, Chains: chains, PollInterval: 5 * time.Millisecond})
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

// rowsOf returns the rows of types as NDJSON.
func rowsOf(t testing.TB, idx index.Index, of ...*index.Type) (lines []string) {
	t.Helper()
	err := idx.View(t.Context(), func(snap index.Snapshot) error {
		for _, kind := range of {
			err := snap.Each(t.Context(), kind, func(row index.Row) error {
				lines = append(lines, string(row.AppendLine(nil)))
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(lines)
	return lines
}

func lineOf(t testing.TB, value any) string {
	t.Helper()
	row, err := index.NewRow(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(row.AppendLine(nil))
}

// sameRows compares rows. It shows the first that differ.
func sameRows(t testing.TB, got, want []string) {
	t.Helper()
	has := func(lines []string) map[string]bool {
		set := make(map[string]bool)
		for _, line := range lines {
			set[line] = true
		}
		return set
	}
	missing, extra := has(want), has(got)
	for _, line := range got {
		delete(missing, line)
	}
	for _, line := range want {
		delete(extra, line)
	}
	if len(missing)+len(extra) == 0 {
		return
	}
	first := func(set map[string]bool) string {
		return strings.Join(slices.Sorted(maps.Keys(set))[:min(2, len(set))], "\n")
	}
	t.Errorf("%d rows, want %d; %d are missing, %d are wrong. Missing:\n%s\nwrong:\n%s", len(got), len(want),
		len(missing), len(extra), first(missing), first(extra))
}
