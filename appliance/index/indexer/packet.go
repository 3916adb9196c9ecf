package indexer

import (
	"bytes"
	"strconv"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/zkgm"
)

// traceSend is the first trace of a packet as published clients expect it.
const traceSend = "PACKET_SEND"

// The traces of a packet between two chains with a direct client of each other, by their position in Packet.Traces.
const (
	atSend = iota
	atSendUpdate
	atRecv
	atWriteAck
	atAckUpdate
	atAck
)

func newTraces(source, destination string) []index.Trace {
	return []index.Trace{
		atSend:       {Type: traceSend, UniversalChainID: source},
		atSendUpdate: {Type: index.TraceSendUpdate + "0", UniversalChainID: destination},
		atRecv:       {Type: index.TracePacketRecv, UniversalChainID: destination},
		atWriteAck:   {Type: index.TraceWriteAck, UniversalChainID: destination},
		atAckUpdate:  {Type: index.TraceAckUpdate + "0", UniversalChainID: source},
		atAck:        {Type: index.TracePacketAck, UniversalChainID: source},
	}
}

// step is an event after the sending of a packet. Steps that are read before the packet itself are stored as JSON.
type step struct {
	Kind            Kind         `json:"kind"`
	Channel         uint32       `json:"channel"` // on the chain of At
	At              index.Trace  `json:"at"`
	Maker           string       `json:"maker,omitempty"` // 0x-hex, as the two below
	MakerMessage    string       `json:"makerMessage,omitempty"`
	Acknowledgement string       `json:"acknowledgement,omitempty"`
	Update          *index.Trace `json:"update,omitempty"` // the newest update of the channel's client before the event
}

// same reports whether two steps are the same event.
func (s *step) same(other *step) bool {
	return s.Kind == other.Kind && s.Channel == other.Channel && s.At.UniversalChainID == other.At.UniversalChainID
}

// traceOf returns an event's place as a trace without a type.
func traceOf(at Place) index.Trace {
	t := index.Trace{
		UniversalChainID: at.Chain, Height: new(strconv.FormatUint(at.Block, 10)), Timestamp: new(at.Time),
		BlockHash: new(at.BlockHash.String()), EventIndex: new(strconv.FormatUint(uint64(at.Index), 10)),
	}
	if at.Transaction != (common.Hash{}) {
		t.TransactionHash = new(at.Transaction.String())
	}
	return t
}

// sortOrder returns the sort_order of a packet.
func sortOrder(sent time.Time, hash, chain string) string {
	return sent.UTC().Format("20060102150405") + "-" + hash + "-" + chain
}

// newPacket returns the packet of a PacketSend on a channel.
func newPacket(e *Event, ch *index.Channel) index.Packet {
	hash := e.PacketHash.String()
	_, chainID, _ := strings.Cut(ch.DestUniversalChainID, ".")
	return index.Packet{
		PacketHash: hash, ChannelVersion: ch.Version,
		SourceUniversalChainID: ch.SourceUniversalChainID, SourceClientID: ch.SourceClientID,
		SourceConnectionID: ch.SourceConnectionID, SourceChannelID: new(ch.SourceChannelID),
		SourcePortID: ch.SourcePortID, DestUniversalChainID: ch.DestUniversalChainID,
		DestinationChainID: new(chainID), DestinationClientID: ch.DestinationClientID,
		DestinationConnectionID: ch.DestinationConnectionID,
		DestinationChannelID:    new(int32(e.Packet.DestinationChannel)), DestinationPortID: ch.DestinationPortID,
		TimeoutHeight:    new(strconv.FormatUint(e.Packet.TimeoutHeight, 10)),
		TimeoutTimestamp: new(strconv.FormatUint(e.Packet.TimeoutTimestamp, 10)),
		Data:             new(hexOf(e.Packet.Data)), Structure: structure(ch, e.Packet.Data),
		Traces: newTraces(ch.SourceUniversalChainID, ch.DestUniversalChainID),
	}
}

func structure(ch *index.Channel, data []byte) *string {
	if ch.Version == nil || *ch.Version != zkgm.ChannelVersion {
		return nil
	}
	decoded, err := zkgm.Decode(data)
	if err != nil {
		return nil
	}
	return new(structureOf(decoded))
}

// happen records a trace.
func happen(p *index.Packet, position int, at index.Trace) {
	at.Type = p.Traces[position].Type
	p.Traces[position] = at
}

// send records the sending.
func send(p *index.Packet, at index.Trace) {
	happen(p, atSend, at)
	p.SortOrder = sortOrder(*at.Timestamp, p.PacketHash, p.SourceUniversalChainID)
	p.SendTimestamp, p.SendBlockHash, p.SendHeight, p.SendTransactionHash = at.Timestamp, at.BlockHash, at.Height,
		at.TransactionHash
	settle(p)
}

