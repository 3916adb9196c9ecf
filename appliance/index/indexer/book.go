package indexer

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/attestd/attestd/appliance/index"
)

// snapshot is the part of index.Snapshot that the indexer reads.
type snapshot interface {
	Packets(ctx context.Context, q index.PacketQuery) ([]index.Row, error)
	Tokens(ctx context.Context, q index.TokenQuery) ([]index.Row, error)
	Clients(ctx context.Context, q index.ClientQuery) ([]index.Row, error)
	Connections(ctx context.Context, q index.ConnectionQuery) ([]index.Row, error)
	Channels(ctx context.Context, q index.ChannelQuery) ([]index.Row, error)
	Position(ctx context.Context, name string) (string, bool, error)
}

// book turns the events of one batch into rows. It reads each row that an event changes from the index once.
type book struct {
	snap  snapshot
	names names
	ports map[string]string // as Indexer.ports
	// rescan is true if the events are read again: the updates of clients before the first event are unknown.
	rescan bool

	packets     map[string]*entry[index.Packet] // by hash
	clients     map[string]*entry[index.Client] // by chain and id, as the two below
	connections map[string]*entry[index.Connection]
	channels    map[string]*entry[index.Channel]
	tokens      map[string]*entry[index.Token] // by chain and denom
	waiting     map[string][]*step             // by packet hash: steps of packets that are not in the index
	updates     map[string]*index.Trace        // by chain and client: the newest update
	positions   map[string]string              // for index.Batch

	removed []index.RowID // packets and transfers to remove
	refused []string      // why events were left out
	count   int           // events that became part of rows
}

// entry is a row. exists is false if the index lacks it, and changed is true if it must be written.
type entry[R any] struct {
	row             R
	old             R // as the index has it
	exists, changed bool
}

func newBook(snap snapshot, x *Indexer, rescan bool) *book {
	return &book{
		snap: snap, names: x.names, ports: x.ports, rescan: rescan,
		packets: make(map[string]*entry[index.Packet]), clients: make(map[string]*entry[index.Client]),
		connections: make(map[string]*entry[index.Connection]), channels: make(map[string]*entry[index.Channel]),
		tokens:  make(map[string]*entry[index.Token]),
		waiting: make(map[string][]*step), updates: make(map[string]*index.Trace), positions: make(map[string]string),
	}
}

// The names of the positions that the indexer keeps in the index.
func progressName(chain string) string     { return "indexer progress " + chain }
func rescanName(chain string) string       { return "indexer rescan " + chain }
func openingName(channel string) string    { return "indexer opening " + channel }
func updateName(client string) string      { return "indexer update " + client }
func waitingName(packet string) string     { return "indexer waiting " + packet }
func keyOf(chain string, id uint32) string { return chain + "/" + strconv.FormatUint(uint64(id), 10) }
func number(id uint32) *int32              { return new(int32(id)) }
func tableOrder(at Place, id uint32) string {
	return fmt.Sprintf("%s-%s-%010d", at.Time.UTC().Format("20060102150405"), at.Chain, id)
}

// one is the page of a lookup by key.
var one = index.Page{Limit: new(int32(1))}

// find returns an entry of a cache, from the index if the cache lacks it.
func find[R any](cache map[string]*entry[R], key string, query func() ([]index.Row, error)) (*entry[R], error) {
	if e := cache[key]; e != nil {
		return e, nil
	}
	rows, err := query()
	if err != nil {
		return nil, err
	}
	e := new(entry[R])
	if len(rows) > 0 {
		e.exists = true
		if err := rows[0].Decode(&e.row); err != nil {
			return nil, err
		}
		e.old = e.row
	}
	cache[key] = e
	return e, nil
}

func (b *book) client(ctx context.Context, chain string, id uint32) (*entry[index.Client], error) {
	return find(b.clients, keyOf(chain, id), func() ([]index.Row, error) {
		return b.snap.Clients(ctx, index.ClientQuery{Page: one, Chain: chain, Client: number(id)})
	})
}

func (b *book) connection(ctx context.Context, chain string, id uint32) (*entry[index.Connection], error) {
	return find(b.connections, keyOf(chain, id), func() ([]index.Row, error) {
		return b.snap.Connections(ctx,
			index.ConnectionQuery{Page: one, Source: index.End{Chain: chain, Connection: number(id)}})
	})
}

func (b *book) channel(ctx context.Context, chain string, id uint32) (*entry[index.Channel], error) {
	return find(b.channels, keyOf(chain, id), func() ([]index.Row, error) {
		return b.snap.Channels(ctx,
			index.ChannelQuery{Page: one, Source: index.End{Chain: chain}, SourceChannel: number(id)})
	})
}

