package answer

import (
	"context"
	"strings"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/zkgm"
)

type transferRequestArguments struct {
	PSourceUniversalChainID, PDestinationUniversalChainID, PBaseToken *string
}

type transferRequest struct {
	QuoteToken                            *string
	SourceChannelID, DestinationChannelID *int32
	AlreadyExists                         *bool
	WrapDirection                         *string
}

// V2UtilGetTransferRequestDetails returns how a token can be transferred to another chain. A token that wraps one of
// the destination is unwrapped over the channel that it came by. Any other token is wrapped over the recommended
// channel.
func (figures) V2UtilGetTransferRequestDetails(ctx context.Context,
	in struct{ Args *transferRequestArguments }) ([]transferRequest, error) {
	a := in.Args
	if a == nil {
		a = &transferRequestArguments{}
	}
	var wrong fault
	source := wrong.needed("p_source_universal_chain_id", a.PSourceUniversalChainID)
	destination := wrong.needed("p_destination_universal_chain_id", a.PDestinationUniversalChainID)
	token := wrong.needed("p_base_token", a.PBaseToken)
	if wrong.err != nil {
		return nil, wrong.err
	}
	from := ctx.Value(figuresKey{}).(index.Lists)
	channels, err := from.Channels(ctx, index.ChannelQuery{
		Source: index.End{Chain: source}, Destination: index.End{Chain: destination}, Version: zkgm.ChannelVersion,
	})
	if err != nil || len(channels) == 0 {
		return nil, err
	}
	base, err := from.Tokens(ctx, index.TokenQuery{Chain: source, Denom: token})
	if err != nil {
		return nil, err
	}
	if r, ok := unwrapping(base, channels, destination); ok {
		return []transferRequest{r}, nil
	}
	there, err := from.Tokens(ctx, index.TokenQuery{Chain: destination})
	return []transferRequest{wrapping(there, best(channels), source, token)}, err
}

// needed is text for a required argument.
func (f *fault) needed(name string, given *string) string {
	if given == nil {
		f.fail(name, "is required")
	}
	return f.text(name, given)
}

// best returns a recommended channel if one exists, and the newest otherwise.
func best(channels []index.Row) index.Row {
	for _, c := range channels {
		if recommended, _ := c.Bool(index.ChannelRecommendedColumn); recommended {
			return c
		}
	}
	return channels[0]
}

func request(channel index.Row, direction string) transferRequest {
	r := transferRequest{WrapDirection: &direction, AlreadyExists: new(false)}
	if id, ok := channel.Int(index.ChannelSourceChannelColumn); ok {
		r.SourceChannelID = &id
	}
	if id, ok := channel.Int(index.ChannelDestinationChannelColumn); ok {
		r.DestinationChannelID = &id
	}
	return r
}

// unwrapping returns the request for a token that wraps one of the destination.
func unwrapping(base, channels []index.Row, destination string) (r transferRequest, ok bool) {
	for _, token := range base {
		for w := range token.List(index.TokenWrappingColumn) {
			home, _ := w.Text(index.WrappingUnwrappedChainColumn)
			denom, known := w.Text(index.WrappingUnwrappedDenomColumn)
			if home != destination || !known {
				continue
			}
			by := best(channels)
			for _, c := range channels {
				if sameInt(c, index.ChannelSourceChannelColumn, w, index.WrappingDestinationChannelColumn) {
					by = c
				}
			}
			r = request(by, "unwrapping")
			r.QuoteToken, r.AlreadyExists = &denom, new(true)
			return r, true
		}
	}
	return r, false
}

// wrapping returns the request that wraps a token over a channel. there are the tokens of the destination.
func wrapping(there []index.Row, channel index.Row, source, base string) transferRequest {
	r := request(channel, "wrapping")
	for _, token := range there {
		for w := range token.List(index.TokenWrappingColumn) {
			home, _ := w.Text(index.WrappingUnwrappedChainColumn)
			denom, _ := w.Text(index.WrappingUnwrappedDenomColumn)
			if home == source && strings.EqualFold(denom, base) &&
				sameInt(channel, index.ChannelDestinationChannelColumn, w, index.WrappingDestinationChannelColumn) {
				quote, _ := token.Text(index.TokenDenomColumn)
				r.QuoteToken, r.AlreadyExists = &quote, new(true)
			}
		}
	}
	return r
}

func sameInt(a index.Row, columnOfA int, b index.Row, columnOfB int) bool {
	x, known := a.Int(columnOfA)
	y, alsoKnown := b.Int(columnOfB)
	return known && alsoKnown && x == y
}

type addressArguments struct{ PDisplayAddress, PChainType *string }

type addressTypes struct{ Canonical, Display, Zkgm *string }

// V2UtilGetAddressTypesForDisplayAddress returns the forms of an address. It returns an empty list for an invalid
// address, and for a wrong bech32 or EIP-55 checksum.
func (figures) V2UtilGetAddressTypesForDisplayAddress(ctx context.Context,
	in struct{ Args *addressArguments }) ([]addressTypes, error) {
	a := in.Args
	if a == nil {
		a = &addressArguments{}
	}
	var wrong fault
	shown, kind := wrong.needed("p_display_address", a.PDisplayAddress), wrong.text("p_chain_type", a.PChainType)
	if kind != "" && kind != "cosmos" && kind != "evm" {
		wrong.fail("p_chain_type", "must be \"cosmos\" or \"evm\"")
	}
	if wrong.err != nil {
		return nil, wrong.err
	}
	carried, is := []byte(shown), "cosmos"
	if address, err := appliance.ParseAddress(shown); err == nil || appliance.CodeOf(err) == appliance.CodeZeroAddress {
		carried, is = address[:], "evm"
	} else if shown == strings.ToUpper(shown) { // BIP-173 allows uppercase, but chains use lowercase
		carried = []byte(strings.ToLower(shown))
	}
	forms := index.AddressOf(carried)
	if kind != "" && kind != is || is == "cosmos" && forms.Display != string(carried) {
		return nil, nil
	}
	return []addressTypes{{&forms.Canonical, &forms.Display, &forms.Zkgm}}, nil
}
