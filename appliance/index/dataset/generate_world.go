package dataset

import (
	"encoding/binary"
	"math/big"
	"strconv"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"

	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/zkgm"
)

// chain is a generated chain.
type chain struct {
	id, family, chainID, name string
	prefix                    string // of bech32 addresses; empty for an EVM
	testnet                   bool
	number                    int32
	port                      string
	blockTime                 time.Duration
	finality                  float64 // seconds until a light client elsewhere can be updated
	weight                    float64

	tokens  []*token
	byDenom map[string]*token
	seen    map[string]account // by zkgm form
	drawn   map[int]account
}

// token is a token on one chain, with its home chain.
type token struct {
	denom        []byte
	symbol, name string
	decimals     int32
	home         *chain
	origin       *token // the token that it wraps; nil at home
	route        *route // from home to here, for a wrapped one
}

// path returns the path by which a wrapped token arrived.
func (t *token) path() *big.Int {
	if t.route == nil {
		return new(big.Int)
	}
	return big.NewInt(int64(t.route.back.channel))
}

// route is a channel in one direction.
type route struct {
	from, to                    *chain
	back                        *route
	client, connection, channel int32
	hop                         *chain // between them if the clients are state lenses
	weight                      float64
}

func (r *route) via() []*chain {
	if r.hop == nil {
		return nil
	}
	return []*chain{r.hop}
}

// quote returns the denom of a token at the other end.
func (r *route) quote(t *token) []byte {
	if t.home == r.to {
		return t.origin.denom
	}
	for _, wrapped := range r.to.tokens {
		if wrapped.origin == t && wrapped.route == r {
			return wrapped.denom
		}
	}
	return wrappedDenom(r, t)
}

// wrappedDenom derives the denom from the route and the token, as the protocol does.
func wrappedDenom(r *route, t *token) []byte {
	hash := crypto.Keccak256([]byte(r.from.id), binary.BigEndian.AppendUint32(nil, uint32(r.back.channel)), t.denom)
	if r.to.prefix != "" {
		return []byte(bech32Text(r.to.prefix, hash))
	}
	return hash[12:]
}

type account struct {
	canonical, zkgm []byte
	display         string
}

var chainTable = []struct {
	family, chainID, name, prefix string
	testnet                       bool
	blockTime                     time.Duration
	finality, weight              float64
	tokens                        string // denom:symbol:name:decimals, the native one first
}{
	{"union", "union-1", "Union", "union", false, 6 * time.Second, 6, 10, "au:U:Union:18"},
	{"ethereum", "1", "Ethereum", "", false, 12 * time.Second, 900, 8,
		"eeee:ETH:Ether:18 usdc:USDC:USD Coin:6 usdt:USDT:Tether USD:6 wbtc:WBTC:Wrapped BTC:8 uu:eU:Escher Union:18"},
	{"babylon", "bbn-1", "Babylon", "bbn", false, 10 * time.Second, 10, 9,
		"ubbn:BABY:Babylon:6 ebaby:eBABY:Escher Babylon:6"},
	{"osmosis", "osmosis-1", "Osmosis", "osmo", false, 2 * time.Second, 5, 4, "uosmo:OSMO:Osmosis:6 ion:ION:Ion:6"},
	{"xion", "xion-mainnet-1", "XION", "xion", false, 6 * time.Second, 6, 2, "uxion:XION:XION:6"},
	{"bsc", "56", "BNB Smart Chain", "", false, 3 * time.Second, 20, 5, "eeee:BNB:BNB:18 usdt:USDT:Tether USD:18"},
	{"base", "8453", "Base", "", false, 2 * time.Second, 1000, 3, "eeee:ETH:Ether:18 usdc:USDC:USD Coin:6"},
	{"bob", "60808", "BOB", "", false, 2 * time.Second, 1000, 1, "eeee:ETH:Ether:18"},
	{"union", "union-testnet-10", "Union Testnet 10", "union", true, 6 * time.Second, 6, 2, "muno:UNO:Union Testnet:6"},
	{"ethereum", "11155111", "Sepolia", "", true, 12 * time.Second, 900, 2,
		"eeee:ETH:Sepolia Ether:18 link:LINK:ChainLink Token:18"},
	{"ethereum", "17000", "Holesky", "", true, 12 * time.Second, 900, 1, "eeee:ETH:Holesky Ether:18"},
	{"babylon", "bbn-test-6", "Babylon Testnet", "bbn", true, 10 * time.Second, 10, 2, "ubbn:tBABY:Babylon Testnet:6"},
	{"osmosis", "osmo-test-5", "Osmosis Testnet", "osmo", true, 3 * time.Second, 5, 0.5,
		"uosmo:OSMO:Osmosis Testnet:6"},
	{"xion", "xion-testnet-2", "XION Testnet 2", "xion", true, 6 * time.Second, 6, 1, "uxion:XION:XION Testnet:6"},
}

