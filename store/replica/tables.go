package replica

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"go.etcd.io/bbolt"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index"
)

// tables are the rows of the small types, and maps derived from them. They are immutable: a write makes new ones.
type tables struct {
	of       map[*index.Type]table // by type, for index.TableTypes
	testnets map[string]bool
	slas     map[string]time.Duration // by channel key
	ranked   []index.Row              // tokens, in the order of Snapshot.Tokens
	routes   [2][]route               // by collection: the pairs of chains that have rows
}

// table holds all rows of a small type.
type table struct {
	byKey  map[string]index.Row // by Row.Key
	sorted []index.Row          // by sort_order, ascending
	orders []string             // their sort_orders
}

// route is a pair of chains.
type route struct {
	source, destination string
	term                uint64
}

func loadTables(tx *bbolt.Tx) (*tables, error) {
	t := &tables{of: make(map[*index.Type]table)}
	for _, of := range index.TableTypes {
		t.loadTable(tx, of)
	}
	t.derive()
	t.loadRoutes(tx)
	return t, nil
}

// reload returns a copy of the tables in which the changed ones are read again.
func (t *tables) reload(tx *bbolt.Tx, changed map[*index.Type]bool, routes bool) *tables {
	next := *t
	next.of = maps.Clone(t.of)
	for of := range changed {
		next.loadTable(tx, of)
	}
	if len(changed) > 0 {
		next.derive()
	}
	if routes {
		next.loadRoutes(tx)
	}
	return &next
}

func (t *tables) loadTable(tx *bbolt.Tx, of *index.Type) {
	loaded := table{byKey: make(map[string]index.Row)}
	cursor := tx.Bucket([]byte(of.Name)).Cursor()
	for k, v := cursor.First(); k != nil; k, v = cursor.Next() {
		row := index.RowOf(of, unseal(sumOf([]byte(of.Name)), k, v)).Clone()
		loaded.byKey[string(k)] = row
		loaded.sorted = append(loaded.sorted, row)
	}
	slices.SortFunc(loaded.sorted, func(a, b index.Row) int { return cmp.Compare(a.SortOrder(), b.SortOrder()) })
	for _, row := range loaded.sorted {
		loaded.orders = append(loaded.orders, row.SortOrder())
	}
	t.of[of] = loaded
}

func (t *tables) derive() {
	t.testnets = make(map[string]bool)
	for key, row := range t.of[index.ChainType].byKey {
		if testnet, _ := row.Bool(index.ChainTestnetColumn); testnet {
			t.testnets[key] = true
		}
	}
	t.slas = make(map[string]time.Duration)
	for key, row := range t.of[index.ChannelType].byKey {
		if text, ok := row.Text(index.ChannelSLAColumn); ok {
			if sla, err := index.ParseInterval(text); err == nil {
				t.slas[key] = sla
			}
		}
	}
	t.ranked = slices.Clone(t.of[index.TokenType].sorted)
	slices.SortStableFunc(t.ranked, func(a, b index.Row) int {
		return cmp.Compare(rankOf(a), rankOf(b)) // SortStableFunc keeps equal ranks in the order of chain and denom
	})
}

func rankOf(token index.Row) int64 {
	if rank, ok := token.Int(index.TokenRankColumn); ok {
		return int64(rank)
	}
	return math.MaxInt64
}

// loadRoutes reads the pairs of chains from the keys of their counts.
func (t *tables) loadRoutes(tx *bbolt.Tx) {
	for i, c := range collections {
		t.routes[i] = nil
		prefix := string(statKey(c, statRoute, ""))
		cursor := tx.Bucket(bucketStats).Cursor()
		for k, _ := cursor.Seek([]byte(prefix)); strings.HasPrefix(string(k), prefix); k, _ = cursor.Next() {
			source, destination, _ := strings.Cut(string(k[len(prefix):]), routeSeparator)
			t.routes[i] = append(t.routes[i],
				route{source: source, destination: destination, term: routeTerm(source, destination)})
		}
	}
}

// network returns the network of a chain.
func (t *tables) network(chain string) index.Network {
	if t.testnets[chain] {
		return index.Testnet
	}
	return index.Mainnet
}

// late reports whether a packet exceeds the SLA of its channel.
func (t *tables) late(packet index.Row, now time.Time) bool {
	sent, ok := packet.Nanoseconds(packets.sent)
	if !ok || !packet.IsNull(index.PacketAckedColumn) || !packet.IsNull(index.PacketTimedOutColumn) {
		return false
	}
	sla := index.DefaultSLA
	var buf [128]byte
	if d, ok := t.slas[string(packet.AppendKey(buf[:0], packetChannelKey))]; ok &&
		!packet.IsNull(index.PacketSourceChannelColumn) {
		sla = d // a null source channel would read as channel 0
	}
	return now.UnixNano()-sent > int64(sla)
}