func (b *book) packet(ctx context.Context, hash string) (*entry[index.Packet], error) {
	return find(b.packets, hash, func() ([]index.Row, error) {
		return b.snap.Packets(ctx, index.PacketQuery{Page: one, PacketHash: hash})
	})
}

// position returns a stored JSON value. found is false if there is none.
func (b *book) position(ctx context.Context, name string, value any) (found bool, err error) {
	text, changed := b.positions[name]
	if !changed {
		if text, found, err = b.snap.Position(ctx, name); err != nil || !found {
			return false, err
		}
	}
	if text == "" {
		return false, nil
	}
	return true, json.Unmarshal([]byte(text), value)
}

func (b *book) setPosition(name string, value any) error {
	text, err := json.Marshal(value)
	b.positions[name] = string(text)
	return err
}

func (b *book) refuse(e *Event, format string, args ...any) error {
	b.refused = append(b.refused, fmt.Sprintf("%s in block %d, log %d: ", e.Kind, e.At.Block, e.At.Index)+
		fmt.Sprintf(format, args...))
	return nil
}

// add adds an event. Errors are those of the index; an event that does not fit is refused.
func (b *book) add(ctx context.Context, e *Event) error {
	b.count++
	switch e.Kind {
	case CreateClient:
		return b.createClient(ctx, e)
	case UpdateClient:
		return b.updateClient(ctx, e)
	case ConnectionOpenTry, ConnectionOpenAck:
		return b.openConnection(ctx, e)
	case ChannelOpenInit:
		return b.setPosition(openingName(keyOf(e.At.Chain, e.Channel)), opening{
			e.Connection, hexOf(e.Port), hexOf(e.CounterpartyPort), e.Version})
	case ChannelOpenTry, ChannelOpenAck:
		return b.openChannel(ctx, e)
	case CreateWrappedToken:
		return b.wrapToken(ctx, e)
	case TokenBucketUpdate:
		return b.limitToken(ctx, e)
	case PacketSend:
		return b.send(ctx, e)
	}
	return b.step(ctx, e)
}

func (b *book) createClient(ctx context.Context, e *Event) error {
	c, err := b.client(ctx, e.At.Chain, e.Client)
	if err != nil {
		return err
	}
	c.row.UniversalChainID, c.row.ClientID = e.At.Chain, int32(e.Client)
	c.row.CounterpartyUniversalChainID = b.names.of(e.CounterpartyChain)
	c.row.SortOrder, c.changed = tableOrder(e.At, e.Client), true
	return nil
}

func (b *book) updateClient(ctx context.Context, e *Event) error {
	c, err := b.client(ctx, e.At.Chain, e.Client)
	if err != nil {
		return err
	}
	at := traceOf(e.At)
	key := keyOf(e.At.Chain, e.Client)
	b.updates[key] = &at
	if !b.rescan {
		if err := b.setPosition(updateName(key), at); err != nil {
			return err
		}
	}
	if !c.exists && !c.changed {
		return b.refuse(e, "client %d is unknown", e.Client)
	}
	if old := c.row.Status; b.rescan && old != nil && old.Height != nil {
		if height, err := strconv.ParseUint(*old.Height, 10, 64); err == nil && height > e.At.Block {
			return nil
		}
	}
	c.row.Status = &index.ClientStatus{BlockHash: at.BlockHash, Height: at.Height, TransactionHash: at.TransactionHash,
		CounterpartyHeight: new(strconv.FormatUint(e.Height, 10)), Timestamp: at.Timestamp}
	c.changed = true
	return nil
}

func (b *book) openConnection(ctx context.Context, e *Event) error {
	c, err := b.client(ctx, e.At.Chain, e.Client)
	if err != nil {
		return err
	}
	if !c.exists && !c.changed {
		return b.refuse(e, "client %d is unknown", e.Client)
	}
	conn, err := b.connection(ctx, e.At.Chain, e.Connection)
	if err != nil {
		return err
	}
	conn.row = index.Connection{
		SortOrder: tableOrder(e.At, e.Connection), SourceUniversalChainID: e.At.Chain,
		SourceConnectionID: int32(e.Connection), SourceClientID: number(e.Client),
		DestUniversalChainID:    c.row.CounterpartyUniversalChainID,
		DestinationConnectionID: number(e.CounterpartyConnection), DestinationClientID: number(e.CounterpartyClient),
	}
	conn.changed = true
	return nil
}

