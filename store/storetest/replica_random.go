package storetest

import (
	"fmt"
	"time"

	"github.com/attestd/attestd/appliance/index"
)

func (h *harness) one(from []string) string { return from[h.rng.IntN(len(from))] }

func (h *harness) maybe(s string) *string {
	if h.rng.IntN(4) == 0 {
		return nil
	}
	return &s
}

func (h *harness) maybeInt(n int) *int32 {
	if h.rng.IntN(4) == 0 {
		return nil
	}
	return new(int32(h.rng.IntN(n)))
}

// hash returns one of n hashes; the case of its digits is random.
func (h *harness) hash(what string, n int) string {
	format := "0x%s%062x"
	if h.rng.IntN(8) == 0 {
		format = "0x%s%062X"
	}
	return fmt.Sprintf(format, what, 0xabcdef00+h.rng.IntN(n))
}

func (h *harness) time() time.Time {
	return ReplicaNow.Add(-time.Duration(h.rng.IntN(6*24*60)) * time.Minute / 2)
}

func (h *harness) maybeTime() *time.Time {
	if h.rng.IntN(3) == 0 {
		return nil
	}
	return new(h.time())
}

// order returns a sort_order, sometimes one that another row has.
func (h *harness) order() string { return fmt.Sprintf("%03d-%s", h.rng.IntN(300), h.one(someKinds)) }

func (h *harness) row() any {
	switch h.rng.IntN(12) {
	case 0:
		return index.Chain{UniversalChainID: h.one(someChains), Testnet: new(h.rng.IntN(2) == 0),
			DisplayName: h.maybe("A <chain> & \"more\"")}
	case 1:
		return index.Channel{
			SortOrder: h.order(), SourceUniversalChainID: h.one(someChains), DestUniversalChainID: h.one(someChains),
			SourceChannelID: int32(h.rng.IntN(4)),
			SourceClientID:  h.maybeInt(3), SourceConnectionID: h.maybeInt(3), DestinationChannelID: h.maybeInt(3),
			SourcePortID: h.maybe(h.one(someKinds)),
			Version:      h.maybe(h.one(someKinds)), SLA: h.maybe(
				h.one([]string{"01:00:00", "2 hours", "PT30M", "1 day", "?"})), Tags: someKinds[:h.rng.IntN(4)],
			Recommended: new(h.rng.IntN(2) == 0),
		}
	case 2:
		return index.Token{UniversalChainID: h.one(someChains), Denom: h.hash("77", 5), Rank: h.maybeInt(9),
			Whitelist: new(h.rng.IntN(2) == 0)}
	case 3, 4, 5, 6:
		return index.Packet{
			SortOrder: h.order(), PacketHash: h.hash("01", 120), SourceUniversalChainID: h.one(someChains),
			DestUniversalChainID: h.one(someChains),
			SourceChannelID:      h.maybeInt(4), SendTimestamp: h.maybeTime(), SendBlockHash: h.maybe(h.hash("02", 9)),
			SendTransactionHash: h.maybe(h.hash("03", 30)),
			RecvTimestamp:       h.maybeTime(), WriteAckTimestamp: h.maybeTime(), AckTimestamp: h.maybeTime(),
			PacketTimeoutTimestamp: h.maybeTime(),
			Traces: []index.Trace{{Type: index.TracePacketSend, UniversalChainID: h.one(someChains),
				Height: h.maybe("7")}},
		}
	}
	return index.Transfer{
		SortOrder: h.order(), PacketHash: h.hash("01", 120), TransferIndex: int32(h.rng.IntN(3)),
		SourceUniversalChainID: h.one(someChains),
		DestUniversalChainID:   h.one(someChains), SenderCanonical: h.maybe(h.hash("04", 12)),
		ReceiverCanonical: h.maybe(h.hash("04", 12)),
		SendTimestamp:     h.maybeTime(), SendTransactionHash: h.maybe(h.hash("03", 30)), BaseAmount: h.maybe("1000"),
		SenderDisplay: h.maybe("é\u2028\\"),
	}
}

func (h *harness) sometimes(s string) string {
	if h.rng.IntN(5) > 0 {
		return ""
	}
	return s
}

func (h *harness) network() string { return h.sometimes(h.one([]string{"mainnet", "testnet"})) }

func (h *harness) transferQuery() index.TransferQuery {
	q := index.TransferQuery{
		TransactionHash: h.sometimes(h.hash("03", 32)), PacketHash: h.sometimes(h.hash("01", 122)),
		BlockHash:   h.sometimes(h.hash("02", 10)),
		SourceChain: h.sometimes(h.one(someChains)), DestinationChain: h.sometimes(h.one(someChains)),
		Network: index.Network(h.network()),
	}
	if h.rng.IntN(4) == 0 {
		q.TransferIndex = new(int32(h.rng.IntN(3)))
	}
	if h.rng.IntN(3) == 0 {
		q.Addresses = []string{}
		for range h.rng.IntN(5) {
			q.Addresses = append(q.Addresses, h.hash("04", 13))
		}
	}
	return q
}

func (h *harness) packetQuery() index.PacketQuery {
	q := index.PacketQuery{
		TransactionHash: h.sometimes(h.hash("03", 32)), PacketHash: h.sometimes(h.hash("01", 122)),
		BlockHash:   h.sometimes(h.hash("02", 10)),
		SourceChain: h.sometimes(h.one(someChains)), DestinationChain: h.sometimes(h.one(someChains)),
		Network:   index.Network(h.network()),
		Exceeding: index.SLA(h.sometimes(h.one([]string{"all", "mainnet", "testnet"}))),
	}
	if h.rng.IntN(8) == 0 {
		for _, row := range h.model.rows[index.PacketType] {
			q.Sent, _ = at(row, "packet_send_timestamp")
			break
		}
	}
	return q
}

func (h *harness) channelQuery() index.ChannelQuery {
	q := index.ChannelQuery{
		Source:      index.End{Chain: h.sometimes(h.one(someChains))},
		Destination: index.End{Chain: h.sometimes(h.one(someChains))},
		Version:     h.sometimes(h.one(someKinds)), SourcePort: h.sometimes(h.one(someKinds)), Tags: h.tags(),
	}
	if h.rng.IntN(4) == 0 {
		q.Source.Client, q.Recommended = new(int32(1)), new(true)
	}
	return q
}

// tags returns nil or a list, which may be empty.
func (h *harness) tags() []string {
	if h.rng.IntN(3) > 0 {
		return nil
	}
	return someKinds[:h.rng.IntN(3)]
}
