package indexer_test

import (
	"math/big"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/common"

	"github.com/attestd/attestd/appliance/chain/chaintest"
	"github.com/attestd/attestd/appliance/chain/comettest"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/indexer"
)

// wasmMinter is the minter of wrapped tokens on Union.
const wasmMinter = "union150u2vpdtau48c50lntaqgleu8rqfnnuh2u3pzfg7pfcvw4uzq6tqceagxy"

// packed returns the ABI encoding of values, each after its type.
func packed(t testing.TB, values ...any) []byte {
	t.Helper()
	var form abi.Arguments
	var list []any
	for i := 0; i < len(values); i += 2 {
		kind, err := abi.NewType(values[i].(string), "", nil)
		if err != nil {
			t.Fatal(err)
		}
		form, list = append(form, abi.Argument{Type: kind}), append(list, values[i+1])
	}
	raw, err := form.Pack(list...)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// tokenMetadata is the metadata of a wrapped token of an EVM chain.
func tokenMetadata(t testing.TB, name, symbol string, decimals uint8) []byte {
	t.Helper()
	initializer := packed(t, "address", maker, "address", port, "string", name, "string", symbol, "uint8", decimals)
	return packed(t, "bytes", maker[:], "bytes", append(common.FromHex("0x8420ce99"), initializer...))
}

func createWrappedToken(channel uint32, base []byte, quote common.Address, metadata []byte) emission {
	return emission{evm: chaintest.Event("CreateWrappedToken(uint256,uint32,bytes,address,bytes,uint8)",
		[]common.Hash{chaintest.Word(channel), common.BytesToHash(quote[:])}, arg{Type: "uint256", Value: new(big.Int)},
		arg{Type: "bytes", Value: base}, arg{Type: "bytes", Value: metadata}, arg{Type: "uint8", Value: uint8(0)})}
}

func bucket(token common.Address, capacity int64) emission {
	return emission{evm: chaintest.Event("TokenBucketUpdate(address,uint256,uint256)",
		[]common.Hash{common.BytesToHash(token[:])}, arg{Type: "uint256", Value: big.NewInt(capacity)},
		arg{Type: "uint256", Value: big.NewInt(1)})}
}

// tokensOf runs an indexer with these contracts until it has read the chains, and returns the tokens.
func tokensOf(t *testing.T, idx index.Index, zkgm map[string]string, a, b *side) []string {
	t.Helper()
	chains := chainsOf(a, b)
	chains[1].Minter = wasmMinter
	x, err := indexer.New(indexer.Options{Index: idx, Chains: chains, Zkgm: zkgm, PollInterval: 5 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	stop := run(t, x)
	eventually(t, "the newest blocks are indexed", func() bool {
		return x.Status()[0].Indexed == a.Head(t) && lastHash(t, idx, a) == a.Hash(t) &&
			x.Status()[1].Indexed == b.Head(t)
	})
	stop()
	return rowsOf(t, idx, index.TokenType)
}

// TestWrappedTokens creates wrapped tokens on an EVM chain and on a CosmWasm chain, and limits some tokens. One is known
// already, with what only a registry tells. One is of an unknown channel, one is of another contract, and one is undone.
func TestWrappedTokens(t *testing.T) {
	t.Parallel()
	a, b := newMixedWorld(t)
	quote, known, native := common.Address{19: 7}, common.Address{19: 8}, common.Address{19: 11}
	base, wasmToken := []byte("ubbn"), "union1qyqszqgpqyqszqgpqyqszqgpqyqszqgpjnp7du"
	a.emit(t,
		createWrappedToken(a.channel(), base, quote, tokenMetadata(t, "Babylon", "BABY", 6)),
		createWrappedToken(a.channel(), base, known, nil),
		createWrappedToken(77, base, common.Address{19: 9}, nil), bucket(quote, 5), bucket(quote, 7), bucket(native, 9))
	created := func(contract, token string) comettest.Event {
		e := comettest.NewEvent("create_wrapped_token", "path", "0", "channel_id", text(b.channel()), "base_token",
			hexText(maker[:]), "quote_token", hexText([]byte(token)), "metadata", "0x", "kind", "0")
		e.Contract = contract
		return e
	}
	const denom = "20 bytes, as on EVMs" // as many as an EVM address has
	limited := comettest.NewEvent("token_bucket_update", "denom", denom, "capacity", "1000", "refill_rate",
		"10")
	limited.Contract = wasmPort
	b.comet.Emit(t, limited, created(wasmMinter, wasmToken), created("", "of the core contract"),
		created("union1vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv", "of another contract"))

	idx := openIndex(t)
	registered := index.Token{UniversalChainID: a.id, Denom: hexText(known[:]), Rank: new(int32(3)), Whitelist: new(true),
		Representations: []index.TokenRepresentation{{UniversalChainID: a.id, Symbol: new("K")}}}
	if _, err := idx.Write(t.Context(), index.Batch{Rows: []index.Row{rowOf(t, registered)}}); err != nil {
		t.Fatal(err)
	}
	token := func(s *side, denom, native string, base []byte) index.Token {
		return index.Token{UniversalChainID: s.id, Denom: denom, NativeDenom: &native,
			Wrapping: []index.TokenWrapping{{Index: new(int32(0)), UnwrappedUniversalChainID: s.other.id,
				UnwrappedDenom: new(hexText(base)), WrappedUniversalChainID: s.id, WrappedDenom: &denom,
				DestinationChannelID: new(int32(s.channel()))}}}
	}
	first := token(a, hexText(quote[:]), hexText(quote[:]), base)
	first.Representations = []index.TokenRepresentation{{UniversalChainID: a.id, Denom: new(hexText(quote[:])),
		Name: new("Babylon"), Symbol: new("BABY"), Decimals: new(int32(6))}}
	limit := func(s *side, denom string, capacity, rate string) *index.TokenBucket {
		return &index.TokenBucket{UniversalChainID: s.id, Denom: &denom, Capacity: &capacity, RefillRate: &rate}
	}
	first.Bucket = limit(a, first.Denom, "7", "1")
	second := token(a, hexText(known[:]), hexText(known[:]), base)
	second.Rank, second.Whitelist, second.Representations = registered.Rank, registered.Whitelist,
		registered.Representations
	third := token(b, hexText([]byte(wasmToken)), wasmToken, maker[:])
	line := func(token index.Token) string { return string(new(rowOf(t, token)).AppendLine(nil)) }
	fourth := index.Token{UniversalChainID: a.id, Denom: hexText(native[:]), NativeDenom: new(hexText(native[:])),
		Bucket: limit(a, hexText(native[:]), "9", "1")}
	fifth := index.Token{UniversalChainID: b.id, Denom: hexText([]byte(denom)), NativeDenom: new(denom),
		Bucket: limit(b, hexText([]byte(denom)), "1000", "10")}
	want := []string{line(first), line(second), line(third), line(fourth), line(fifth)}
	zkgm := map[string]string{a.id: core.String(), b.id: wasmPort}
	sameRows(t, tokensOf(t, idx, zkgm, a, b), want)

	a.emit(t, createWrappedToken(a.channel(), base, common.Address{19: 10}, nil))
	if got := tokensOf(t, idx, zkgm, a, b); len(got) != len(want)+1 {
		t.Errorf("%d tokens, not %d", len(got), len(want)+1)
	}
	a.Reorganise(t, 1)
	sameRows(t, tokensOf(t, idx, zkgm, a, b), want)

	// The core contract of an EVM chain makes no tokens.
	sameRows(t, tokensOf(t, openIndex(t), map[string]string{a.id: port.String(), b.id: wasmPort}, a, b),
		[]string{line(third), line(fifth)})
}
