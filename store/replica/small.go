package replica

import (
	"context"
	"slices"
	"sort"

	"github.com/attestd/attestd/appliance/index"
)

// pick returns the page of a small type's rows that pass.
func (s *snapshot) pick(ctx context.Context, number int, page index.Page, passes func(index.Row) bool) ([]index.Row, error) {
	limit, err := page.Size()
	if err != nil {
		return nil, err
	}
	t := &s.tables.of[number]
	at, step := len(t.sorted)-1, -1
	switch {
	case page.Ascending():
		at, step = sort.SearchStrings(t.orders, page.Cursor), 1
		if at < len(t.orders) && t.orders[at] == page.Cursor {
			at++
		}
	case page.Cursor != "":
		at = sort.SearchStrings(t.orders, page.Cursor) - 1
	}
	var found []index.Row
	for ; at >= 0 && at < len(t.sorted) && len(found) < limit; at += step {
		if passes(t.sorted[at]) {
			found = append(found, t.sorted[at])
		}
	}
	return found, nil
}

// Chains implements index.Snapshot.
func (s *snapshot) Chains(ctx context.Context, q index.ChainQuery) ([]index.Row, error) {
	return s.pick(ctx, tableChains, q.Page, func(row index.Row) bool {
		return isText(row, index.ChainType, "universal_chain_id", q.Chain)
	})
}

// Tokens implements index.Snapshot.
func (s *snapshot) Tokens(ctx context.Context, q index.TokenQuery) ([]index.Row, error) {
	var found []index.Row
	for _, row := range s.tables.ranked {
		if isText(row, index.TokenType, "universal_chain_id", q.Chain) && isText(row, index.TokenType, "denom", q.Denom) &&
			isBool(row, index.TokenType, "whitelist", q.Whitelist) {
			found = append(found, row)
		}
	}
	return found, nil
}

// Channels implements index.Snapshot.
func (s *snapshot) Channels(ctx context.Context, q index.ChannelQuery) ([]index.Row, error) {
	t := index.ChannelType
	return s.pick(ctx, tableChannels, q.Page, func(row index.Row) bool {
		return isEnd(row, "source", q.Source) && isEnd(row, "destination", q.Destination) &&
			isInt(row, t, "source_channel_id", q.SourceChannel) && isInt(row, t, "destination_channel_id", q.DestinationChannel) &&
			isText(row, t, "source_port_id", q.SourcePort) && isText(row, t, "destination_port_id", q.DestinationPort) &&
			isText(row, t, "version", q.Version) && isBool(row, t, "recommended", q.Recommended) && hasTags(row, q.Tags)
	})
}

func hasTags(channel index.Row, tags []string) bool {
	if len(tags) == 0 {
		return true
	}
	has := channel.Texts(index.ChannelType.MustField("tags").Number)
	for _, tag := range tags {
		if !slices.Contains(has, tag) {
			return false
		}
	}
	return true
}

// Clients implements index.Snapshot.
func (s *snapshot) Clients(ctx context.Context, q index.ClientQuery) ([]index.Row, error) {
	t := index.ClientType
	return s.pick(ctx, tableClients, q.Page, func(row index.Row) bool {
		return isText(row, t, "universal_chain_id", q.Chain) && isText(row, t, "counterparty_universal_chain_id", q.Counterparty) &&
			isInt(row, t, "client_id", q.Client)
	})
}

// Connections implements index.Snapshot.
func (s *snapshot) Connections(ctx context.Context, q index.ConnectionQuery) ([]index.Row, error) {
	return s.pick(ctx, tableConnections, q.Page, func(row index.Row) bool {
		return isEnd(row, "source", q.Source) && isEnd(row, "destination", q.Destination)
	})
}

// isEnd tells whether one end of a connection or channel is as asked.
func isEnd(row index.Row, side string, end index.End) bool {
	t := row.Type()
	return isText(row, t, side+"_universal_chain_id", end.Chain) && isInt(row, t, side+"_client_id", end.Client) &&
		isInt(row, t, side+"_connection_id", end.Connection)
}

func isText(row index.Row, t *index.Type, field, want string) bool {
	return want == "" || has(row, t.MustField(field).Number, fold(want))
}

func isInt(row index.Row, t *index.Type, field string, want *int32) bool {
	if want == nil {
		return true
	}
	n, ok := row.Int(t.MustField(field).Number)
	return ok && n == *want
}

// isBool takes null for false.
func isBool(row index.Row, t *index.Type, field string, want *bool) bool {
	if want == nil {
		return true
	}
	b, _ := row.Bool(t.MustField(field).Number)
	return b == *want
}
