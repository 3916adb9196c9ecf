package dataset

import (
	"encoding/hex"
	"strconv"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/zkgm"
)

func hexText(b []byte) string { return "0x" + hex.EncodeToString(b) }

// packetRecord writes down a packet as far as it has come.
func (g *generator) packetRecord(r *route, j journey, instruction zkgm.Instruction, data []byte, timeout time.Time, hash string) appliance.Packet {
	p := appliance.Packet{
		SortOrder: sortOrder(g.at, g.serial, 0), PacketHash: hash, ChannelVersion: new(zkgm.ChannelVersion),
		SourceUniversalChainID: r.from.id, InternalSourceChainID: new(r.from.number), SourceClientID: new(r.client),
		SourceConnectionID: new(r.connection), SourceChannelID: new(r.channel), SourcePortID: new(r.from.port),
		DestUniversalChainID: r.to.id, InternalDestinationChainID: new(r.to.number), DestinationChainID: new(r.to.chainID),
		DestinationClientID: new(r.back.client), DestinationConnectionID: new(r.back.connection),
		DestinationChannelID: new(r.back.channel), DestinationPortID: new(r.to.port),
		TimeoutHeight: new("0"), TimeoutTimestamp: new(strconv.FormatInt(timeout.UnixNano(), 10)),
		Structure: new(instruction.Shape()), Data: new(hexText(data)),
	}
	for i, s := range j.steps {
		t := appliance.Trace{Type: s.kind, UniversalChainID: s.chain.id}
		if i < j.reached {
			height := s.chain.height(s.at)
			t.TransactionHash, t.Height, t.Timestamp = new(s.tx), new(strconv.FormatInt(height, 10)), new(s.at)
			t.BlockHash, t.EventIndex = new(s.chain.blockHash(height)), new(strconv.Itoa(g.rng.IntN(60)))
			p.Status = new(s.kind)
			g.arrive(&p, r, t, j.success, instruction)
		}
		p.Traces = append(p.Traces, t)
	}
	if !j.timedOut.IsZero() {
		height := r.from.height(j.timedOut)
		p.Status = new(appliance.StatusTimeout)
		p.PacketTimeoutTimestamp, p.PacketTimeoutHeight = new(j.timedOut), new(strconv.FormatInt(height, 10))
		p.PacketTimeoutBlockHash, p.PacketTimeoutTransactionHash = new(r.from.blockHash(height)), new(g.hash())
		p.PacketTimeoutMaker = new(hexText(relayer(r.from)))
	}
	return p
}

// arrive copies a trace that has happened to the packet's own fields.
func (g *generator) arrive(p *appliance.Packet, r *route, t appliance.Trace, success bool, instruction zkgm.Instruction) {
	switch t.Type {
	case appliance.TracePacketSend:
		p.SendTimestamp, p.SendBlockHash, p.SendHeight, p.SendTransactionHash = t.Timestamp, t.BlockHash, t.Height, t.TransactionHash
	case appliance.TracePacketRecv:
		p.RecvTimestamp, p.RecvBlockHash, p.RecvHeight, p.RecvTransactionHash = t.Timestamp, t.BlockHash, t.Height, t.TransactionHash
		p.RecvMaker, p.RecvMakerMsg = new(hexText(relayer(r.to))), new("0x")
	case appliance.TraceWriteAck:
		p.WriteAckTimestamp, p.WriteAckBlockHash, p.WriteAckHeight, p.WriteAckTransactionHash = t.Timestamp, t.BlockHash, t.Height, t.TransactionHash
		p.Success = new(success)
		p.Acknowledgement = new(hexText(acknowledgement(instruction, success, relayer(r.to))))
	case appliance.TracePacketAck:
		p.AckTimestamp, p.AckBlockHash, p.AckHeight, p.AckTransactionHash = t.Timestamp, t.BlockHash, t.Height, t.TransactionHash
		p.AckMaker = new(hexText(relayer(r.from)))
	}
}

// acknowledgement is what the protocol answers to an instruction.
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

// transferRecord writes down a token order of a packet.
func (g *generator) transferRecord(r *route, p *appliance.Packet, index int32, order zkgm.Operation) appliance.Transfer {
	t := appliance.Transfer{
		SortOrder: sortOrder(g.at, g.serial, index), PacketHash: p.PacketHash, TransferIndex: index, Status: p.Status,
		SourceUniversalChainID: r.from.id, DestUniversalChainID: r.to.id, PacketShape: p.Structure, Success: p.Success,
		SendTimestamp: p.SendTimestamp, SendTransactionHash: p.SendTransactionHash,
		RecvTimestamp: p.RecvTimestamp, RecvTransactionHash: p.RecvTransactionHash,
		TimeoutTimestamp: p.PacketTimeoutTimestamp, TimeoutTransactionHash: p.PacketTimeoutTransactionHash,
	}
	var sender, receiver, base []byte
	switch o := order.(type) {
	case *zkgm.TokenOrderV1:
		sender, receiver, base = o.Sender, o.Receiver, o.BaseToken
		t.QuoteToken, t.BaseAmount, t.QuoteAmount = new(hexText(o.QuoteToken)), new(o.BaseAmount.String()), new(o.QuoteAmount.String())
		t.BaseTokenPath = new(o.BaseTokenPath.String())
	case *zkgm.TokenOrderV2:
		sender, receiver, base = o.Sender, o.Receiver, o.BaseToken
		t.QuoteToken, t.BaseAmount, t.QuoteAmount = new(hexText(o.QuoteToken)), new(o.BaseAmount.String()), new(o.QuoteAmount.String())
	}
	t.BaseToken = new(hexText(base))
	if known := r.from.byDenom[string(base)]; known != nil {
		t.BaseTokenName, t.BaseTokenSymbol, t.BaseTokenDecimals = new(known.name), new(known.symbol), new(known.decimals)
		t.WrapDirection = new("wrapping")
		if known.home != r.from {
			t.WrapDirection = new("unwrapping")
		}
	}
	from, to := r.from.known(sender), r.to.known(receiver)
	t.SenderCanonical, t.SenderDisplay, t.SenderZkgm = new(hexText(from.canonical)), new(from.display), new(hexText(from.zkgm))
	t.ReceiverCanonical, t.ReceiverDisplay, t.ReceiverZkgm = new(hexText(to.canonical)), new(to.display), new(hexText(to.zkgm))
	if *t.BaseAmount != *t.QuoteAmount {
		t.FeeType, t.FeeToken = new("quote_delta"), t.BaseToken
		t.FeeAmount = new(difference(*t.BaseAmount, *t.QuoteAmount))
	} else {
		t.FeeType, t.FeeToken = new("gas"), new(hexText(r.from.tokens[0].denom))
		t.FeeAmount = new(strconv.Itoa(100_000 + g.rng.IntN(900_000)))
	}
	return t
}
