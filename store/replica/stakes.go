package replica

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/zkgm"
)

// packetByStake holds the packets that are stakes, by kind, by address, and by the channel of their delivery, which
// determines its destination.
var packetByStake = &postings{bucket: []byte("packet.stake"), terms: stakeTerms}

func stakeTerms(packet index.Row, add func(uint64)) {
	stake, ok := index.StakeOf(packet)
	if !ok {
		return
	}
	add(kindTerm(stake.Kind))
	staker := index.AddressOf(stake.Staker).Canonical
	add(stakeAddressTerm(stake.Kind, staker))
	if stake.Delivery.Order == nil {
		return
	}
	if receiver := index.AddressOf(stake.Delivery.Order.Receiver).Canonical; receiver != staker {
		add(stakeAddressTerm(stake.Kind, receiver))
	}
	hub, _ := packet.Text(index.PacketDestinationChainColumn)
	add(deliveryTerm(stake.Kind, hub, stake.Delivery.Channel))
}

func kindTerm(kind zkgm.StakeKind) uint64 { return termOf([]byte{byte(kind)}) }

func stakeAddressTerm(kind zkgm.StakeKind, address string) uint64 {
	return termOf(append([]byte{byte(kind), 'a'}, fold(address)...))
}

func deliveryTerm(kind zkgm.StakeKind, hub string, channel uint32) uint64 {
	return termOf(binary.BigEndian.AppendUint32(append([]byte{byte(kind), 'd'}, hub...), channel))
}

// Stakes implements index.Snapshot. A page costs as much as a page of packets, and one lookup per delivery.
func (s *snapshot) Stakes(ctx context.Context, q index.StakeQuery) ([]index.Row, error) {
	p, err := s.query(ctx, packets, q.Page)
	if err != nil {
		return nil, err
	}
	if len(q.Addresses) > index.MaxAddresses {
		return nil, appliance.Errorf(appliance.CodeInvalidField, "must have at most %d addresses",
			index.MaxAddresses).In("p_addresses_canonical")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	made := make(map[string]index.Row) // the rows that passed, by the packet's sort_order
	p.text(packetByTx, index.PacketSendTransactionColumn, q.TransactionHash)
	p.text(packetByHash, index.PacketHashColumn, q.PacketHash)
	p.text(packetByBlock, index.PacketSendBlockColumn, q.BlockHash)
	p.stakers(q.Kind, q.Addresses)
	if q.Kind == zkgm.Unbond {
		p.route(packetByRoute, q.SourceChain, q.DestinationChain, q.Network)
	} else {
		p.route(packetByRoute, q.SourceChain, q.RemoteChain, q.Network)
		p.deliveredTo(q.Kind, q.DestinationChain)
	}
	var failed error
	p.checks = append(p.checks, func(packet index.Row) bool {
		row, err := s.stake(packet, q, &p.meter)
		failed = cmp.Or(failed, err)
		if row.IsZero() {
			return false
		}
		made[packet.SortOrder()] = row
		return true
	})
	found, err := p.run()
	if err := cmp.Or(err, failed); err != nil {
		return nil, err
	}
	for i, packet := range found {
		found[i] = made[packet.SortOrder()]
	}
	return found, nil
}

// stakers restricts the query to stakes of a kind and, unless addresses is nil, of one of the addresses.
func (p *query) stakers(kind zkgm.StakeKind, addresses []string) {
	if addresses == nil {
		p.ranges = append(p.ranges, p.rangeOf(packetByStake, kindTerm(kind)))
		return
	}
	var members []orders
	for i, a := range addresses {
		if a != "" && !containsFolded(addresses[:i], a) {
			members = append(members, p.rangeOf(packetByStake, stakeAddressTerm(kind, a)))
		}
	}
	p.any(members)
}

func containsFolded(addresses []string, a string) bool {
	for _, other := range addresses {
		if bytes.Equal(fold(other), fold(a)) {
			return true
		}
	}
	return false
}

// deliveredTo restricts the query to stakes whose delivery leaves through a channel to that chain.
func (p *query) deliveredTo(kind zkgm.StakeKind, chain string) {
	if chain == "" {
		return
	}
	var members []orders
	for _, channel := range p.s.tables.of[index.ChannelType].sorted {
		if to, _ := channel.Text(index.ChannelDestinationChainColumn); to == chain {
			hub, _ := channel.Text(index.ChannelSourceChainColumn)
			number, _ := channel.Int(index.ChannelSourceChannelColumn)
			members = append(members, p.rangeOf(packetByStake, deliveryTerm(kind, hub, uint32(number))))
		}
	}
	p.any(members)
}

// stake returns the stake of a packet if it matches the query, otherwise the zero Row.
func (s *snapshot) stake(packet index.Row, q index.StakeQuery, m *meter) (index.Row, error) {
	stake, ok := index.StakeOf(packet)
	if !ok || stake.Kind != q.Kind || !ofAddresses(stake, q.Addresses) {
		return index.Row{}, nil
	}
	destination, _ := packet.Text(index.PacketDestinationChainColumn)
	var delivery index.Row
	if stake.Kind != zkgm.Unbond {
		delivery = s.delivery(packet, stake.Delivery, m)
		destination = s.destination(packet, destination, stake.Delivery.Channel)
		if q.DestinationChain != "" && destination != q.DestinationChain {
			return index.Row{}, nil
		}
	}
	return index.NewStake(stake, packet, delivery, destination)
}

func ofAddresses(stake zkgm.Stake, addresses []string) bool {
	if addresses == nil || containsFolded(addresses, index.AddressOf(stake.Staker).Canonical) {
		return true
	}
	order := stake.Delivery.Order
	return order != nil && containsFolded(addresses, index.AddressOf(order.Receiver).Canonical)
}

// destination returns the chain that the hub's channel leads to. If the channel is unknown, it is the staker's chain.
func (s *snapshot) destination(packet index.Row, hub string, channel uint32) string {
	row, known := s.tables.of[index.ChannelType].byKey[index.ChannelKey(hub, int32(channel))]
	if known {
		to, _ := row.Text(index.ChannelDestinationChainColumn)
		return to
	}
	source, _ := packet.Text(index.PacketSourceChainColumn)
	return source
}

// delivery returns the packet that delivers the stake, or the zero Row if it has not been sent. The delivery was sent
// in the transaction that received the packet of the stake. Of several deliveries that differ only in their salts, it
// returns the first.
func (s *snapshot) delivery(packet index.Row, d zkgm.Delivery, m *meter) (found index.Row) {
	var buf [256]byte
	tx := packet.AppendText(buf[:0], index.PacketReceiveTransactionColumn)
	if len(tx) == 0 {
		return found
	}
	index.FoldHex(tx)
	of := ordersOf(s.tx, packetByTx, termOf(tx), true, m)
	rows := s.tx.Bucket(packets.rows).Cursor()
	for order := of.seek(nil); order != nil; order = of.next() {
		row := packets.posted(s.dictionary, rows, order)
		if has(row, index.PacketSendTransactionColumn, tx) && index.Delivers(row, d) {
			return row
		}
	}
	return found
}
