package indexer_test

import (
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/indexer"
)

// ending is a packet on two chains, and what an upstream says of it.
type ending struct {
	what            string
	source, receipt common.Hash // zero leaves the slot as it is
	claim           func(*index.Packet)
	transfer        func(*index.Transfer)
	want            string // the reason of the quarantine, of the transfer if transfer is set; empty if both are served
}

// The claims of an upstream. Only the heights and the acknowledgement are compared with the chains.
var (
	claimedAt    = new(time.Unix(1_780_000_100, 0).UTC())
	claimReceipt = func(p *index.Packet) {
		p.RecvTimestamp, p.RecvHeight, p.Traces[2].Height, p.Status = claimedAt, new("2"), new("2"), new("PACKET_RECV")
	}
	claimAck = func(p *index.Packet) {
		claimReceipt(p)
		p.WriteAckTimestamp, p.WriteAckHeight, p.Traces[3].Height = claimedAt, new("2"), new("2")
		p.Acknowledgement, p.Success = new(hexText(acknowledgement(true))), new(true)
		p.AckTimestamp, p.AckHeight, p.Traces[5].Height, p.Status = claimedAt, new("3"), new("3"), new("PACKET_ACK")
	}
	claimTimeout = func(p *index.Packet) {
		p.PacketTimeoutTimestamp, p.PacketTimeoutHeight, p.Status = claimedAt, new("3"), new("TIMEOUT")
	}
)

func endings() []ending {
	done, acked := indexer.CommitmentDone, indexer.CommitmentOfAck(acknowledgement(true))
	var none common.Hash
	unended, unreceived, unwritten := "it is neither acknowledged nor timed out in block", "has not received it in block",
		"has not acknowledged it in block"
	return []ending{
		{"sent", none, none, nil, nil, ""},
		{"received", none, indexer.ReceiptOnly, claimReceipt, nil, ""},
		{"acknowledged", done, acked, claimAck, nil, ""},
		{"timed out", done, none, claimTimeout, nil, ""},
		{"received and acknowledged, and the upstream is behind", done, acked, nil, nil, ""},

		{"a receipt", none, none, claimReceipt, nil, unreceived},
		{"a receipt, only as a transaction", none, none,
			func(p *index.Packet) { p.RecvTransactionHash = new("0x01") }, nil, unreceived},
		{"a receipt, only as a trace", none, none,
			func(p *index.Packet) { p.Traces[2].BlockHash = new("0x01") }, nil, unreceived},
		{"a receipt, only as a status", none, none,
			func(p *index.Packet) { p.Status = new("PACKET_RECV") }, nil, unreceived},
		{"a written acknowledgement", none, indexer.ReceiptOnly,
			func(p *index.Packet) { p.WriteAckTransactionHash = new("0x01") }, nil, unwritten},
		{"an acknowledgement", none, acked, claimAck, nil, unended},
		{"an acknowledgement without a time", none, acked,
			func(p *index.Packet) { p.AckTransactionHash = new("0x01") }, nil, unended},
		{"an acknowledgement, only as a trace", none, acked,
			func(p *index.Packet) { p.Traces[5].TransactionHash = new("0x01") }, nil, unended},
		{"an acknowledgement, only as a status", none, acked,
			func(p *index.Packet) { p.Status = new("PACKET_ACK") }, nil, unended},
		{"another acknowledgement", done, acked, func(p *index.Packet) {
			claimAck(p)
			p.Acknowledgement, p.Success = new(hexText(acknowledgement(false))), new(false)
		}, nil, "its acknowledgement is not the one that ethereum.1002 has written"},
		{"another success", done, acked, func(p *index.Packet) {
			claimAck(p)
			p.Success = new(false)
		}, nil, "success is false, but its acknowledgement says true"},
		{"an acknowledgement of a packet that has timed out", done, none, claimAck, nil, unreceived},
		{"a timeout", none, none, claimTimeout, nil, unended},
		{"a timeout without a time", none, none,
			func(p *index.Packet) { p.PacketTimeoutMaker = new("0x01") }, nil, unended},
		{"a timeout, only as a status", none, none,
			func(p *index.Packet) { p.Status = new("TIMEOUT") }, nil, unended},
		{"a timeout of a packet that was acknowledged", done, acked, claimTimeout, nil,
			"it cannot have timed out: ethereum.1002 has received it"},
		{"a receipt and a timeout", done, none, func(p *index.Packet) {
			claimReceipt(p)
			claimTimeout(p)
		}, nil, "it cannot have been received and have timed out"},

		{"a transfer's receipt", none, none, nil, func(r *index.Transfer) { r.RecvTransactionHash = new("0x01") },
			"its packet does not say so"},
		{"a transfer's timeout", none, none, nil, func(r *index.Transfer) { r.TimeoutTimestamp = claimedAt },
			"its packet does not say so"},
		{"a transfer's status", none, none, nil, func(r *index.Transfer) { r.Status = new("PACKET_ACK") },
			"its packet does not say so"},
		{"a transfer's success", none, none, nil, func(r *index.Transfer) { r.Success = new(true) },
			"success is true, but its packet does not say so"},
	}
}

