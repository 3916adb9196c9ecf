package replica

import (
	"bytes"
	"context"
	"slices"
	"sort"
	"time"

	"go.etcd.io/bbolt"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index"
)

// query is one page of a collection, and the posting lists that restrict it.
type query struct {
	s         *snapshot
	c         *collection
	page      index.Page
	limit     int
	ascending bool
	ranges    []orders
	checks    []func(index.Row) bool // each row found must pass all checks, since terms may collide
	nothing   bool                   // no row can match
	meter     meter
}

func (s *snapshot) query(ctx context.Context, c *collection, page index.Page) (*query, error) {
	limit, err := page.Size()
	return &query{s: s, c: c, page: page, limit: limit, ascending: page.Ascending(), meter: meter{ctx: ctx}}, err
}

// Transfers implements index.Snapshot.
func (s *snapshot) Transfers(ctx context.Context, q index.TransferQuery) ([]index.Row, error) {
	p, err := s.query(ctx, transfers, q.Page)
	if err != nil {
		return nil, err
	}
	if len(q.Addresses) > index.MaxAddresses {
		return nil, appliance.Errorf(appliance.CodeInvalidField, "must have at most %d addresses",
			index.MaxAddresses).In("p_addresses_canonical")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p.addresses(q.Addresses)
	p.text(transferByTx, index.TransferSendTransactionColumn, q.TransactionHash)
	p.text(transferByHash, index.TransferPacketColumn, q.PacketHash)
	p.route(transferByRoute, q.SourceChain, q.DestinationChain, q.Network)
	if q.TransferIndex != nil {
		p.transferIndex(*q.TransferIndex)
	}
	if q.BlockHash != "" && !p.nothing {
		p.ranges = append(p.ranges, p.transfersOfBlock(q.BlockHash))
	}
	return p.run()
}

// Packets implements index.Snapshot.
func (s *snapshot) Packets(ctx context.Context, q index.PacketQuery) ([]index.Row, error) {
	p, err := s.query(ctx, packets, q.Page)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p.text(packetByTx, index.PacketSendTransactionColumn, q.TransactionHash)
	p.text(packetByHash, index.PacketHashColumn, q.PacketHash)
	p.text(packetByBlock, index.PacketSendBlockColumn, q.BlockHash)
	p.route(packetByRoute, q.SourceChain, q.DestinationChain, q.Network)
	if !q.Sent.IsZero() {
		p.sent(q.Sent)
	}
	if q.Exceeding != index.AnySLA {
		p.exceeding(q)
	}
	return p.run()
}

func fold(text string) []byte {
	folded := []byte(text)
	index.FoldHex(folded)
	return folded
}

// has reports whether a text field equals the folded text; the field is folded, too.
func has(row index.Row, field int, folded []byte) bool {
	var buf [256]byte
	text := row.AppendText(buf[:0], field)
	index.FoldHex(text)
	return bytes.Equal(text, folded)
}

func (p *query) rangeOf(x *postings, term uint64) orders {
	return ordersOf(p.s.tx, x, term, p.ascending, &p.meter)
}

// text restricts the query to rows with the given text.
func (p *query) text(x *postings, field int, want string) {
	if want == "" {
		return
	}
	folded := fold(want)
	p.ranges = append(p.ranges, p.rangeOf(x, termOf(folded)))
	p.checks = append(p.checks, func(row index.Row) bool { return has(row, field, folded) })
}

// addresses restricts the query to transfers from or to one of the addresses.
func (p *query) addresses(addresses []string) {
	if addresses == nil {
		return
	}
	var members []orders
	var wanted [][]byte
	for _, a := range addresses {
		if a == "" {
			continue
		}
		folded := fold(a)
		if slices.ContainsFunc(wanted, func(w []byte) bool { return bytes.Equal(w, folded) }) {
			continue
		}
		wanted = append(wanted, folded)
		members = append(members, p.rangeOf(transferByAddress, termOf(folded)))
	}
	p.any(members)
	p.checks = append(p.checks, func(row index.Row) bool {
		for _, w := range wanted {
			if has(row, index.TransferSenderCanonicalColumn, w) || has(row, index.TransferReceiverCanonicalColumn, w) {
				return true
			}
		}
		return false
	})
}

// any restricts the query to the union of the members.
func (p *query) any(members []orders) {
	switch len(members) {
	case 0:
		p.nothing = true
	case 1:
		p.ranges = append(p.ranges, members[0])
	default:
		p.ranges = append(p.ranges, &union{members: members, ascending: p.ascending})
	}
}

// route restricts the query to pairs of chains.
func (p *query) route(x *postings, source, destination string, network index.Network) {
	if source == "" && destination == "" && network == index.AnyNetwork {
		return
	}
	p.routes(x, func(r route) bool {
		return (source == "" || r.source == source) && (destination == "" || r.destination == destination) &&
			(network == index.AnyNetwork || p.s.tables.network(r.source) == network)
	})
}

// routes restricts the query to rows with an accepted pair of chains. x must be postings by pair of chains.
func (p *query) routes(x *postings, wanted func(route) bool) {
	var members []orders
	pairs := make(map[[2]string]bool)
	all := p.s.tables.routes[p.c.number]
	for _, r := range all {
		if wanted(r) {
			members = append(members, p.rangeOf(x, r.term))
			pairs[[2]string{r.source, r.destination}] = true
		}
	}
	if len(members) == len(all) && (x == transferByRoute || x == packetByRoute) && len(all) > 0 {
		return // all rows match
	}
	p.any(members)
	p.checks = append(p.checks, func(row index.Row) bool {
		source, _ := row.Text(p.c.source)
		destination, _ := row.Text(p.c.destination)
		return pairs[[2]string{source, destination}]
	})
}

func (p *query) transferIndex(idx int32) {
	if idx != 0 {
		p.ranges = append(p.ranges, p.rangeOf(transferByNumber, numberTerm(idx)))
	}
	p.checks = append(p.checks, func(row index.Row) bool {
		i, _ := row.Int(index.TransferIndexColumn)
		return i == idx
	})
}

// sent restricts the query to packets sent at exactly that time.
func (p *query) sent(at time.Time) {
	nanoseconds := at.UnixNano()
	p.ranges = append(p.ranges, p.rangeOf(packetByTime, uint64(nanoseconds)))
	p.checks = append(p.checks, func(row index.Row) bool {
		sent, ok := row.Nanoseconds(packets.sent)
		return ok && sent == nanoseconds
	})
}

// exceeding restricts the query to late packets.
func (p *query) exceeding(q index.PacketQuery) {
	p.routes(packetUnsettled, func(r route) bool {
		network := p.s.tables.network(r.source)
		return (q.Exceeding == index.ExceedingAll || string(q.Exceeding) == string(network)) &&
			(q.SourceChain == "" || r.source == q.SourceChain) &&
			(q.DestinationChain == "" || r.destination == q.DestinationChain)
	})
	now := p.s.r.now()
	p.checks = append(p.checks, func(row index.Row) bool { return p.s.tables.late(row, now) })
}

// transfersOfBlock returns the sort_orders of the transfers whose packets were sent in a block. A block bounds their
// number.
func (p *query) transfersOfBlock(hash string) orders {
	folded := fold(hash)
	found := &list{ascending: p.ascending}
	inBlock := p.rangeOf(packetByBlock, termOf(folded))
	rows, ofTransfers := p.s.tx.Bucket(packets.rows).Cursor(), p.s.tx.Bucket(transfers.rows).Cursor()
	for order := inBlock.seek(nil); order != nil; order = inBlock.next() {
		packet := packets.posted(p.s.dictionary, rows, order)
		if !has(packet, index.PacketSendBlockColumn, folded) {
			continue
		}
		var buf [128]byte
		packetHash := packet.AppendKey(buf[:0], packets.t.Key)
		of := p.rangeOf(transferByHash, termOf(packetHash))
		for order := of.seek(nil); order != nil; order = of.next() {
			transfer := transfers.posted(p.s.dictionary, ofTransfers, order)
			if has(transfer, index.TransferPacketColumn, packetHash) {
				found.sorted = append(found.sorted, bytes.Clone(order))
			}
		}
	}
	sort.Slice(found.sorted, func(i, j int) bool { return before(found.sorted[i], found.sorted[j], p.ascending) })
	return found
}

// run returns the page.
func (p *query) run() (found []index.Row, err error) {
	defer func() { p.s.r.touched.Add(p.meter.touched) }()
	if p.nothing {
		return nil, nil
	}
	rows := p.s.tx.Bucket(p.c.rows)
	switch len(p.ranges) {
	case 0:
		found = p.scan(rows.Cursor())
	case 1:
		found = p.follow(p.ranges[0], rows)
	default:
		found = p.follow(&join{members: p.ranges, ascending: p.ascending}, rows)
	}
	if p.meter.err != nil {
		return nil, timeoutError(p.meter.err)
	}
	return found, nil
}

// scan reads the page of a query without ranges directly from the rows.
func (p *query) scan(rows *bbolt.Cursor) []index.Row {
	var k, v []byte
	move := rows.Prev
	if p.ascending {
		move = rows.Next
	}
	switch {
	case p.page.Cursor == "":
		k, v = rows.Last()
	case p.ascending:
		p.c.seekBefore(rows, []byte(p.page.Cursor))
		if k, v = rows.Seek([]byte(p.page.Cursor)); string(k) == p.page.Cursor {
			k, v = move()
		}
	default:
		k, v = p.c.seekBefore(rows, []byte(p.page.Cursor))
	}
	found := make([]index.Row, 0, p.limit)
	for k != nil && len(found) < p.limit && !p.meter.ended() {
		if row := p.c.found(p.s.dictionary, k, v); p.passes(row) {
			found = append(found, row)
		}
		k, v = move()
	}
	return found
}

// seekBefore moves to the last row before a sort_order, and verifies the rows on both sides. bbolt searches by
// bisection, so a damaged key could hide others. In that case the search ends at the damaged key or at a key on the
// wrong side.
func (c *collection) seekBefore(rows *bbolt.Cursor, order []byte) (k, v []byte) {
	behind, itsValue := rows.Seek(order)
	if behind == nil {
		k, v = rows.Last()
	} else {
		unseal(c.sum, behind, itsValue)
		k, v = rows.Prev()
	}
	if k != nil {
		unseal(c.sum, k, v)
	}
	if k != nil && bytes.Compare(k, order) >= 0 || behind != nil && bytes.Compare(behind, order) < 0 {
		panic(damage("rows are not sorted by their keys"))
	}
	return k, v
}

// follow returns the page of the rows that o names.
func (p *query) follow(o orders, rows *bbolt.Bucket) []index.Row {
	var order []byte
	if p.page.Cursor == "" {
		order = o.seek(nil)
	} else {
		order = o.seek([]byte(p.page.Cursor))
		if string(order) == p.page.Cursor {
			order = o.next()
		}
	}
	found := make([]index.Row, 0, min(p.limit, 16))
	g := gather(rows)
	for ; order != nil && !p.meter.ended(); order = o.next() {
		if g.add(order) < min(atOnce, p.limit-len(found)) { // never gather more rows than fit on the page
			continue
		}
		if found = p.appendPassing(found, g); len(found) == p.limit {
			break
		}
	}
	found = p.appendPassing(found, g)
	g.free()
	return found
}

// appendPassing appends the gathered rows that pass the checks.
func (p *query) appendPassing(found []index.Row, g *gathered) []index.Row {
	for _, l := range g.find() {
		if row := p.c.found(p.s.dictionary, l.Key, l.Value); p.passes(row) {
			found = append(found, row)
		}
	}
	return found
}

func (p *query) passes(row index.Row) bool {
	for _, check := range p.checks {
		if !check(row) {
			return false
		}
	}
	return true
}

// find returns the row with the given key, and its sort_order, which is valid until the next call. The caller holds
// s.mu.
func (s *snapshot) find(c *collection, key []byte) (index.Row, []byte) {
	if s.finders[c.number] == nil {
		s.finders[c.number] = newFinder(s.tx, s.dictionary, c, nil)
	}
	return s.finders[c.number].find(key, &meter{ctx: s.ctx})
}

// finder looks up rows of a collection by key.
type finder struct {
	c          *collection
	dictionary rowReader
	rows       *bbolt.Cursor
	hashes     []*blockCursor  // the postings by hash
	left       map[string]bool // sort_orders of rows that the batch has removed, but not yet from the postings
}

func newFinder(tx *bbolt.Tx, dictionary rowReader, c *collection, left map[string]bool) *finder {
	f := &finder{c: c, dictionary: dictionary, rows: tx.Bucket(c.rows).Cursor(), left: left}
	for _, name := range [][]byte{c.hash.bucket, c.hash.recent} {
		if bucket := tx.Bucket(name); bucket.Sequence() > 0 {
			f.hashes = append(f.hashes, newBlockCursor(bucket))
		}
	}
	return f
}

func (f *finder) find(key []byte, m *meter) (index.Row, []byte) {
	hash := key
	if f.c == transfers { // packet_hash/transfer_index
		hash = key[:max(0, bytes.LastIndexByte(key, '/'))] // a key without a slash names no transfer
	}
	var buf [256]byte
	term := appendTerm(buf[:0:termSize], termOf(hash))
	own := buf[termSize:termSize]
	for _, cursor := range f.hashes {
		// Few postings share a hash, unless an attacker makes hashes collide.
		for k := cursor.seek(term); bytes.HasPrefix(k, term) && !m.ended(); k = cursor.next() {
			if f.left[string(k[termSize:])] {
				continue
			}
			row := f.c.posted(f.dictionary, f.rows, k[termSize:])
			if bytes.Equal(row.AppendKey(own, f.c.t.Key), key) {
				return row, k[termSize:]
			}
		}
	}
	return index.Row{}, nil
}
