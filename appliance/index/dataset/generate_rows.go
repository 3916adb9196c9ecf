package dataset

import (
	"encoding/hex"
	"strconv"
	"time"

	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/zkgm"
)

func hexText(b []byte) string { return "0x" + hex.EncodeToString(b) }

// packetRow returns a packet before its first step.
func (g *generator) packetRow(f *flight, data []byte, timeout time.Time, hash string) index.Packet {
	r := f.route
	p := index.Packet{
		SortOrder: sortOrder(g.at, g.serial, 0), PacketHash: hash, ChannelVersion: new(zkgm.ChannelVersion),
		SourceUniversalChainID: r.from.id, InternalSourceChainID: new(r.from.number), SourceClientID: new(r.client),
		SourceConnectionID: new(r.connection), SourceChannelID: new(r.channel), SourcePortID: new(r.from.port),
		DestUniversalChainID: r.to.id, InternalDestinationChainID: new(r.to.number),
		DestinationChainID:  new(r.to.chainID),
		DestinationClientID: new(r.back.client), DestinationConnectionID: new(r.back.connection),
		DestinationChannelID: new(r.back.channel), DestinationPortID: new(r.to.port),
		TimeoutHeight: new("0"), TimeoutTimestamp: new(strconv.FormatInt(timeout.UnixNano(), 10)),
		Structure: new(f.instruction.Shape()), Data: new(hexText(data)),
	}
	for _, s := range f.journey.steps {
		p.Traces = append(p.Traces, index.Trace{Type: s.kind, UniversalChainID: s.chain.id})
	}
	return p
}

// travel records the steps that have happened by now in a packet and its transfers.
func (g *generator) travel(f *flight) {
	j := &f.journey
	for ; j.reached < j.stop && !j.steps[j.reached].at.After(g.now); j.reached++ {
		s, t := j.steps[j.reached], &f.packet.Traces[j.reached]
		height := s.chain.height(s.at)
		t.TransactionHash, t.Height, t.Timestamp = new(s.tx), new(strconv.FormatInt(height, 10)), new(s.at)
		t.BlockHash, t.EventIndex = new(s.chain.blockHash(height)), new(strconv.Itoa(g.rng.IntN(60)))
		f.packet.Status = new(s.kind)
		f.arrive(t)
	}
	if !j.timeout.IsZero() && !j.timeout.After(g.now) {
		g.timeOut(f)
	}
	for i := range f.transfers {
		f.stage(&f.transfers[i])
	}
}

// arrive copies a trace that has happened to the packet's own fields.
func (f *flight) arrive(t *index.Trace) {
	p, r := &f.packet, f.route
	switch t.Type {
	case index.TracePacketSend:
		p.SendTimestamp, p.SendBlockHash, p.SendHeight, p.SendTransactionHash = t.Timestamp, t.BlockHash, t.Height,
			t.TransactionHash
	case index.TracePacketRecv:
		p.RecvTimestamp, p.RecvBlockHash, p.RecvHeight, p.RecvTransactionHash = t.Timestamp, t.BlockHash, t.Height,
			t.TransactionHash
		p.RecvMaker, p.RecvMakerMsg = new(hexText(relayer(r.to))), new("0x")
	case index.TraceWriteAck:
		p.WriteAckTimestamp, p.WriteAckBlockHash, p.WriteAckHeight, p.WriteAckTransactionHash = t.Timestamp,
			t.BlockHash, t.Height, t.TransactionHash
		p.Success = new(f.journey.success)
		p.Acknowledgement = new(hexText(acknowledgement(f.instruction, f.journey.success, relayer(r.to))))
	case index.TracePacketAck:
		p.AckTimestamp, p.AckBlockHash, p.AckHeight, p.AckTransactionHash = t.Timestamp, t.BlockHash, t.Height,
			t.TransactionHash
		p.AckMaker = new(hexText(relayer(r.from)))
	}
}

// timeOut ends a packet that was not received in time.
func (g *generator) timeOut(f *flight) {
	p, source, at := &f.packet, f.route.from, f.journey.timeout
	height := source.height(at)
	p.Status = new(index.StatusTimeout)
	p.PacketTimeoutTimestamp, p.PacketTimeoutHeight = new(at), new(strconv.FormatInt(height, 10))
	p.PacketTimeoutBlockHash, p.PacketTimeoutTransactionHash = new(source.blockHash(height)), new(g.hash())
	p.PacketTimeoutMaker = new(hexText(relayer(source)))
	f.journey.timeout = time.Time{}
}

