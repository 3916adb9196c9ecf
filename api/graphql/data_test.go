package graphql_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/store/replica"
)

// The test data is a small replica with every type of record, values that need escapes, and nulls in all nullable
// fields.

var today = time.Date(2025, 6, 15, 12, 0, 0, 0, time.UTC)

const numTransfers = 250

func ptr[T any](v T) *T { return &v }

// maybe is null one time in four.
func maybe[T any](r *rand.Rand, v T) *T {
	if r.IntN(4) == 0 {
		return nil
	}
	return &v
}

var chainIDs = []string{"union.union-1", "ethereum.1", "babylon.bbn-1", "union.union-testnet-10", "ethereum.11155111"}

// odd lists texts that JSON has to escape.
var odd = []string{"plain", `quote " back \ slash`, "<script>&amp;</script>", "tab\tnew\nline\u2028", "ünï-cøde 🪙",
	"\u0001\u007f", ""}

// openReplica returns the replica with the test data. Tests must not change it.
func openReplica(t testing.TB) *replica.Store {
	t.Helper()
	replica, err := sharedReplica()
	if err != nil {
		t.Fatal(err)
	}
	return replica
}

var replicaDir = filepath.Join(os.TempDir(), fmt.Sprintf("attestd-graphql-%d", os.Getpid()))

func TestMain(m *testing.M) {
	code := m.Run()
	os.RemoveAll(replicaDir)
	os.Exit(code)
}

var sharedReplica = sync.OnceValues(func() (*replica.Store, error) {
	if err := os.MkdirAll(replicaDir, 0o700); err != nil {
		return nil, err
	}
	replica, err := replica.Open(filepath.Join(replicaDir, "replica.db"), replica.Options{Now: func() time.Time {
		return today
	}})
	if err != nil {
		return nil, err
	}
	var rows []index.Row
	for _, record := range records() {
		row, err := index.NewRow(record)
		if err != nil {
			return nil, fmt.Errorf("%+v: %w", record, err)
		}
		rows = append(rows, row)
	}
	proofs := make(map[string]string) // of every third packet
	for i, row := range rows {
		if row.Type() == index.PacketType && i%3 == 0 {
			proofs[index.ProofPosition(row.Key())] = fmt.Sprintf(`{"block":{"number":%d},"accountProof":["0x12"]}`, i)
		}
	}
	_, err = replica.Write(context.Background(), index.Batch{Rows: rows, Positions: proofs})
	return replica, err
})

func records() []any {
	r := rand.New(rand.NewPCG(1, 2))
	var all []any
	for i, id := range chainIDs {
		all = append(all, chain(r, i, id))
	}
	for i := range 20 {
		all = append(all, token(r, i))
	}
	for i := range 12 {
		all = append(all, channel(r, i), connection(r, i), client(r, i))
	}
	for i := range numTransfers {
		p := packet(r, i)
		all = append(all, p, transfer(r, i, p))
	}
	return all
}

func chain(r *rand.Rand, i int, id string) index.Chain {
	c := index.Chain{
		UniversalChainID: id, ChainID: maybe(r, fmt.Sprintf("chain-%d", i)), DisplayName: ptr(odd[i]),
		Testnet: ptr(i >= 3),
		RPCType: maybe(r, "evm"), AddrPrefix: maybe(r, "union"), LogoURI: maybe(r, "https://logo.invalid/?a=1&b=2"),
		Status: index.ChainStatus{Height: ptr(fmt.Sprint(1000 + i)),
			Timestamp: ptr(today.Add(-time.Duration(i) * time.Minute)), TipAgeSeconds: ptr(int32(i))},
		Family: index.ChainFamily{Name: maybe(r, "ethereum")},
	}
	for j := range i {
		env := []string{"PRODUCTION", "STAGING"}[j%2]
		c.Features = append(c.Features,
			index.ChainFeatures{Environment: &env, PacketList: maybe(r, true), TransferList: ptr(j%2 == 0)})
		c.Editions = append(c.Editions, index.ChainEdition{Name: ptr("app"), Environment: &env})
		c.Explorers = append(c.Explorers,
			index.ChainExplorer{Name: ptr(odd[j]), TxURL: maybe(r, "https://x.invalid/tx/")})
		c.RPCs = append(c.RPCs, index.ChainRPC{URL: ptr("https://rpc.invalid"), Type: maybe(r, "rpc")})
	}
	return c
}

func token(r *rand.Rand, i int) index.Token {
	t := index.Token{
		UniversalChainID: chainIDs[i%len(chainIDs)], Denom: fmt.Sprintf("0x%04x", i),
		NativeDenom: maybe(r, odd[i%len(odd)]),
		Rank:        maybe(r, int32(i/2)), Whitelist: maybe(r, true),
	}
	for j := range i % 3 {
		rep := index.TokenRepresentation{UniversalChainID: t.UniversalChainID, Denom: &t.Denom,
			Symbol: ptr("T" + odd[j]), Name: maybe(r, "token"), Decimals: maybe(r, int32(18))}
		for range j {
			rep.Sources = append(rep.Sources, index.TokenSource{UniversalChainID: "elsewhere.9", Symbol: ptr("S"),
				UpdateTimestamp: maybe(r, today.Add(123456789)),
				Source:          index.TokenOrigin{Name: ptr("list")}})
		}
		t.Representations = append(t.Representations, rep)
		t.Wrapping = append(t.Wrapping, index.TokenWrapping{Index: ptr(int32(j)),
			UnwrappedUniversalChainID: chainIDs[0], WrappedUniversalChainID: chainIDs[1],
			DestinationChannelID: maybe(r, int32(j)), Wrapper: maybe(r, "0xabcd")})
	}
	if i%4 == 0 {
		t.Bucket = &index.TokenBucket{UniversalChainID: t.UniversalChainID, Denom: &t.Denom, Capacity: ptr("1000")}
	}
	return t
}

