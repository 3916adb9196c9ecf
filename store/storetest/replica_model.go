package storetest

import (
	"bytes"
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/attestd/attestd/appliance/index"
)

// model is a naive index, which reads every row for every query. The suite compares a store's results with the model's.
type model struct {
	now     func() time.Time
	rows    map[*index.Type]map[string]index.Row // the served rows by key
	apart   map[*index.Type]map[string]*doubt    // the quarantined rows by key
	serving bool                                 // whether quarantined rows are served
}

// doubt is a quarantined row.
type doubt struct {
	index.Unverified
	verified index.Row // the row that was served under this key before
}

func newModel(now func() time.Time) *model {
	m := &model{now: now, rows: make(map[*index.Type]map[string]index.Row),
		apart: make(map[*index.Type]map[string]*doubt)}
	for _, t := range index.RowTypes {
		m.rows[t], m.apart[t] = make(map[string]index.Row), make(map[string]*doubt)
	}
	return m
}

func (m *model) write(b index.Batch) (w index.Written) {
	for _, row := range b.Rows {
		of, apart, key := m.rows[row.Type()], m.apart[row.Type()], row.Key()
		old := of[key]
		m.put(row)
		switch {
		case old.IsZero():
			w.Inserted++
		case apart[key] == nil && bytes.Equal(old.Bytes(), of[key].Bytes()):
			w.Unchanged++
		default:
			w.Updated++
		}
		delete(apart, key)
	}
	for _, id := range b.Withdrawn {
		if d := m.apart[id.Type][id.Key]; d != nil {
			w.Updated++
			if m.serving {
				m.unserve(d)
			}
			delete(m.apart[id.Type], id.Key)
		}
	}
	for _, id := range b.Removed {
		if d := m.apart[id.Type][id.Key]; d != nil {
			w.Updated++
			if m.serving {
				m.unserve(d)
			}
			delete(m.apart[id.Type], id.Key)
		}
		if !m.rows[id.Type][id.Key].IsZero() {
			w.Removed++
			delete(m.rows[id.Type], id.Key)
		}
	}
	for _, u := range b.Unverified {
		apart, key := m.apart[u.Row.Type()], u.Row.Key()
		switch d := apart[key]; {
		case d == nil:
			w.Inserted++
			apart[key] = &doubt{Unverified: u, verified: m.rows[u.Row.Type()][key]}
			apart[key].Since = m.now()
		case d.Reason == u.Reason && bytes.Equal(d.Row.Bytes(), u.Row.Bytes()):
			w.Unchanged++
			continue
		default:
			w.Updated++
			d.Row, d.Reason = u.Row, u.Reason
		}
		if m.serving {
			m.put(u.Row)
		}
	}
	return w
}

// put adds a row to the served rows.
func (m *model) put(row index.Row) {
	key, old := row.Key(), m.rows[row.Type()][row.Key()]
	if f, ok := row.Type().Field("sort_order"); ok {
		row = m.settle(row, f.Number, key, old)
	}
	m.rows[row.Type()][key] = row
}

// unverified returns the quarantined rows, by type and key.
func (m *model) unverified() (all []*doubt) {
	for _, t := range []*index.Type{index.PacketType, index.TransferType} {
		for _, key := range slices.Sorted(maps.Keys(m.apart[t])) {
			all = append(all, m.apart[t][key])
		}
	}
	return all
}

// serve starts or stops serving the quarantined rows.
func (m *model) serve(on bool) {
	if m.serving == on {
		return
	}
	m.serving = on
	for _, d := range m.unverified() {
		if on {
			d.verified = m.rows[d.Row.Type()][d.Row.Key()]
			m.put(d.Row)
		} else {
			m.unserve(d)
		}
	}
}

// unserve restores the row that was served before a quarantined row.
func (m *model) unserve(d *doubt) {
	if d.verified.IsZero() {
		delete(m.rows[d.Row.Type()], d.Row.Key())
		return
	}
	m.put(d.verified)
}

// settle gives a row the sort_order that it is stored under.
func (m *model) settle(row index.Row, field int, key string, old index.Row) index.Row {
	order := row.SortOrder()
	tied := index.TieBreak(order, key)
	switch kept := ""; {
	case !old.IsZero():
		if kept = old.SortOrder(); kept == order {
			return row
		} else if kept == tied {
			return must(row.WithText(field, tied))
		}
	}
	for otherKey, other := range m.rows[row.Type()] {
		if otherKey != key && other.SortOrder() == order {
			return must(row.WithText(field, tied))
		}
	}
	return row
}

