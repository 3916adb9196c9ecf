package indexer

import (
	"context"

	"github.com/attestd/attestd/appliance/index"
)

// token returns the token of an event. It keeps what an existing row has from elsewhere, such as an upstream.
func (b *book) token(ctx context.Context, e *Event) (*index.Token, error) {
	denom := hexOf(e.Token)
	t, err := find(b.tokens, e.At.Chain+"/"+denom, func() ([]index.Row, error) {
		return b.snap.Tokens(ctx, index.TokenQuery{Chain: e.At.Chain, Denom: denom})
	})
	if err != nil {
		return nil, err
	}
	t.row.UniversalChainID, t.row.Denom, t.changed = e.At.Chain, denom, true
	if t.row.NativeDenom == nil {
		t.row.NativeDenom = &e.NativeToken
	}
	return &t.row, nil
}

// wrapToken adds a wrapped token.
func (b *book) wrapToken(ctx context.Context, e *Event) error {
	ch, err := b.channel(ctx, e.At.Chain, e.Channel)
	if err != nil {
		return err
	}
	if !ch.exists && !ch.changed {
		return b.refuse(e, "channel %d is unknown", e.Channel)
	}
	t, err := b.token(ctx, e)
	if err != nil {
		return err
	}
	if len(t.Wrapping) == 0 {
		t.Wrapping = []index.TokenWrapping{{
			Index: new(int32(0)), UnwrappedUniversalChainID: ch.row.DestUniversalChainID,
			UnwrappedDenom: new(hexOf(e.BaseToken)), WrappedUniversalChainID: e.At.Chain, WrappedDenom: &t.Denom,
			DestinationChannelID: number(e.Channel),
		}}
	}
	name, symbol, decimals := namesIn(e.Metadata)
	if len(t.Representations) == 0 && name != nil {
		t.Representations = []index.TokenRepresentation{{UniversalChainID: e.At.Chain, Denom: &t.Denom, Name: name,
			Symbol: symbol, Decimals: decimals}}
	}
	return nil
}

// limitToken sets how much of a token may move. A rescan leaves a limit that may be newer.
func (b *book) limitToken(ctx context.Context, e *Event) error {
	t, err := b.token(ctx, e)
	if err != nil || b.rescan && t.Bucket != nil {
		return err
	}
	t.Bucket = &index.TokenBucket{UniversalChainID: e.At.Chain, Denom: &t.Denom,
		Capacity: new(e.Capacity.String()), RefillRate: new(e.RefillRate.String())}
	return nil
}