// world generates this many chains, the channels between the chains of a network, and tokens.
func (g *generator) world(chains int) {
	for i, row := range chainTable[:chains] {
		c := &chain{
			id: row.family + "." + row.chainID, family: row.family, chainID: row.chainID, name: row.name,
			prefix: row.prefix, testnet: row.testnet,
			number: int32(i + 1), blockTime: row.blockTime, finality: row.finality, weight: row.weight,
			byDenom: make(map[string]*token), seen: make(map[string]account), drawn: make(map[int]account),
		}
		c.port = hexText(c.contract("ucs03"))
		g.homeTokens(c, row.tokens)
		g.chains = append(g.chains, c)
	}
	g.connect()
	g.wrapTokens()
	g.addChains()
	rank := int32(0)
	for _, c := range g.chains {
		for _, t := range c.tokens {
			rank++
			g.add(tokenRow(c, t, rank))
		}
	}
	g.addChannels()
}

// homeTokens parses a row's tokens. Names may have spaces, so a token ends where the next "denom:" begins.
func (g *generator) homeTokens(c *chain, text string) {
	fields := strings.Split(text, ":")
	denom := fields[0]
	for i := 1; i+2 < len(fields); i += 3 {
		decimals, next, _ := strings.Cut(fields[i+2], " ")
		n, err := strconv.Atoi(decimals)
		if err != nil {
			panic(err) // a constant above is invalid
		}
		t := &token{symbol: fields[i], name: fields[i+1], decimals: int32(n), home: c}
		switch {
		case c.prefix != "":
			t.denom = []byte(denom)
		case denom == "eeee":
			t.denom = common.FromHex("0xeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee")
		default:
			t.denom = c.contract(denom)
		}
		c.tokens = append(c.tokens, t)
		c.byDenom[string(t.denom)] = t
		denom = next
	}
}

// connect creates a channel between every two chains of a network: directly with union, through state lenses over union
// otherwise.
func (g *generator) connect() {
	next := make(map[*chain]int32)
	for _, hub := range g.chains {
		if hub.family != "union" {
			continue
		}
		var members []*chain
		for _, c := range g.chains {
			if c.testnet == hub.testnet {
				members = append(members, c)
			}
		}
		for i, a := range members {
			for _, b := range members[i+1:] {
				there, back := &route{from: a, to: b}, &route{from: b, to: a}
				there.back, back.back = back, there
				for _, r := range []*route{there, back} {
					next[r.from]++
					n := next[r.from]
					r.client, r.connection, r.channel = n, n+1, n+2
					r.weight = a.weight * b.weight
					if a != hub && b != hub {
						r.hop = hub
						r.weight /= 4
					}
					g.routes = append(g.routes, r)
					g.weight += r.weight
				}
			}
		}
	}
}

// wrapTokens registers the native tokens of each chain at the other ends of its channels.
func (g *generator) wrapTokens() {
	for _, r := range g.routes {
		for _, t := range r.from.tokens {
			if t.home != r.from {
				continue
			}
			w := &token{denom: wrappedDenom(r, t), symbol: t.symbol, name: t.name, decimals: t.decimals, home: r.from,
				origin: t, route: r}
			r.to.tokens = append(r.to.tokens, w)
			r.to.byDenom[string(w.denom)] = w
		}
	}
}

func (g *generator) route() *route {
	at := g.rng.Float64() * g.weight
	for _, r := range g.routes {
		if at -= r.weight; at < 0 {
			return r
		}
	}
	return g.routes[0]
}

func (g *generator) token(c *chain) *token { return c.tokens[g.zipf(len(c.tokens))] }