// TestEachForgedEndIsCaught follows an upstream that lies about the ends of packets: receipts, acknowledgements and
// timeouts, in all fields or in one, in the packet or in the transfer only. The honest packets are served.
func TestEachForgedEndIsCaught(t *testing.T) {
	t.Parallel()
	a, b := newWorld(t)
	all := endings()
	parcels := committedOn(t, a, len(all))
	var rows []index.Row
	for i, e := range all {
		p := parcels[i]
		hash := p.packet.Hash()
		if e.source != (common.Hash{}) {
			a.Emit(t, commit(hash, e.source))
		}
		if e.receipt != (common.Hash{}) {
			b.Emit(t, receipt(hash, e.receipt))
		}
		if e.claim != nil {
			e.claim(&p.row)
		}
		transfer := p.transfer()
		if e.transfer != nil {
			e.transfer(&transfer)
		}
		rows = append(rows, rowOf(t, p.row), rowOf(t, transfer))
	}
	w := newWatched(t, rows)
	w.sync(t, w.follow(t, newVerifier(t, chainsOf(a, b)...)))
	served, apart := make(map[string]bool), w.apart(t)
	for _, key := range w.served(t) {
		served[key] = true
	}
	for i, e := range all {
		packet, transfer := rows[2*i].Key(), rows[2*i+1].Key()
		lied := packet
		if e.transfer != nil {
			lied = transfer
		}
		switch {
		case e.want == "" && (!served[packet] || !served[transfer]):
			t.Errorf("%s: quarantined: %s", e.what, apart[packet]+apart[transfer])
		case e.want != "" && (served[transfer] || served[lied] || !strings.Contains(apart[lied], e.want)):
			t.Errorf("%s: served: %t, reason %q, want %q", e.what, served[lied], apart[lied], e.want)
		}
	}
}

// TestAnEndThatIsForgedLaterIsCaught has an upstream lie about packets that are served already.
func TestAnEndThatIsForgedLaterIsCaught(t *testing.T) {
	t.Parallel()
	a, b := newWorld(t)
	b.Mine(10)
	parcels := committedOn(t, a, 3)
	honest := rowsOfParcels(t, parcels...)
	w := newWatched(t, honest)
	w.start(t, w.follow(t, newVerifier(t, chainsOf(a, b)...)))
	eventually(t, "the packets are served", func() bool { return len(w.served(t)) == len(honest) })
	claimReceipt(&parcels[0].row)
	forged := parcels[1].transfer()
	forged.Status = new("PACKET_ACK")
	w.add(t, []index.Row{rowOf(t, parcels[0].row), rowOf(t, forged)})
	eventually(t, "both lies are found", func() bool {
		apart := w.apart(t)
		return strings.Contains(apart[honest[0].Key()], "has not received it") &&
			strings.Contains(apart[honest[3].Key()], "its packet does not say so")
	})
	sameRows(t, rowsOf(t, w.replica, index.PacketType, index.TransferType),
		rowsOf(t, indexOf(t, honest), index.PacketType, index.TransferType))
}

// indexOf returns an index with rows.
func indexOf(t testing.TB, rows []index.Row) index.Index {
	t.Helper()
	idx := openIndex(t)
	if _, err := idx.Write(t.Context(), index.Batch{Rows: rows}); err != nil {
		t.Fatal(err)
	}
	return idx
}