// take records a step, and returns false if the step does not belong to the packet's channel: another chain may have
// emitted the same hash.
func take(p *index.Packet, s *step) bool {
	chain, channel := p.SourceUniversalChainID, p.SourceChannelID
	if s.Kind == PacketRecv || s.Kind == IntentPacketRecv || s.Kind == WriteAck {
		chain, channel = p.DestUniversalChainID, p.DestinationChannelID
	}
	if s.At.UniversalChainID != chain || channel == nil || *channel != int32(s.Channel) ||
		len(p.Traces) != atAck+1 {
		return false
	}
	at := s.At
	switch s.Kind {
	case PacketRecv, IntentPacketRecv:
		happen(p, atRecv, at)
		p.RecvTimestamp, p.RecvBlockHash, p.RecvHeight, p.RecvTransactionHash = at.Timestamp, at.BlockHash, at.Height,
			at.TransactionHash
		p.RecvMaker, p.RecvMakerMsg = new(s.Maker), new(s.MakerMessage)
		s.update(p, atSendUpdate)
	case WriteAck:
		happen(p, atWriteAck, at)
		p.WriteAckTimestamp, p.WriteAckBlockHash, p.WriteAckHeight, p.WriteAckTransactionHash = at.Timestamp,
			at.BlockHash, at.Height, at.TransactionHash
		acknowledge(p, s.Acknowledgement)
	case PacketAck:
		happen(p, atAck, at)
		p.AckTimestamp, p.AckBlockHash, p.AckHeight, p.AckTransactionHash = at.Timestamp, at.BlockHash, at.Height,
			at.TransactionHash
		p.AckMaker = new(s.Maker)
		acknowledge(p, s.Acknowledgement)
		s.update(p, atAckUpdate)
	case PacketTimeout:
		p.PacketTimeoutTimestamp, p.PacketTimeoutBlockHash, p.PacketTimeoutHeight, p.PacketTimeoutTransactionHash =
			at.Timestamp, at.BlockHash, at.Height, at.TransactionHash
		p.PacketTimeoutMaker = new(s.Maker)
	}
	settle(p)
	return true
}

// update records the update of the client with which a step was proved. A rescan may not know it, and leaves what an
// earlier read has found.
func (s *step) update(p *index.Packet, position int) {
	if s.Update != nil {
		happen(p, position, *s.Update)
	}
}

// stepsOf returns the steps that a packet has taken.
func stepsOf(p *index.Packet) (steps []*step) {
	add := func(kind Kind, position, update int, channel *int32, s step) {
		at := p.Traces[position]
		if at.Height == nil || channel == nil {
			return
		}
		at.Type = ""
		s.Kind, s.At, s.Channel = kind, at, uint32(*channel)
		if update != 0 && p.Traces[update].Height != nil {
			s.Update = new(p.Traces[update])
			s.Update.Type = ""
		}
		steps = append(steps, &s)
	}
	add(PacketRecv, atRecv, atSendUpdate, p.DestinationChannelID,
		step{Maker: textOf(p.RecvMaker), MakerMessage: textOf(p.RecvMakerMsg)})
	add(WriteAck, atWriteAck, 0, p.DestinationChannelID, step{Acknowledgement: textOf(p.Acknowledgement)})
	add(PacketAck, atAck, atAckUpdate, p.SourceChannelID,
		step{Maker: textOf(p.AckMaker), Acknowledgement: textOf(p.Acknowledgement)})
	if p.PacketTimeoutHeight != nil && p.SourceChannelID != nil {
		steps = append(steps, &step{Kind: PacketTimeout, Channel: uint32(*p.SourceChannelID),
			Maker: textOf(p.PacketTimeoutMaker), At: index.Trace{UniversalChainID: p.SourceUniversalChainID,
				Timestamp: p.PacketTimeoutTimestamp, BlockHash: p.PacketTimeoutBlockHash,
				Height: p.PacketTimeoutHeight, TransactionHash: p.PacketTimeoutTransactionHash}})
	}
	return steps
}

func textOf(text *string) string {
	if text == nil {
		return ""
	}
	return *text
}

// forget takes all steps out of a packet, so that it is only sent.
func forget(p *index.Packet) {
	sent := p.Traces[atSend]
	p.Traces = newTraces(p.SourceUniversalChainID, p.DestUniversalChainID)
	p.Traces[atSend] = sent
	p.RecvTimestamp, p.RecvBlockHash, p.RecvHeight, p.RecvTransactionHash = nil, nil, nil, nil
	p.RecvMaker, p.RecvMakerMsg = nil, nil
	p.WriteAckTimestamp, p.WriteAckBlockHash, p.WriteAckHeight, p.WriteAckTransactionHash = nil, nil, nil, nil
	p.AckTimestamp, p.AckBlockHash, p.AckHeight, p.AckTransactionHash, p.AckMaker = nil, nil, nil, nil, nil
	p.PacketTimeoutTimestamp, p.PacketTimeoutBlockHash, p.PacketTimeoutHeight = nil, nil, nil
	p.PacketTimeoutTransactionHash, p.PacketTimeoutMaker = nil, nil
	p.Acknowledgement, p.Success = nil, nil
	settle(p)
}

// acknowledge records the acknowledgement and the success that it reports.
func acknowledge(p *index.Packet, text string) {
	p.Acknowledgement = new(text)
	if p.ChannelVersion == nil {
		return
	}
	if success, ok := successIn(*p.ChannelVersion, text); ok {
		p.Success = new(success)
	}
}

// successIn returns the success that an acknowledgement reports: its tag. ok is false if it has none.
func successIn(version, text string) (success, ok bool) {
	ack, err := decodeHex(text)
	if err != nil || version != zkgm.ChannelVersion || len(ack) < 32 {
		return false, false
	}
	tag := ack[:32]
	return tag[31] == 1, bytes.Equal(tag[:31], make([]byte, 31)) && tag[31] <= 1
}

// settle sets the status: the type of the last trace that has happened, or TIMEOUT.
func settle(p *index.Packet) {
	for _, t := range p.Traces {
		if t.Height != nil {
			p.Status = new(t.Type)
		}
	}
	if p.PacketTimeoutHeight != nil {
		p.Status = new(index.StatusTimeout)
	}
}