// account draws an account of a chain, a few of them far more often than the others.
func (g *generator) account(c *chain) account {
	n := g.zipf(g.accounts)
	if a, ok := c.drawn[n]; ok {
		return a
	}
	a := c.accountOf(crypto.Keccak256([]byte(c.prefix), binary.BigEndian.AppendUint64(nil, uint64(n)))[:20])
	if n < 1<<14 { // cache the frequent ones
		c.drawn[n] = a
		c.seen[string(a.zkgm)] = a
	}
	return a
}

func (c *chain) accountOf(canonical []byte) account {
	if c.prefix == "" {
		return account{canonical: canonical, zkgm: canonical, display: common.BytesToAddress(canonical).Hex()}
	}
	display := bech32Text(c.prefix, canonical)
	return account{canonical: canonical, zkgm: []byte(display), display: display}
}

// known returns the account with this zkgm form.
func (c *chain) known(zkgm []byte) account {
	if a, ok := c.seen[string(zkgm)]; ok {
		return a
	}
	if c.prefix == "" {
		return c.accountOf(zkgm)
	}
	return account{canonical: bech32Bytes(string(zkgm)), zkgm: zkgm, display: string(zkgm)}
}

func (c *chain) contract(name string) []byte {
	return crypto.Keccak256([]byte(c.family), []byte(c.chainID), []byte(name))[12:]
}

// relayer returns the account that relays packets on a chain.
func relayer(c *chain) []byte { return c.contract("relayer") }

var genesis = time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)

func (c *chain) height(at time.Time) int64 { return 1_000_000 + int64(at.Sub(genesis)/c.blockTime) }

func (c *chain) blockHash(height int64) string {
	var b [32]byte
	x := uint64(height)*0x9e3779b97f4a7c15 + uint64(c.number)
	for i := 0; i < len(b); i += 8 { // splitmix64
		x += 0x9e3779b97f4a7c15
		z := x
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		binary.BigEndian.PutUint64(b[i:], z^z>>31)
	}
	return hexText(b[:])
}

func difference(a, b string) string {
	x, _ := new(big.Int).SetString(a, 10)
	y, _ := new(big.Int).SetString(b, 10)
	return x.Sub(x, y).String()
}

func (g *generator) chainRow(c *chain) index.Chain {
	explorer := "https://explorer.example/" + c.id
	environment, edition := "production", "app"
	if c.testnet {
		environment, edition = "staging", "btc"
	}
	feature := strings.ToUpper(environment) // upper case as in the hosted API, unlike editions
	family := index.ChainFamily{Name: new("cosmos"), IBCInterface: new("ibc-cosmwasm")}
	rpcType := "cosmos"
	if c.prefix == "" {
		family, rpcType = index.ChainFamily{Name: new("evm"), IBCInterface: new("ibc-solidity")}, "evm"
	}
	prefix := c.prefix
	if prefix == "" {
		prefix = "0x"
	}
	age := g.rng.IntN(20)
	at := g.now.Add(-time.Duration(age) * time.Second)
	return index.Chain{
		UniversalChainID: c.id, ChainID: new(c.chainID), DisplayName: new(c.name), Testnet: new(c.testnet),
		RPCType:    new(rpcType),
		AddrPrefix: new(prefix), LogoURI: new("https://assets.example/chains/" + c.family + ".svg"),
		MinterAddressDisplay: new(c.accountOf(c.contract("minter")).display),
		Status: index.ChainStatus{Height: new(strconv.FormatInt(c.height(at), 10)), Status: new("ok"),
			Timestamp: new(at), TipAgeSeconds: new(int32(age))},
		Family:   family,
		Editions: []index.ChainEdition{{Name: new(edition), Environment: new(environment)}},
		Explorers: []index.ChainExplorer{{
			Name: new("example"), DisplayName: new("Example Explorer"),
			Description: new("Blocks, transactions and accounts of " + c.name),
			BlockURL:    new(explorer + "/block/"), TxURL: new(explorer + "/tx/"),
			AddressURL: new(explorer + "/address/"),
			HomeURL:    new(explorer),
			LogoURI:    new("https://assets.example/explorer.svg"),
		}},
		Features: []index.ChainFeatures{{
			Environment: new(feature), PacketList: new(true), TransferList: new(true), ConnectionList: new(true),
			ChannelList: new(true),
			IndexStatus: new(true), TransferSubmission: new(true),
		}},
		RPCs: []index.ChainRPC{{URL: new("https://rpc." + strings.ReplaceAll(c.id, ".", "-") + ".example"),
			Type: new("rpc"), Description: new("public"), Contact: new("ops@example.com")}},
	}
}