func must(row index.Row, err error) index.Row {
	if err != nil {
		panic(err)
	}
	return row
}

// list returns the rows that pass, newest first.
func (m *model) list(t *index.Type, passes func(index.Row) bool) []index.Row {
	var found []index.Row
	for _, row := range m.rows[t] {
		if passes(row) {
			found = append(found, row)
		}
	}
	slices.SortFunc(found, func(a, b index.Row) int { return strings.Compare(b.SortOrder(), a.SortOrder()) })
	return found
}

// page returns one page of the matching rows, which are sorted newest first.
func page(all []index.Row, p index.Page) []index.Row {
	size, err := p.Size()
	if err != nil {
		panic(err)
	}
	var found []index.Row
	if p.Ascending() {
		all = slices.Clone(all)
		slices.Reverse(all)
	}
	for _, row := range all {
		order := row.SortOrder()
		if p.Cursor == "" || p.Ascending() && order > p.Cursor || !p.Ascending() && order < p.Cursor {
			found = append(found, row)
		}
	}
	return found[:min(size, len(found))]
}

func (m *model) network(chain string) index.Network {
	row, ok := m.rows[index.ChainType][chain]
	if ok && boolean(row, "testnet") {
		return index.Testnet
	}
	return index.Mainnet
}

func text(row index.Row, field string) string {
	s, _ := row.Text(row.Type().MustField(field).Number)
	return s
}

func boolean(row index.Row, field string) bool {
	b, _ := row.Bool(row.Type().MustField(field).Number)
	return b
}

func at(row index.Row, field string) (time.Time, bool) {
	return row.Time(row.Type().MustField(field).Number)
}

func number(row index.Row, field string) *int32 {
	n, ok := row.Int(row.Type().MustField(field).Number)
	if !ok {
		return nil
	}
	return &n
}

func is(row index.Row, field, want string) bool {
	return want == "" || text(row, field) != "" && strings.EqualFold(text(row, field), want)
}

func isNumber(row index.Row, field string, want *int32) bool {
	if want == nil {
		return true
	}
	n := number(row, field)
	return n != nil && *n == *want
}

func (m *model) between(row index.Row, source, destination string, network index.Network) bool {
	return (source == "" || text(row, "source_universal_chain_id") == source) &&
		(destination == "" || text(row, "destination_universal_chain_id") == destination) &&
		(network == "" || m.network(text(row, "source_universal_chain_id")) == network)
}

func (m *model) transfers(q index.TransferQuery) []index.Row {
	return m.list(index.TransferType, func(row index.Row) bool {
		if q.BlockHash != "" {
			packet, ok := m.rows[index.PacketType][strings.ToLower(text(row, "packet_hash"))]
			if !ok || !is(packet, "packet_send_block_hash", q.BlockHash) {
				return false
			}
		}
		anyAddress := q.Addresses == nil || slices.ContainsFunc(q.Addresses, func(a string) bool {
			return a != "" && (is(row, "sender_canonical", a) || is(row, "receiver_canonical", a))
		})
		return anyAddress && is(row, "transfer_send_transaction_hash", q.TransactionHash) &&
			is(row, "packet_hash", q.PacketHash) &&
			isNumber(row, "transfer_index", q.TransferIndex) &&
			m.between(row, q.SourceChain, q.DestinationChain, q.Network)
	})
}

func (m *model) packets(q index.PacketQuery) []index.Row {
	return m.list(index.PacketType, func(row index.Row) bool {
		if q.Exceeding != "" && !m.late(row, q.Exceeding) {
			return false
		}
		if sent, ok := at(row, "packet_send_timestamp"); !q.Sent.IsZero() && (!ok || !sent.Equal(q.Sent)) {
			return false
		}
		return is(row, "packet_send_transaction_hash", q.TransactionHash) && is(row, "packet_hash", q.PacketHash) &&
			is(row, "packet_send_block_hash", q.BlockHash) &&
			m.between(row, q.SourceChain, q.DestinationChain, q.Network)
	})
}

