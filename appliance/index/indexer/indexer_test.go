package indexer_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"

	"github.com/ethereum/go-ethereum/common"

	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/zkgm"
)

func hexText(b []byte) string { return "0x" + common.Bytes2Hex(b) }

// transaction returns the hash of an event's transaction, nil if it has none.
func (l place) transaction() *string {
	if l.tx == (common.Hash{}) {
		return nil
	}
	return new(l.tx.String())
}

// trace returns a place as a trace.
func trace(kind string, s *side, l place) index.Trace {
	return index.Trace{Type: kind, UniversalChainID: s.id, TransactionHash: l.transaction(),
		Height: new(fmt.Sprint(l.block)), Timestamp: new(l.time), BlockHash: new(l.hash.String()),
		EventIndex: new(fmt.Sprint(l.index))}
}

// started fills the row of a packet that was sent.
func (p *parcel) started(l place) {
	a, b, hash := p.from, p.from.other, p.packet.Hash().String()
	sent := l.time
	id := func(n uint32) *int32 { return new(int32(n)) }
	p.row = index.Packet{
		SortOrder: sent.Format("20060102150405") + "-" + hash + "-" + a.id, PacketHash: hash,
		Status: new("PACKET_SEND"), ChannelVersion: new(zkgm.ChannelVersion), SourceUniversalChainID: a.id,
		SourceClientID: id(a.client()), SourceConnectionID: id(a.connection()), SourceChannelID: id(a.channel()),
		SourcePortID: new(hexText(a.port())), DestUniversalChainID: b.id, DestinationChainID: new(b.chainID),
		DestinationClientID: id(b.client()), DestinationConnectionID: id(b.connection()),
		DestinationChannelID: id(b.channel()), DestinationPortID: new(hexText(b.port())),
		TimeoutHeight: new("0"), TimeoutTimestamp: new(strconv.FormatUint(p.packet.TimeoutTimestamp, 10)),
		SendTimestamp: new(sent), SendBlockHash: new(l.hash.String()), SendHeight: new(fmt.Sprint(l.block)),
		SendTransactionHash: l.transaction(), Structure: new(":3/2"), Data: new(hexText(p.packet.Data)),
		Traces: []index.Trace{trace("PACKET_SEND", a, l), {Type: "PACKET_SEND_LC_UPDATE_L0", UniversalChainID: b.id},
			{Type: "PACKET_RECV", UniversalChainID: b.id}, {Type: "WRITE_ACK", UniversalChainID: b.id},
			{Type: "WRITE_ACK_LC_UPDATE_L0", UniversalChainID: a.id}, {Type: "PACKET_ACK", UniversalChainID: a.id}},
	}
}

func (p *parcel) received(l place) {
	t := trace("PACKET_RECV", p.from.other, l)
	p.row.RecvTimestamp, p.row.RecvBlockHash, p.row.RecvHeight, p.row.RecvTransactionHash = t.Timestamp, t.BlockHash,
		t.Height, t.TransactionHash
	p.row.RecvMaker, p.row.RecvMakerMsg = new(hexText(p.from.other.maker())), new("0x0102")
	p.row.Traces[1] = trace("PACKET_SEND_LC_UPDATE_L0", p.from.other, p.from.other.update)
	p.row.Traces[2], p.row.Status = t, new("PACKET_RECV")
}

func (p *parcel) written(l place, success bool) {
	t := trace("WRITE_ACK", p.from.other, l)
	p.row.WriteAckTimestamp, p.row.WriteAckBlockHash, p.row.WriteAckHeight, p.row.WriteAckTransactionHash = t.Timestamp,
		t.BlockHash, t.Height, t.TransactionHash
	p.row.Acknowledgement, p.row.Success = new(hexText(acknowledgement(success))), new(success)
	p.row.Traces[3], p.row.Status = t, new("WRITE_ACK")
}

func (p *parcel) acknowledged(l place) {
	t := trace("PACKET_ACK", p.from, l)
	p.row.AckTimestamp, p.row.AckBlockHash, p.row.AckHeight, p.row.AckTransactionHash = t.Timestamp, t.BlockHash,
		t.Height, t.TransactionHash
	p.row.AckMaker = new(hexText(p.from.maker()))
	p.row.Traces[4] = trace("WRITE_ACK_LC_UPDATE_L0", p.from, p.from.update)
	p.row.Traces[5], p.row.Status = t, new("PACKET_ACK")
}

