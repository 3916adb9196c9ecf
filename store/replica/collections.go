package replica

import (
	"bytes"

	"go.etcd.io/bbolt"

	"github.com/attestd/attestd/appliance/index"
)

// collection is a large type: its rows, keyed by sort_order, and the postings of its filters.
type collection struct {
	t        *index.Type
	number   int    // index in collections; part of the keys of its counts
	rows     []byte // bucket of the rows
	sum      uint32 // sumOf(rows)
	postings []*postings
	hash     *postings // by packet_hash; also finds a row by its key

	order, source, destination, sent int // columns
}

// postings are the posting lists of one filter (an inverted index). A posting is a term followed by the sort_order of a
// row that has the term, so the postings of a term are in page order.
type postings struct {
	bucket []byte
	// recent is the bucket for new postings of a filter whose terms arrive in no order; nil if they arrive mostly in
	// order. See rewriting.stretch.
	recent []byte
	// terms calls add with each term of a row. It may call add twice with the same term.
	terms func(row index.Row, add func(term uint64))
}

// posted returns the row that a posting refers to. It panics with errNoRow if the row does not exist.
func (c *collection) posted(dictionary rowReader, rows *bbolt.Cursor, order []byte) index.Row {
	row := c.row(dictionary, rows, order)
	if row.IsZero() {
		panic(errNoRow)
	}
	return row
}

// row returns the row with that sort_order, or the zero Row.
func (c *collection) row(dictionary rowReader, rows *bbolt.Cursor, order []byte) index.Row {
	k, v := rows.Seek(order)
	if !bytes.Equal(k, order) {
		return index.Row{}
	}
	return c.found(dictionary, k, v)
}

// found decodes a row under a cursor.
func (c *collection) found(dictionary rowReader, order, sealed []byte) index.Row {
	return dictionary.Row(c.t, order, unseal(c.sum, order, sealed))
}

// rowReader is implemented by index.Dictionary, and by index.Packer, which extends a dictionary.
type rowReader interface {
	Row(t *index.Type, order, packed []byte) index.Row
}

// The postings of all filters. The filters by source, destination and network share the postings by pair of chains:
// each is a union over the matching pairs, of which a network has few.
var (
	transferByHash    = textPostings("transfer.hash", index.TransferPacketColumn)
	transferByTx      = textPostings("transfer.tx", index.TransferSendTransactionColumn)
	transferByAddress = textPostings("transfer.address", index.TransferSenderCanonicalColumn,
		index.TransferReceiverCanonicalColumn)
	transferByRoute = routePostings("transfer.route", index.TransferSourceChainColumn,
		index.TransferDestinationChainColumn, nil)
	transferByNumber = &postings{bucket: []byte("transfer.index"), terms: transferNumberTerms}

	packetByHash  = textPostings("packet.hash", index.PacketHashColumn)
	packetByTx    = textPostings("packet.tx", index.PacketSendTransactionColumn)
	packetByBlock = textPostings("packet.block", index.PacketSendBlockColumn)
	packetByRoute = routePostings("packet.route", index.PacketSourceChainColumn, index.PacketDestinationChainColumn,
		nil)
	packetByTime = &postings{bucket: []byte("packet.sent"), terms: sentTerms}
	// packetUnsettled holds the packets that are neither acknowledged nor timed out. They are in page order, not in the
	// order of their deadlines, so that a page of late packets is a range. Only packets that are not late yet are
	// skipped.
	packetUnsettled = routePostings("packet.unsettled", index.PacketSourceChainColumn,
		index.PacketDestinationChainColumn, unsettled)

	transfers = &collection{
		t: index.TransferType, number: 0, rows: []byte(index.TransferType.Name),
		sum: sumOf([]byte(index.TransferType.Name)), hash: transferByHash,
		postings: []*postings{transferByHash, transferByTx, transferByAddress, transferByRoute, transferByNumber},
		order:    index.TransferSortOrderColumn, source: index.TransferSourceChainColumn,
		destination: index.TransferDestinationChainColumn, sent: index.TransferSentColumn,
	}
	packets = &collection{
		t: index.PacketType, number: 1, rows: []byte(index.PacketType.Name), sum: sumOf([]byte(index.PacketType.Name)),
		hash: packetByHash,
		postings: []*postings{packetByHash, packetByTx, packetByBlock, packetByRoute, packetByTime, packetUnsettled,
			packetByStake, packetByCall},
		order: index.PacketSortOrderColumn, source: index.PacketSourceChainColumn,
		destination: index.PacketDestinationChainColumn, sent: index.PacketSentColumn,
	}

	collections = []*collection{transfers, packets}
)

func collectionOf(t *index.Type) *collection {
	for _, c := range collections {
		if c.t == t {
			return c
		}
	}
	return nil
}

// textPostings are by the texts of columns. The case of hex digits does not matter.
func textPostings(bucket string, columns ...int) *postings {
	return &postings{bucket: []byte(bucket), recent: []byte(bucket + ".recent"),
		terms: func(row index.Row, add func(uint64)) {
			var buf [256]byte
			for _, f := range columns {
				if text := row.AppendText(buf[:0], f); len(text) > 0 {
					index.FoldHex(text)
					add(termOf(text))
				}
			}
		}}
}

// routePostings are by pair of chains, for the rows that qualify; nil means all rows.
func routePostings(bucket string, source, destination int, qualifies func(index.Row) bool) *postings {
	return &postings{bucket: []byte(bucket), terms: func(row index.Row, add func(uint64)) {
		if qualifies != nil && !qualifies(row) {
			return
		}
		add(routeTermOf(row, source, destination))
	}}
}

// routeTermOf returns the term of a row's pair of chains.
func routeTermOf(row index.Row, source, destination int) uint64 {
	var buf [128]byte
	pair := append(row.AppendText(buf[:0], source), routeSeparator...)
	return termOf(row.AppendText(pair, destination))
}

// routeSeparator separates the two chains of a route. It occurs in no universal chain id.
const routeSeparator = "\x00"

func routeTerm(source, destination string) uint64 {
	return termOf([]byte(source + routeSeparator + destination))
}

func unsettled(packet index.Row) bool {
	return packet.IsNull(index.PacketAckedColumn) && packet.IsNull(index.PacketTimedOutColumn)
}

// transferNumberTerms omits index 0, which nearly all transfers have.
func transferNumberTerms(row index.Row, add func(uint64)) {
	if i, _ := row.Int(index.TransferIndexColumn); i != 0 {
		add(numberTerm(i))
	}
}

// numberTerm puts the number into the upper bytes, which are the bytes that a posting keeps.
func numberTerm(i int32) uint64 { return uint64(uint32(i)) << 32 }

func sentTerms(row index.Row, add func(uint64)) {
	if sent, ok := row.Nanoseconds(index.PacketSentColumn); ok {
		add(uint64(sent))
	}
}

// termOf hashes a text (FNV-1a, 64 bits). A collision costs time but does not change a result.
func termOf(text []byte) uint64 {
	h := uint64(14695981039346656037)
	for _, c := range text {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return h
}