func (m *model) late(packet index.Row, of index.SLA) bool {
	network := m.network(text(packet, "source_universal_chain_id"))
	if of != index.ExceedingAll && string(of) != string(network) {
		return false
	}
	sent, ok := at(packet, "packet_send_timestamp")
	_, acknowledged := at(packet, "packet_ack_timestamp")
	_, timedOut := at(packet, "packet_timeout_timestamp")
	if !ok || acknowledged || timedOut {
		return false
	}
	sla := index.DefaultSLA
	for _, channel := range m.rows[index.ChannelType] {
		if text(channel, "source_universal_chain_id") == text(packet, "source_universal_chain_id") &&
			isNumber(channel, "source_channel_id", number(packet, "source_channel_id")) &&
			number(packet, "source_channel_id") != nil {
			if d, err := index.ParseInterval(text(channel, "sla")); err == nil {
				sla = d
			}
		}
	}
	return m.now().Sub(sent) > sla
}

func (m *model) channels(q index.ChannelQuery) []index.Row {
	return m.list(index.ChannelType, func(row index.Row) bool {
		tagged := func(tag string) bool { return slices.Contains(row.Texts(row.Type().MustField("tags").Number), tag) }
		if q.Tags != nil && !slices.ContainsFunc(q.Tags, tagged) {
			return false
		}
		return isEnd(row, "source", q.Source) && isEnd(row, "destination", q.Destination) &&
			isNumber(row, "source_channel_id", q.SourceChannel) &&
			isNumber(row, "destination_channel_id", q.DestinationChannel) &&
			is(row, "source_port_id", q.SourcePort) && is(row, "destination_port_id", q.DestinationPort) &&
			is(row, "version", q.Version) &&
			(q.Recommended == nil || boolean(row, "recommended") == *q.Recommended)
	})
}

func isEnd(row index.Row, side string, e index.End) bool {
	return is(row, side+"_universal_chain_id", e.Chain) && isNumber(row, side+"_client_id", e.Client) &&
		isNumber(row, side+"_connection_id", e.Connection)
}

// routeDays counts by day and pair of chains.
func (m *model) routeDays(t *index.Type, sentField string, q index.DayQuery) []index.RouteDayCount {
	counts := make(map[index.RouteDayCount]uint64)
	first := ""
	if q.DaysBack != nil {
		first = m.now().UTC().AddDate(0, 0, 1-int(*q.DaysBack)).Format(time.DateOnly)
	}
	for _, row := range m.rows[t] {
		sent, ok := at(row, sentField)
		day := sent.UTC().Format(time.DateOnly)
		if ok && day >= first && m.between(row, q.SourceChain, q.DestinationChain, "") {
			key := index.RouteDayCount{DayCount: index.DayCount{Day: day}}
			key.SourceChain, key.DestinationChain = text(row, "source_universal_chain_id"),
				text(row, "destination_universal_chain_id")
			counts[key]++
		}
	}
	var list []index.RouteDayCount
	for key, n := range counts {
		key.Count = n
		list = append(list, key)
	}
	slices.SortFunc(list, func(a, b index.RouteDayCount) int {
		return cmp.Or(cmp.Compare(b.Day, a.Day), cmp.Compare(a.SourceChain, b.SourceChain),
			cmp.Compare(a.DestinationChain, b.DestinationChain))
	})
	return list
}

func daily(routes []index.RouteDayCount) []index.DayCount {
	var list []index.DayCount
	for _, r := range routes {
		if n := len(list); n > 0 && list[n-1].Day == r.Day {
			list[n-1].Count += r.Count
		} else {
			list = append(list, r.DayCount)
		}
	}
	return list
}

// latency returns the exact percentiles.
func (m *model) latency(q index.LatencyQuery, field string) *index.Percentiles {
	var all []float64
	for _, row := range m.rows[index.PacketType] {
		sent, ok := at(row, "packet_send_timestamp")
		arrived, has := at(row, field)
		if ok && has && m.between(row, q.SourceChain, q.DestinationChain, "") {
			all = append(all, max(0, arrived.Sub(sent).Seconds()))
		}
	}
	if len(all) == 0 {
		return nil
	}
	slices.Sort(all)
	rank := func(p float64) float64 { return all[int(math.Ceil(p*float64(len(all))))-1] }
	return &index.Percentiles{P5: rank(0.05), Median: rank(0.5), P95: rank(0.95)}
}