func (p *parcel) timedOut(l place) {
	t := trace("", p.from, l)
	p.row.PacketTimeoutTimestamp, p.row.PacketTimeoutBlockHash = t.Timestamp, t.BlockHash
	p.row.PacketTimeoutHeight, p.row.PacketTimeoutTransactionHash = t.Height, t.TransactionHash
	p.row.PacketTimeoutMaker, p.row.Status = new(hexText(p.from.maker())), new("TIMEOUT")
}

// display returns an address as the chain shows it.
func (s *side) display(address []byte) string {
	if s.comet != nil {
		return string(address)
	}
	return hexText(address)
}

// transfer returns the row that is expected of the packet's order.
func (p *parcel) transfer() index.Transfer {
	a, b := p.from, p.from.other
	return index.Transfer{
		SortOrder: p.row.SortOrder + "-000", PacketHash: p.row.PacketHash, Status: p.row.Status,
		SourceUniversalChainID: p.row.SourceUniversalChainID, DestUniversalChainID: p.row.DestUniversalChainID,
		SenderCanonical: new(hexText(p.sender)), SenderDisplay: new(a.display(p.order.Sender)),
		SenderZkgm: new(hexText(p.order.Sender)), ReceiverCanonical: new(hexText(p.receiver)),
		ReceiverDisplay: new(b.display(p.order.Receiver)), ReceiverZkgm: new(hexText(p.order.Receiver)),
		BaseToken: new(hexText(p.order.BaseToken)), BaseAmount: new(p.order.BaseAmount.String()),
		QuoteToken: new(hexText(p.order.QuoteToken)), QuoteAmount: new(p.order.QuoteAmount.String()),
		SendTimestamp: p.row.SendTimestamp, SendTransactionHash: p.row.SendTransactionHash,
		RecvTimestamp: p.row.RecvTimestamp, RecvTransactionHash: p.row.RecvTransactionHash,
		TimeoutTimestamp: p.row.PacketTimeoutTimestamp, TimeoutTransactionHash: p.row.PacketTimeoutTransactionHash,
		Success: p.row.Success, PacketShape: new("transfer_v2"), FeeType: new("swap"),
	}
}

// exchange sends packets both ways: of five, one is acknowledged, one fails, one times out, one is received only, and
// one is on its way.
func exchange(t testing.TB, a, b *side, packets int) (all []*parcel) {
	t.Helper()
	for _, from := range []*side{a, b} {
		var group []*parcel
		var sends, receives, ends []emission
		receives, ends = append(receives, from.other.updateClient()), append(ends, from.updateClient())
		for n := range packets / 2 {
			p := newParcel(from)
			group, sends = append(group, p), append(sends, p.send())
			switch n % 5 {
			case 0, 1:
				receives = append(receives, p.receive(), p.writeAck(n%5 == 0))
				ends = append(ends, p.acknowledge(n%5 == 0))
			case 2:
				ends = append(ends, p.timeOut())
			case 3:
				receives = append(receives, p.receive())
			}
		}
		all = append(all, group...)
		for i, l := range from.emit(t, sends...) {
			group[i].started(l)
		}
		logs := from.other.emit(t, receives...)
		from.other.update = logs[0]
		i := 1
		next := func(logs []place) place { i++; return logs[i-1] }
		for n, p := range group {
			switch n % 5 {
			case 0, 1:
				p.received(next(logs))
				p.written(next(logs), n%5 == 0)
			case 3:
				p.received(next(logs))
			}
		}
		logs, i = from.emit(t, ends...), 1
		from.update = logs[0]
		for n, p := range group {
			switch n % 5 {
			case 0, 1:
				p.acknowledged(next(logs))
			case 2:
				p.timedOut(next(logs))
			}
		}
	}
	return all
}

// expected returns the rows of packets and their transfers.
func expected(t *testing.T, all []*parcel) (lines []string) {
	for _, p := range all {
		lines = append(lines, lineOf(t, p.row), lineOf(t, p.transfer()))
	}
	return lines
}

// TestTwoChains compares each row of two chains with what was sent: of two EVM chains, and of an EVM chain and a
// CosmWasm chain.
func TestTwoChains(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(testing.TB) (a, b *side){"EVM": newWorld, "CosmWasm": newMixedWorld} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := start(t)
			checkTwoChains(t, a, b)
		})
	}
}