func tokenRow(c *chain, t *token, rank int32) index.Token {
	denom := hexText(t.denom)
	row := index.Token{
		UniversalChainID: c.id, Denom: denom, Rank: new(rank), Whitelist: new(t.origin == nil),
		Representations: []index.TokenRepresentation{{
			UniversalChainID: c.id, Denom: new(denom), Symbol: new(t.symbol), Name: new(t.name),
			Decimals: new(t.decimals),
			LogoURI:  new("https://assets.example/tokens/" + strings.ToLower(t.symbol) + ".svg"),
			Sources: []index.TokenSource{{
				UniversalChainID: t.home.id, Denom: new(denom), Symbol: new(t.symbol), Name: new(t.name),
				Decimals:        new(t.decimals),
				UpdateTimestamp: new(genesis), Source: index.TokenOrigin{Name: new("curated"), SourceURI: new(
					"https://assets.example/tokens.json"), LogoURI: new("https://assets.example/curated.svg")},
			}},
		}},
	}
	if c.prefix != "" {
		row.NativeDenom = new(string(t.denom))
	}
	if t.origin != nil {
		row.Wrapping = []index.TokenWrapping{{
			Index: new(int32(0)), UnwrappedUniversalChainID: t.home.id, UnwrappedDenom: new(hexText(t.origin.denom)),
			WrappedUniversalChainID: c.id, WrappedDenom: new(denom), DestinationChannelID: new(t.route.back.channel),
			Wrapper: new(c.port),
		}}
	} else {
		row.Bucket = &index.TokenBucket{UniversalChainID: c.id, Denom: new(denom), Capacity: new("1000000000000"),
			RefillRate: new("11574074")}
	}
	return row
}

func (g *generator) addChains() {
	for _, c := range g.chains {
		g.add(g.chainRow(c))
	}
}

// routeOrder is the sort_order of a route's client, connection and channel.
func routeOrder(i int) string {
	return sortOrder(genesis.Add(time.Duration(i)*time.Hour), uint32(i), 0)
}

// clientRow returns the client of a route with its last update at that time.
func (g *generator) clientRow(i int, updated time.Time) index.Client {
	r := g.routes[i]
	height := r.from.height(updated)
	return index.Client{
		SortOrder: routeOrder(i), UniversalChainID: r.from.id, ClientID: r.client,
		CounterpartyUniversalChainID: r.to.id,
		Status: &index.ClientStatus{
			BlockHash: new(r.from.blockHash(height)), Height: new(strconv.FormatInt(height, 10)),
			TransactionHash:    new(g.hash()),
			CounterpartyHeight: new(strconv.FormatInt(r.to.height(updated), 10)), Timestamp: new(updated),
		},
	}
}

// addChannels adds the clients, connections and channels of the routes.
func (g *generator) addChannels() {
	for i, r := range g.routes {
		order := routeOrder(i)
		g.add(g.clientRow(i, g.now.Add(-time.Duration(g.rng.IntN(600))*time.Second)))
		g.add(index.Connection{
			SortOrder: order, SourceUniversalChainID: r.from.id, SourceConnectionID: r.connection,
			SourceClientID:       new(r.client),
			DestUniversalChainID: r.to.id, DestinationConnectionID: new(r.back.connection),
			DestinationClientID: new(r.back.client),
		})
		channel := index.Channel{
			SortOrder: order, SourceUniversalChainID: r.from.id, SourceChannelID: r.channel,
			SourceClientID:     new(r.client),
			SourceConnectionID: new(r.connection), SourcePortID: new(r.from.port), DestUniversalChainID: r.to.id,
			DestinationChannelID: new(r.back.channel), DestinationClientID: new(r.back.client),
			DestinationConnectionID: new(r.back.connection),
			DestinationPortID:       new(r.to.port), Version: new(zkgm.ChannelVersion), Recommended: new(r.hop == nil),
			Tags: []string{"canonical"},
			Fees: []index.ChannelFee{{Action: new("PACKET_RECV"), Fee: new("220000")},
				{Action: new("PACKET_SEND_LC_UPDATE_L0"), Fee: new("300000")}},
		}
		if r.hop != nil {
			channel.Tags = []string{"canonical", "tokenorder-v2"}
			channel.SLA = new("01:30:00")
		}
		g.add(channel)
	}
}