// opening is what ChannelOpenInit says of a channel. ChannelOpenAck has the rest.
type opening struct {
	Connection             uint32
	Port, CounterpartyPort string // 0x-hex
	Version                string
}

func (b *book) openChannel(ctx context.Context, e *Event) error {
	is := opening{e.Connection, hexOf(e.Port), hexOf(e.CounterpartyPort), e.Version}
	if e.Kind == ChannelOpenAck {
		found, err := b.position(ctx, openingName(keyOf(e.At.Chain, e.Channel)), &is)
		if err != nil {
			return err
		}
		if !found {
			return b.refuse(e, "its ChannelOpenInit is unknown")
		}
	}
	conn, err := b.connection(ctx, e.At.Chain, e.Connection)
	if err != nil {
		return err
	}
	if !conn.exists && !conn.changed {
		return b.refuse(e, "connection %d is unknown", e.Connection)
	}
	ch, err := b.channel(ctx, e.At.Chain, e.Channel)
	if err != nil {
		return err
	}
	ch.row = index.Channel{
		SortOrder: tableOrder(e.At, e.Channel), SourceUniversalChainID: e.At.Chain,
		SourceChannelID: int32(e.Channel), SourceClientID: conn.row.SourceClientID,
		SourceConnectionID: number(e.Connection), SourcePortID: new(is.Port),
		DestUniversalChainID: conn.row.DestUniversalChainID, DestinationChannelID: number(e.CounterpartyChannel),
		DestinationClientID: conn.row.DestinationClientID, DestinationConnectionID: conn.row.DestinationConnectionID,
		DestinationPortID: new(is.CounterpartyPort), Version: new(printable(is.Version)),
	}
	ch.changed = true
	return nil
}

func (b *book) send(ctx context.Context, e *Event) error {
	ch, err := b.channel(ctx, e.At.Chain, e.Channel)
	if err != nil {
		return err
	}
	if !ch.exists && !ch.changed {
		return b.refuse(e, "channel %d is unknown", e.Channel)
	}
	hash := e.PacketHash.String()
	p, err := b.packet(ctx, hash)
	if err != nil {
		return err
	}
	if p.exists || p.changed {
		if p.row.SourceUniversalChainID != e.At.Chain {
			return b.refuse(e, "packet %s was sent on %s, too", hash, p.row.SourceUniversalChainID)
		}
		if len(p.row.Traces) != atAck+1 {
			return b.refuse(e, "packet %s has other traces, from an upstream", hash)
		}
		send(&p.row, traceOf(e.At))
		p.changed = true
		return nil
	}
	p.row, p.changed = newPacket(e, &ch.row), true
	send(&p.row, traceOf(e.At))
	steps, err := b.waitingFor(ctx, hash)
	if err != nil || len(steps) == 0 {
		return err
	}
	var others []*step // of another chain that has emitted the same hash
	for _, s := range steps {
		if !take(&p.row, s) {
			others = append(others, s)
		}
	}
	b.waiting[hash] = others
	return nil
}

// waitingFor returns the steps that were read before their packet.
func (b *book) waitingFor(ctx context.Context, hash string) ([]*step, error) {
	if steps, known := b.waiting[hash]; known {
		return steps, nil
	}
	var steps []*step
	_, err := b.position(ctx, waitingName(hash), &steps)
	return steps, err
}

// step adds a step to its packet, or stores the step until the packet is read: chains are read independently.
func (b *book) step(ctx context.Context, e *Event) error {
	s := &step{Kind: e.Kind, Channel: e.Channel, At: traceOf(e.At), Maker: hexOf(e.Maker),
		MakerMessage: hexOf(e.MakerMessage), Acknowledgement: hexOf(e.Acknowledgement)}
	var err error
	if s.Update, err = b.lastUpdate(ctx, e.At.Chain, e.Channel); err != nil {
		return err
	}
	hash := e.PacketHash.String()
	p, err := b.packet(ctx, hash)
	if err != nil {
		return err
	}
	if p.exists || p.changed {
		if !take(&p.row, s) {
			return b.refuse(e, "packet %s was sent from another channel", hash)
		}
		p.changed = true
		return nil
	}
	steps, err := b.waitingFor(ctx, hash)
	if err != nil {
		return err
	}
	if at := slices.IndexFunc(steps, s.same); at >= 0 {
		if s.Update == nil {
			s.Update = steps[at].Update
		}
		steps = slices.Concat(steps[:at], steps[at+1:])
	}
	b.waiting[hash] = append(steps, s)
	return nil
}