// acknowledgement returns the acknowledgement of an instruction.
func acknowledgement(i zkgm.Instruction, success bool, maker []byte) []byte {
	if !success {
		return zkgm.Ack{}.Encode()
	}
	return zkgm.Ack{Success: true, Inner: innerAck(i, maker)}.Encode()
}

func innerAck(i zkgm.Instruction, maker []byte) []byte {
	o, err := i.Operation()
	if err != nil {
		return nil
	}
	switch o := o.(type) {
	case *zkgm.Batch:
		var acks [][]byte
		for _, inner := range o.Instructions {
			acks = append(acks, innerAck(inner, maker))
		}
		return zkgm.EncodeBatchAck(acks)
	case *zkgm.TokenOrderV1:
		return zkgm.TokenOrderAck{FillType: zkgm.FillProtocol}.Encode()
	case *zkgm.TokenOrderV2:
		if o.Kind == zkgm.OrderSolve {
			return zkgm.TokenOrderAck{FillType: zkgm.FillMarketMaker, MarketMaker: maker}.Encode()
		}
		return zkgm.TokenOrderAck{FillType: zkgm.FillProtocol}.Encode()
	}
	return nil
}

// transferRow returns the transfer of a packet's token order in its current state.
func (g *generator) transferRow(f *flight, idx int32, order zkgm.Operation) index.Transfer {
	r, p := f.route, &f.packet
	t := index.Transfer{
		SortOrder: sortOrder(g.at, g.serial, idx), PacketHash: p.PacketHash, TransferIndex: idx,
		SourceUniversalChainID: r.from.id, DestUniversalChainID: r.to.id, PacketShape: p.Structure,
	}
	f.stage(&t)
	var sender, receiver, base []byte
	switch o := order.(type) {
	case *zkgm.TokenOrderV1:
		sender, receiver, base = o.Sender, o.Receiver, o.BaseToken
		t.QuoteToken, t.BaseAmount, t.QuoteAmount = new(hexText(o.QuoteToken)), new(o.BaseAmount.String()),
			new(o.QuoteAmount.String())
		t.BaseTokenPath = new(o.BaseTokenPath.String())
	case *zkgm.TokenOrderV2:
		sender, receiver, base = o.Sender, o.Receiver, o.BaseToken
		t.QuoteToken, t.BaseAmount, t.QuoteAmount = new(hexText(o.QuoteToken)), new(o.BaseAmount.String()),
			new(o.QuoteAmount.String())
	}
	t.BaseToken = new(hexText(base))
	if known := r.from.byDenom[string(base)]; known != nil {
		t.BaseTokenName, t.BaseTokenSymbol, t.BaseTokenDecimals = new(known.name), new(known.symbol),
			new(known.decimals)
		t.WrapDirection = new("wrapping")
		if known.home != r.from {
			t.WrapDirection = new("unwrapping")
		}
	}
	from, to := r.from.known(sender), r.to.known(receiver)
	t.SenderCanonical, t.SenderDisplay, t.SenderZkgm = new(hexText(from.canonical)), new(from.display),
		new(hexText(from.zkgm))
	t.ReceiverCanonical, t.ReceiverDisplay, t.ReceiverZkgm = new(hexText(to.canonical)), new(to.display),
		new(hexText(to.zkgm))
	if *t.BaseAmount != *t.QuoteAmount {
		t.FeeType, t.FeeToken = new("quote_delta"), t.BaseToken
		t.FeeAmount = new(difference(*t.BaseAmount, *t.QuoteAmount))
	} else {
		t.FeeType, t.FeeToken = new("gas"), new(hexText(r.from.tokens[0].denom))
		t.FeeAmount = new(strconv.Itoa(100_000 + g.rng.IntN(900_000)))
	}
	return t
}

// stage copies the state of the packet to a transfer.
func (f *flight) stage(t *index.Transfer) {
	p := &f.packet
	t.Status, t.Success = p.Status, p.Success
	t.SendTimestamp, t.SendTransactionHash = p.SendTimestamp, p.SendTransactionHash
	t.RecvTimestamp, t.RecvTransactionHash = p.RecvTimestamp, p.RecvTransactionHash
	t.TimeoutTimestamp, t.TimeoutTransactionHash = p.PacketTimeoutTimestamp, p.PacketTimeoutTransactionHash
}
