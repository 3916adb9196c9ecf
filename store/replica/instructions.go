package replica

import (
	"context"
	"slices"

	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/zkgm"
)

// packetByCall holds the packets that call contracts, by sender and by contract.
var packetByCall = &postings{bucket: []byte("packet.call"), recent: []byte("packet.call.recent"),
	terms: func(packet index.Row, add func(uint64)) {
		index.CallsOf(packet, func(c *zkgm.Call) {
			add(callTerm('s', c.Sender))
			add(callTerm('c', c.ContractAddress))
		})
	}}

func callTerm(who byte, address []byte) uint64 { return termOf(append([]byte{who}, address...)) }

// Instructions implements index.Snapshot. A page costs as much as a page of packets, because each readable packet has
// at least one instruction.
func (s *snapshot) Instructions(ctx context.Context, q index.InstructionQuery) ([]index.Row, error) {
	limit, err := q.Size()
	if err != nil {
		return nil, err
	}
	page := index.Page{Cursor: aroundPacket(q.Page), Limit: q.Limit}
	if q.Ascending() {
		page.Direction = index.Newer
	}
	var found []index.Row
	for {
		packets, err := s.packetsOf(ctx, q, page)
		if err != nil {
			return nil, err
		}
		for _, packet := range packets {
			if found, err = take(found, q, packet); err != nil {
				return nil, err
			}
			if len(found) >= limit {
				return found[:limit], nil
			}
			page.Cursor = packet.SortOrder()
		}
		if len(packets) == 0 {
			return found, nil
		}
	}
}

// take appends the instructions of a packet that are behind the cursor.
func take(found []index.Row, q index.InstructionQuery, packet index.Row) ([]index.Row, error) {
	rows, err := q.Instructions(packet)
	if q.Ascending() {
		slices.Reverse(rows)
	}
	for _, row := range rows {
		if q.Cursor == "" || before([]byte(q.Cursor), []byte(row.SortOrder()), q.Ascending()) {
			found = append(found, row)
		}
	}
	return found, err
}

// aroundPacket returns a packet cursor whose page includes the packet of the instruction cursor.
func aroundPacket(p index.Page) string {
	if p.Cursor == "" {
		return ""
	}
	packet := index.PacketOfInstruction(p.Cursor)
	if !p.Ascending() || packet == "" {
		return packet + " "
	}
	last := len(packet) - 1
	// just below packet, since 0xff does not occur in UTF-8
	return packet[:last] + string([]byte{packet[last] - 1, 0xff})
}

func (s *snapshot) packetsOf(ctx context.Context, q index.InstructionQuery, page index.Page) ([]index.Row, error) {
	p, err := s.query(ctx, packets, page)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p.text(packetByTx, index.PacketSendTransactionColumn, q.TransactionHash)
	p.text(packetByHash, index.PacketHashColumn, q.PacketHash)
	p.text(packetByBlock, index.PacketSendBlockColumn, q.BlockHash)
	p.route(packetByRoute, "", "", q.Network)
	for _, c := range []struct {
		who     byte
		address string
	}{{'s', q.Sender}, {'c', q.Contract}} {
		if c.address != "" {
			p.ranges = append(p.ranges, p.rangeOf(packetByCall, callTerm(c.who, index.Unhex(c.address))))
		}
	}
	return p.run()
}