// lastUpdate returns the newest update of a channel's client, nil if none is known.
func (b *book) lastUpdate(ctx context.Context, chain string, channel uint32) (*index.Trace, error) {
	ch, err := b.channel(ctx, chain, channel)
	if err != nil || ch.row.SourceClientID == nil {
		return nil, err
	}
	key := keyOf(chain, uint32(*ch.row.SourceClientID))
	if known := b.updates[key]; known != nil || b.rescan {
		return known, nil
	}
	at := new(index.Trace)
	if found, err := b.position(ctx, updateName(key), at); err != nil || !found {
		return nil, err
	}
	b.updates[key] = at
	return at, nil
}

// batch returns the rows and positions to write, and how to undo them. Undo.Before is left to the caller.
func (b *book) batch(ctx context.Context) (batch index.Batch, u undo, err error) {
	for name := range b.positions {
		before, _, err := b.snap.Position(ctx, name)
		if err != nil {
			return batch, u, err
		}
		u.Positions = withPosition(u.Positions, name, before)
	}
	for hash, steps := range b.waiting {
		if len(steps) == 0 {
			b.positions[waitingName(hash)] = ""
		} else if err := b.setPosition(waitingName(hash), steps); err != nil {
			return batch, u, err
		}
	}
	batch.Positions, batch.Removed = b.positions, b.removed
	u.Packets = slices.Sorted(maps.Keys(b.packets))
	for _, add := range []error{
		appendTable(b, &batch, &u, "client", b.clients),
		appendTable(b, &batch, &u, "connection", b.connections),
		appendTable(b, &batch, &u, "channel", b.channels),
		appendTable(b, &batch, &u, "token", b.tokens),
	} {
		if add != nil {
			return batch, u, add
		}
	}
	// in the order of sort_order, in which the store writes fastest
	changed := slices.DeleteFunc(slices.Collect(maps.Values(b.packets)),
		func(e *entry[index.Packet]) bool { return !e.changed })
	slices.SortFunc(changed, func(a, b *entry[index.Packet]) int {
		return strings.Compare(a.row.SortOrder, b.row.SortOrder)
	})
	for _, e := range changed {
		batch.Rows = b.appendRow(batch.Rows, "packet "+e.row.PacketHash, e.row)
		if t, ok := transferOf(&e.row, b.ports); ok {
			batch.Rows = b.appendRow(batch.Rows, "transfer of packet "+e.row.PacketHash, t)
		}
	}
	return batch, u, nil
}

// appendRow appends a row. A row that an index cannot hold, such as one with a packet of many megabytes, is left out,
// so that it does not stop the chain.
func (b *book) appendRow(rows []index.Row, name string, value any) []index.Row {
	row, err := index.NewRow(value)
	if err != nil {
		b.refused = append(b.refused, name+": "+err.Error())
		return rows
	}
	return append(rows, row)
}

func appendTable[R any](b *book, batch *index.Batch, u *undo, name string, entries map[string]*entry[R]) error {
	for _, key := range slices.Sorted(maps.Keys(entries)) {
		e := entries[key]
		if !e.changed {
			continue
		}
		n := len(batch.Rows)
		if batch.Rows = b.appendRow(batch.Rows, name+" "+key, e.row); len(batch.Rows) == n {
			continue
		}
		if !e.exists {
			u.Added = append(u.Added, string(batch.Rows[n].AppendLine(nil)))
			continue
		}
		old, err := index.NewRow(e.old)
		if err != nil {
			return err
		}
		u.Rows = append(u.Rows, string(old.AppendLine(nil)))
	}
	return nil
}

// names are the universal chain ids of the chains that a client may follow.
type names map[string]string // by chain id

// of returns the universal chain id of a chain id, with the family "unknown" for a chain that is not known.
func (n names) of(chainID string) string {
	if known, ok := n[chainID]; ok {
		return known
	}
	return "unknown." + printable(chainID)
}

// newNames returns the names of the public deployments and of some more chains.
func newNames(chains []string) names {
	n := make(names)
	for _, id := range slices.Concat(publicChains, chains) {
		if _, chainID, ok := strings.Cut(id, "."); ok {
			n[chainID] = id
		}
	}
	return n
}

// publicChains are the universal chain ids (UCS-04) of the mainnets with a public deployment.
var publicChains = []string{
	"ethereum.1", "bsc.56", "base.8453", "arbitrum.42161", "bob.60808", "corn.21000000", "sei.1329",
	"union.union-1", "babylon.bbn-1", "osmosis.osmosis-1",
}