func checkTwoChains(t *testing.T, a, b *side) {
	t.Helper()
	all := exchange(t, a, b, 60)
	idx := openIndex(t)
	x := newIndexer(t, idx, chainsOf(a, b))
	run(t, x)
	caughtUp(t, x, a, b)
	sameRows(t, rowsOf(t, idx, index.PacketType, index.TransferType), expected(t, all))
	all = append(all, exchange(t, a, b, 20)...) // while the indexer runs
	caughtUp(t, x, a, b)
	sameRows(t, rowsOf(t, idx, index.PacketType, index.TransferType), expected(t, all))
	for _, s := range x.Status() {
		if s.Refused != 0 || s.Error != "" {
			t.Errorf("status %+v", s)
		}
	}
}

// failing is an index that fails at random, before or after a write: like a process that is killed then.
type failing struct {
	index.Index
	mu     sync.Mutex
	random *rand.Rand
	killed bool
}

func (f *failing) Write(ctx context.Context, b index.Batch) (index.Written, error) {
	f.mu.Lock()
	dies, after := f.killed || f.random.IntN(3) == 0, f.random.IntN(2) == 0 && !f.killed
	f.killed = f.killed || dies
	f.mu.Unlock()
	if dies && !after {
		return index.Written{}, errors.New("killed before the write")
	}
	w, err := f.Index.Write(ctx, b)
	if dies {
		return index.Written{}, errors.New("killed after the write")
	}
	return w, err
}

// TestAPacketWithOtherTracesIsLeftAlone has a row of an upstream that was followed before.
func TestAPacketWithOtherTracesIsLeftAlone(t *testing.T) {
	t.Parallel()
	a, b := newWorld(t)
	all := exchange(t, a, b, 10)
	other := all[0].row
	other.Traces = nil
	idx := openIndex(t)
	if _, err := idx.Write(t.Context(), index.Batch{Rows: []index.Row{rowOf(t, other)}}); err != nil {
		t.Fatal(err)
	}
	x := newIndexer(t, idx, chainsOf(a, b))
	run(t, x)
	caughtUp(t, x, a, b)
	sameRows(t, rowsOf(t, idx, index.PacketType, index.TransferType), append(expected(t, all[1:]), lineOf(t, other)))
}

// TestAKillAtAnyMomentLosesNothing kills the indexer before and after writes, many times.
func TestAKillAtAnyMomentLosesNothing(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(testing.TB) (a, b *side){"EVM": newWorld, "CosmWasm": newMixedWorld} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := start(t)
			checkKills(t, a, b)
		})
	}
}

func checkKills(t *testing.T, a, b *side) {
	t.Helper()
	idx := openIndex(t)
	random := rand.New(rand.NewPCG(1, 2))
	var all []*parcel
	for range 8 {
		all = append(all, exchange(t, a, b, 10)...)
		f := &failing{Index: idx, random: random}
		x := newIndexer(t, f, chainsOf(a, b))
		stop := run(t, x)
		eventually(t, "the indexer is killed or done", func() bool {
			f.mu.Lock()
			defer f.mu.Unlock()
			s := x.Status()
			return f.killed || s[0].Indexed == a.Head(t) && s[1].Indexed == b.Head(t)
		})
		stop()
	}
	x := newIndexer(t, idx, chainsOf(a, b))
	run(t, x)
	caughtUp(t, x, a, b)
	sameRows(t, rowsOf(t, idx, index.PacketType, index.TransferType), expected(t, all))
}

// TestOnlyPacketsBetweenTheContractsForTransfersAreTransfers opens channels of the transfers' version, of which one end
// is another contract. Their packets are no transfers.
func TestOnlyPacketsBetweenTheContractsForTransfersAreTransfers(t *testing.T) {
	t.Parallel()
	stranger := common.HexToAddress("0x1111111111111111111111111111111111111111")
	for name, start := range map[string]func(testing.TB) (a, b *side){"EVM": newWorld, "CosmWasm": newMixedWorld} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := start(t)
			lines := expected(t, exchange(t, a, b, 10))
			for i, s := range []*side{a, b} {
				a.lane, b.lane, a.foreign, b.foreign = uint32(i+1), uint32(i+1), nil, nil
				s.foreign = s.address(stranger[:])
				openChannel(t, a, b)
				for _, p := range exchange(t, a, b, 10) {
					lines = append(lines, lineOf(t, p.row))
				}
			}
			idx := openIndex(t)
			x := newIndexer(t, idx, chainsOf(a, b))
			run(t, x)
			caughtUp(t, x, a, b)
			sameRows(t, rowsOf(t, idx, index.PacketType, index.TransferType), lines)
		})
	}
}
