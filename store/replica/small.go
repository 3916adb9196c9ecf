package replica

import (
	"context"
	"slices"
	"sort"

	"github.com/attestd/attestd/appliance/index"
)

// pick returns a page of the rows of a small type that pass the filter.
func (s *snapshot) pick(ctx context.Context, of *index.Type, page index.Page,
	passes func(index.Row) bool) ([]index.Row, error) {
	limit, err := page.Size()
	if err != nil {
		return nil, err
	}
	t := s.tables.of[of]
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
	for n := 0; at >= 0 && at < len(t.sorted) && len(found) < limit; at += step {
		if n++; n%askEvery == 0 && ctx.Err() != nil {
			return nil, timeoutError(ctx.Err())
		}
		if passes(t.sorted[at]) {
			found = append(found, t.sorted[at])
		}
	}
	return found, nil
}

// Chains implements index.Snapshot.
func (s *snapshot) Chains(ctx context.Context, q index.ChainQuery) ([]index.Row, error) {
	return s.pick(ctx, index.ChainType, q.Page, func(row index.Row) bool {
		return isText(row, index.ChainIDColumn, q.Chain)
	})
}

// Tokens implements index.Snapshot.
func (s *snapshot) Tokens(ctx context.Context, q index.TokenQuery) ([]index.Row, error) {
	var found []index.Row
	for n, row := range s.tables.ranked {
		if n%askEvery == 0 && ctx.Err() != nil {
			return nil, timeoutError(ctx.Err())
		}
		if isText(row, index.TokenChainColumn, q.Chain) && isText(row, index.TokenDenomColumn, q.Denom) &&
			isBool(row, index.TokenWhitelistColumn, q.Whitelist) {
			found = append(found, row)
		}
	}
	return found, nil
}

// Channels implements index.Snapshot.
func (s *snapshot) Channels(ctx context.Context, q index.ChannelQuery) ([]index.Row, error) {
	return s.pick(ctx, index.ChannelType, q.Page, func(row index.Row) bool {
		return channelSource.is(row, q.Source) && channelDestination.is(row, q.Destination) &&
			isInt(row, index.ChannelSourceChannelColumn, q.SourceChannel) &&
			isInt(row, index.ChannelDestinationChannelColumn, q.DestinationChannel) &&
			isText(row, index.ChannelSourcePortColumn, q.SourcePort) &&
			isText(row, index.ChannelDestinationPortColumn, q.DestinationPort) &&
			isText(row, index.ChannelVersionColumn, q.Version) &&
			isBool(row, index.ChannelRecommendedColumn, q.Recommended) && hasTags(row, q.Tags)
	})
}

// hasTags reports whether a channel has at least one of the tags; nil matches every channel.
func hasTags(channel index.Row, tags []string) bool {
	if tags == nil {
		return true
	}
	has := channel.Texts(index.ChannelTagsColumn)
	return slices.ContainsFunc(tags, func(tag string) bool { return slices.Contains(has, tag) })
}

// Clients implements index.Snapshot.
func (s *snapshot) Clients(ctx context.Context, q index.ClientQuery) ([]index.Row, error) {
	return s.pick(ctx, index.ClientType, q.Page, func(row index.Row) bool {
		return isText(row, index.ClientChainColumn, q.Chain) &&
			isText(row, index.ClientCounterpartyColumn, q.Counterparty) &&
			isInt(row, index.ClientIDColumn, q.Client)
	})
}

// Connections implements index.Snapshot.
func (s *snapshot) Connections(ctx context.Context, q index.ConnectionQuery) ([]index.Row, error) {
	return s.pick(ctx, index.ConnectionType, q.Page, func(row index.Row) bool {
		return connectionSource.is(row, q.Source) && connectionDestination.is(row, q.Destination)
	})
}

// end holds the columns of one end of a connection or channel.
type end struct{ chain, client, connection int }

var (
	connectionSource = end{index.ConnectionSourceChainColumn, index.ConnectionSourceClientColumn,
		index.ConnectionSourceConnectionColumn}
	connectionDestination = end{index.ConnectionDestinationChainColumn, index.ConnectionDestinationClientColumn,
		index.ConnectionDestinationConnectionColumn}
	channelSource = end{index.ChannelSourceChainColumn, index.ChannelSourceClientColumn,
		index.ChannelSourceConnectionColumn}
	channelDestination = end{index.ChannelDestinationChainColumn, index.ChannelDestinationClientColumn,
		index.ChannelDestinationConnectionColumn}
)

// is reports whether the end matches the query.
func (e end) is(row index.Row, want index.End) bool {
	return isText(row, e.chain, want.Chain) && isInt(row, e.client, want.Client) &&
		isInt(row, e.connection, want.Connection)
}

func isText(row index.Row, column int, want string) bool {
	return want == "" || has(row, column, fold(want))
}

func isInt(row index.Row, column int, want *int32) bool {
	if want == nil {
		return true
	}
	n, ok := row.Int(column)
	return ok && n == *want
}

// isBool treats null as false.
func isBool(row index.Row, column int, want *bool) bool {
	if want == nil {
		return true
	}
	b, _ := row.Bool(column)
	return b == *want
}