func channel(r *rand.Rand, i int) index.Channel {
	c := index.Channel{
		SortOrder: fmt.Sprintf("%04d", i), SourceUniversalChainID: chainIDs[i%5], SourceChannelID: int32(i),
		DestUniversalChainID: chainIDs[(i+1)%5],
		DestinationChannelID: maybe(r, int32(i)), Version: ptr("ucs03-zkgm-0"), SLA: maybe(r, "00:30:00"),
		Recommended: maybe(r, true), SourceConnectionID: ptr(int32(i)),
	}
	if i%3 > 0 {
		c.Tags = []string{"recommended", odd[i%len(odd)]}
		c.Fees = []index.ChannelFee{{Action: ptr("transfer"), Fee: ptr("12")}}
	}
	return c
}

func connection(r *rand.Rand, i int) index.Connection {
	return index.Connection{SortOrder: fmt.Sprintf("%04d", i), SourceUniversalChainID: chainIDs[i%5],
		SourceConnectionID:   int32(i),
		DestUniversalChainID: chainIDs[(i+1)%5], SourceClientID: maybe(r, int32(i))}
}

func client(r *rand.Rand, i int) index.Client {
	c := index.Client{SortOrder: fmt.Sprintf("%04d", i), UniversalChainID: chainIDs[i%5], ClientID: int32(i),
		CounterpartyUniversalChainID: chainIDs[(i+1)%5]}
	if i%2 == 0 {
		c.Status = &index.ClientStatus{Height: ptr("7"), Timestamp: maybe(r, today)}
	}
	return c
}

func packet(r *rand.Rand, i int) index.Packet {
	sent := today.Add(-time.Duration(numTransfers-i) * 11 * time.Minute).Add(time.Duration(i%3) * 1000)
	p := index.Packet{
		SortOrder: sortOrder(i), PacketHash: hash("aa", i), Status: ptr("PACKET_RECV"),
		ChannelVersion:         ptr("ucs03-zkgm-0"),
		SourceUniversalChainID: chainIDs[i%5], DestUniversalChainID: chainIDs[(i+1)%5],
		SourceChannelID: ptr(int32(i % 12)),
		SendTimestamp:   &sent, SendHeight: ptr(fmt.Sprint(100 + i)), SendTransactionHash: ptr(hash("bb", i/2)),
		SendBlockHash:    ptr(hash("cc", i/2)),
		TimeoutTimestamp: ptr("18446744073709551615"), Data: ptr("0x0000000000000000" + fmt.Sprintf("%04x", i)),
		Success:   maybe(r, i%2 == 0),
		RecvMaker: maybe(r, odd[i%len(odd)]),
		Decoded:   json.RawMessage(`{"_index":"","_type":"TokenOrder","operand":{"name":"\u003c&"}}`),
		Traces: []index.Trace{
			{Type: index.TracePacketSend, UniversalChainID: chainIDs[i%5], TransactionHash: ptr(hash("bb", i/2)),
				Height: ptr(fmt.Sprint(100 + i)), Timestamp: &sent},
			{Type: index.TracePacketRecv, UniversalChainID: chainIDs[(i+1)%5],
				TransactionHash: maybe(r, hash("dd", i))},
			{Type: index.TraceWriteAck, UniversalChainID: chainIDs[(i+1)%5]},
			{Type: index.TracePacketAck, UniversalChainID: chainIDs[i%5]},
		},
	}
	if i%7 == 0 {
		p.Traces = nil
	}
	if i%2 == 0 {
		p.RecvTimestamp = ptr(sent.Add(time.Duration(i) * time.Second))
	}
	return p
}

func transfer(r *rand.Rand, i int, p index.Packet) index.Transfer {
	return index.Transfer{
		SortOrder: p.SortOrder, PacketHash: p.PacketHash, Status: p.Status,
		SourceUniversalChainID: p.SourceUniversalChainID, DestUniversalChainID: p.DestUniversalChainID,
		SenderCanonical: ptr(fmt.Sprintf("0x%040x", i%9)), ReceiverCanonical: maybe(r, fmt.Sprintf("0x%040x", i%7)),
		SenderDisplay: maybe(r, odd[i%len(odd)]),
		BaseToken:     ptr(fmt.Sprintf("0x%04x", i%5)), BaseAmount: ptr("340282366920938463463374607431768211456"),
		QuoteToken: maybe(r, fmt.Sprintf("0x%04x", i%20)), QuoteAmount: maybe(r, "1"),
		BaseTokenDecimals: maybe(r, int32(6)), SendTimestamp: p.SendTimestamp,
		SendTransactionHash: p.SendTransactionHash, RecvTimestamp: p.RecvTimestamp, Success: p.Success,
		FeeToken: maybe(r, "0x0001"), BaseTokenSymbol: maybe(r, odd[(i+1)%len(odd)]),
	}
}

func sortOrder(i int) string { return fmt.Sprintf("%012d-x", i) }

func hash(prefix string, i int) string { return fmt.Sprintf("0x%s%062x", prefix, i) }
