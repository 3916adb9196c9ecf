package replica

import (
	"github.com/attestd/attestd/appliance/index"
)

// collection is a large type of rows: rows under their sort_order, and the indexes over them.
type collection struct {
	t       *index.Type
	number  int    // in collections; part of the keys of its counts
	rows    []byte // the bucket of rows
	indexes []*termIndex
	hash    *termIndex // by packet_hash: also how a row is found by its key

	order, source, destination, sent int // fields
}

// termIndex is a bucket of term + sort_order.
type termIndex struct {
	bucket []byte
	fill   float64 // of pages when they split
	// recent is the bucket that new keys of an index in no order go to first; nil for an index whose keys come mostly
	// in order. See batchWriter.merge.
	recent []byte
	// terms calls add with each term of a row, 0 to 2 of them.
	terms func(row index.Row, add func(term uint64))
}

// row returns the row that was sealed; the zero Row for nil.
func (c *collection) row(sealed []byte) index.Row { return index.RowOf(c.t, unseal(sealed)) }

// The indexes. One over both chains serves the filters by source, by destination and by network: they are unions of
// pairs, of which there are few.
var (
	transferByHash    = textIndex(index.TransferType, "transfer.hash", "packet_hash")
	transferByTx      = textIndex(index.TransferType, "transfer.tx", "transfer_send_transaction_hash")
	transferByAddress = textIndex(index.TransferType, "transfer.address", "sender_canonical", "receiver_canonical")
	transferByRoute   = routeIndex(index.TransferType, "transfer.route", nil)
	transferByIndex   = &termIndex{bucket: []byte("transfer.index"), fill: fillOrdered, terms: transferIndexTerms}

	packetByHash  = textIndex(index.PacketType, "packet.hash", "packet_hash")
	packetByTx    = textIndex(index.PacketType, "packet.tx", "packet_send_transaction_hash")
	packetByBlock = textIndex(index.PacketType, "packet.block", "packet_send_block_hash")
	packetByRoute = routeIndex(index.PacketType, "packet.route", nil)
	packetByTime  = &termIndex{bucket: []byte("packet.sent"), fill: fillOrdered, terms: sentTerms}
	// packetUnsettled has the packets that are neither acknowledged nor timed out. They are in the order of pages and
	// not of deadlines, so that a page of late packets is a range; what it passes over are only those not late yet.
	packetUnsettled = routeIndex(index.PacketType, "packet.unsettled", unsettled)

	transfers = newCollection(0, index.TransferType, "transfer_send_timestamp", transferByHash,
		transferByTx, transferByAddress, transferByRoute, transferByIndex)
	packets = newCollection(1, index.PacketType, "packet_send_timestamp", packetByHash,
		packetByTx, packetByBlock, packetByRoute, packetByTime, packetUnsettled)

	collections = []*collection{transfers, packets}
)

func newCollection(number int, t *index.Type, sent string, byHash *termIndex, others ...*termIndex) *collection {
	return &collection{
		t: t, number: number, rows: []byte(t.Name), hash: byHash, indexes: append([]*termIndex{byHash}, others...),
		order:       t.MustField("sort_order").Number,
		source:      t.MustField("source_universal_chain_id").Number,
		destination: t.MustField("destination_universal_chain_id").Number,
		sent:        t.MustField(sent).Number,
	}
}

func collectionOf(t *index.Type) *collection {
	for _, c := range collections {
		if c.t == t {
			return c
		}
	}
	return nil
}

// textIndex indexes the texts of fields, whatever the case of their hex digits.
func textIndex(t *index.Type, bucket string, names ...string) *termIndex {
	var fields []int
	for _, name := range names {
		fields = append(fields, t.MustField(name).Number)
	}
	return &termIndex{bucket: []byte(bucket), recent: []byte(bucket + ".recent"), fill: fillRandom, terms: func(row index.Row, add func(uint64)) {
		var buf [256]byte
		for _, f := range fields {
			if text := row.AppendText(buf[:0], f); len(text) > 0 {
				index.FoldHex(text)
				add(termOf(text))
			}
		}
	}}
}

// routeIndex indexes the pair of chains, of rows that qualify; nil means of all.
func routeIndex(t *index.Type, bucket string, qualifies func(index.Row) bool) *termIndex {
	source, destination := t.MustField("source_universal_chain_id").Number, t.MustField("destination_universal_chain_id").Number
	return &termIndex{bucket: []byte(bucket), fill: fillOrdered, terms: func(row index.Row, add func(uint64)) {
		if qualifies != nil && !qualifies(row) {
			return
		}
		var buf [128]byte
		pair := append(row.AppendText(buf[:0], source), routeSeparator...)
		add(termOf(row.AppendText(pair, destination)))
	}}
}

// routeSeparator stands between the two chains of a route; no universal chain id has it.
const routeSeparator = "\x00"

func routeTerm(source, destination string) uint64 {
	return termOf([]byte(source + routeSeparator + destination))
}

func unsettled(packet index.Row) bool {
	return packet.IsNull(packetAckTime) && packet.IsNull(packetTimedOut)
}

var packetSentField = index.PacketType.MustField("packet_send_timestamp").Number

var transferIndexField = index.TransferType.MustField("transfer_index").Number

// transferIndexTerms leaves out index 0, which nearly all transfers have.
func transferIndexTerms(row index.Row, add func(uint64)) {
	if i, _ := row.Int(transferIndexField); i != 0 {
		add(uint64(uint32(i)))
	}
}

func sentTerms(row index.Row, add func(uint64)) {
	if sent, ok := row.Nanoseconds(packetSentField); ok {
		add(uint64(sent))
	}
}

// termOf hashes a text (FNV-1a, 64 bits). Collisions cost time, not truth.
func termOf(text []byte) uint64 {
	h := uint64(14695981039346656037)
	for _, c := range text {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return h
}