// packetChannelKey are the fields of a packet that identify its channel.
var packetChannelKey = []int{index.PacketSourceChainColumn, index.PacketSourceChannelColumn}

// Related implements index.Snapshot.
func (s *snapshot) Related(row index.Row, relation index.Relation) index.Row {
	if row.IsZero() {
		return index.Row{}
	}
	for _, f := range relation.By {
		if row.IsNull(f) {
			return index.Row{}
		}
	}
	var buf [256]byte
	key := row.AppendKey(buf[:0], relation.By)
	if table, ok := s.tables.of[relation.To]; ok {
		found, ok := table.byKey[string(key)]
		if !ok && relation.To == index.ChainType {
			return placeholder(index.Chain{UniversalChainID: string(key)})
		}
		return found
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	found, _ := s.find(packets, key)
	if found.IsZero() {
		return placeholder(index.Packet{PacketHash: string(key), SortOrder: string(key)})
	}
	return found
}

// placeholder returns a row with only its key set, for a row that is not in the index.
func placeholder(value any) index.Row {
	row, err := index.NewRow(value)
	if err != nil {
		return index.Row{} // the key that led here was empty or not UTF-8
	}
	return row
}

// upsertTable is upsert for a row of a small type.
func (w *batchWriter) upsertTable(row index.Row) (count *int, err error) {
	of := row.Type()
	bucket := []byte(of.Name)
	key := row.Key()
	old := get(w.tx, bucket, []byte(key))
	if sorted, has := row.Type().Field("sort_order"); has {
		order, _ := row.Text(sorted.Number)
		taken := func(order string) bool {
			holder, ok := w.orders(of)[order]
			return ok && holder != key
		}
		kept := ""
		if old != nil {
			kept = index.RowOf(row.Type(), old).SortOrder()
		}
		switch free, err := settleOrder(order, kept, key, taken); {
		case err != nil:
			return nil, err
		case free != order:
			if row, err = row.WithText(sorted.Number, free); err != nil {
				return nil, err
			}
			order = free
		}
		delete(w.orders(of), kept)
		w.orders(of)[order] = key
	}
	switch {
	case old == nil:
		count = &w.written.Inserted
	case string(old) == string(row.Bytes()):
		return &w.written.Unchanged, nil
	default:
		count = &w.written.Updated
	}
	w.changedTables[of] = true
	return count, put(w.tx, bucket, []byte(key), row.Bytes())
}

// removeFromTable deletes a row of a small type, and reports whether it existed.
func (w *batchWriter) removeFromTable(id index.RowID) (removed bool, err error) {
	if !slices.Contains(index.TableTypes, id.Type) {
		return false, appliance.Errorf(appliance.CodeInvalidField, "%s rows are not stored separately", id.Type.Name)
	}
	bucket := []byte(id.Type.Name)
	old := get(w.tx, bucket, []byte(id.Key))
	if old == nil {
		return false, nil
	}
	if _, sorted := id.Type.Field("sort_order"); sorted {
		delete(w.orders(id.Type), index.RowOf(id.Type, old).SortOrder())
	}
	w.changedTables[id.Type] = true
	return true, w.tx.Bucket(bucket).Delete([]byte(id.Key))
}

// orders returns, for a small type, the key of the row that holds each sort_order at this point of the batch.
func (w *batchWriter) orders(of *index.Type) map[string]string {
	if w.tableOrders[of] == nil {
		w.tableOrders[of] = make(map[string]string)
		for key, row := range w.r.tables.Load().of[of].byKey {
			w.tableOrders[of][row.SortOrder()] = key
		}
	}
	return w.tableOrders[of]
}

// settleOrder returns the sort_order to store a row under: its own if no other row has it, otherwise its own extended
// by its key (index.TieBreak). A row that is stored under either of the two stays there.
func settleOrder(order, kept, key string, taken func(string) bool) (string, error) {
	tied := index.TieBreak(order, key)
	switch {
	case kept == order, kept == tied:
		return kept, nil
	case !taken(order):
		return order, nil
	case !taken(tied):
		return tied, nil
	}
	return "", appliance.Errorf(appliance.CodeInvalidField, "%s",
		fmt.Sprintf("%q and %q belong to other rows", order, tied)).In("sort_order")
}
