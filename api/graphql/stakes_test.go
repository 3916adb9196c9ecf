package graphql_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/api/graphql"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/dataset"
	"github.com/attestd/attestd/store/replica"
)

// madeUp returns a replica of generated data, which includes stakes.
func madeUp(t testing.TB) *replica.Store {
	t.Helper()
	now := time.Date(2026, 5, 20, 12, 0, 0, 0, time.UTC)
	r, err := replica.Open(filepath.Join(t.TempDir(), "replica.db"), replica.Options{Now: func() time.Time {
		return now
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	o := dataset.GenerateOptions{Transfers: 2000, Seed: 2, Now: now, Chains: 3}
	err = dataset.Generate(t.Context(), o, func(rows []index.Row) error {
		_, err := r.Write(t.Context(), index.Batch{Rows: rows})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

var stakeRoots = []string{"v2_instructions", "v2_bonds", "v2_unbonds", "v2_withdraws", "v2_dust_withdraws"}

// Stakes are rows like others: their answers equal graph-gophers' own byte for byte.
func TestStakesEqualGophers(t *testing.T) {
	r := madeUp(t)
	e := newEndpoint(t,
		graphql.Options{Index: r, Limits: graphql.Limits{MaxCost: 1 << 29, MaxAliases: 1000, MaxTokens: 50000}})
	oracle, err := graphql.NewOracle(e, r)
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for seed := range 120 {
		g := generator{r: rand.New(rand.NewPCG(uint64(seed), 3)), schema: loadedSchema(t), roots: stakeRoots}
		query, variables := g.query()
		query = strings.ReplaceAll(query, "p_sort_order", "p_packet_hash: null, p_sort_order")
		got, want := e.Execute(query, variables), oracle.Execute(query, variables)
		if got != want {
			t.Fatalf("seed %d\n%s\n%s\nrows:\n%s\ngraph-gophers:\n%s", seed, query, variables, got, want)
		}
		rows += strings.Count(got, "v2_bond_type") + strings.Count(got, "v2_withdraw_type")
	}
	if rows < 100 {
		t.Errorf("only %d rows were compared", rows)
	}
}

// A bond contains the data of both its packets: the tokens that its own packet brings to the hub, and the tokens that
// the delivery packet takes there and brings back.
func TestBondIsOfItsTwoPackets(t *testing.T) {
	s := newServer(t, graphql.Options{Index: madeUp(t)})
	var got struct {
		Bonds []struct {
			Hash    string  `json:"packet_hash"`
			Tx      string  `json:"bond_recv_transaction_hash"`
			Deliver *string `json:"delivery_packet_hash"`
			Done    *bool   `json:"delivery_success"`
			Source  string  `json:"source_universal_chain_id"`
			Remote  string  `json:"remote_universal_chain_id"`
			To      string  `json:"destination_universal_chain_id"`
			Base    symbols `json:"base_token_meta"`
			Minted  symbols `json:"remote_quote_token_meta"`
			Arrived symbols `json:"quote_token_meta"`
			Staked  symbols `json:"remote_base_token_meta"`
		} `json:"v2_bonds"`
	}
	meta := "{ universal_chain_id representations { symbol } }"
	data := s.post(t, `{ v2_bonds { packet_hash bond_recv_transaction_hash delivery_packet_hash delivery_success source_universal_chain_id
		remote_universal_chain_id destination_universal_chain_id base_token_meta `+meta+` remote_base_token_meta `+meta+`
		remote_quote_token_meta `+meta+` quote_token_meta `+meta+` } }`, "").data(t)
	if err := json.Unmarshal([]byte(data), &got); err != nil {
		t.Fatal(err)
	}
	delivered := 0
	for _, b := range got.Bonds {
		if b.Source != "ethereum.1" || b.Remote != "union.union-1" || b.To != "ethereum.1" {
			t.Errorf("from %s by %s to %s", b.Source, b.Remote, b.To)
		}
		for what, is := range map[string]symbols{"U ethereum.1": b.Base, "U union.union-1": b.Staked,
			"eU union.union-1": b.Minted, "eU ethereum.1": b.Arrived} {
			if len(is.Representations) != 1 || is.Representations[0].Symbol+" "+is.Chain != what {
				t.Errorf("%+v, want %s", is, what)
			}
		}
		if b.Deliver == nil {
			continue
		}
		delivered++
		sent := s.post(t, fmt.Sprintf(`{ v2_packets(args: {p_transaction_hash: %q}) { packet_hash } }`, b.Tx),
			"").data(t)
		if !strings.Contains(sent, *b.Deliver) {
			t.Errorf("the delivery %s is not of the transaction that received the bond: %s", *b.Deliver, sent)
		}
	}
	if delivered == 0 {
		t.Error("no bond is delivered")
	}
}

type symbols struct {
	Chain           string `json:"universal_chain_id"`
	Representations []struct{ Symbol string }
}

func TestTransferRequestDetails(t *testing.T) {
	s := newServer(t, graphql.Options{Index: madeUp(t)})
	ask := func(source, destination, token string) string {
		return s.post(t, `query ($s: String, $d: String, $b: String) { v2_util_get_transfer_request_details(args: {p_source_universal_chain_id: $s,
			p_destination_universal_chain_id: $d, p_base_token: $b}) { quote_token already_exists wrap_direction source_channel_id destination_channel_id } }`,
			fmt.Sprintf(`{"s": %q, "d": %q, "b": %q}`, source, destination, token)).data(t)
	}
	var wrapped struct {
		Rows []struct {
			Quote    string `json:"quote_token"`
			Exists   bool   `json:"already_exists"`
			From, To int
		} `json:"v2_util_get_transfer_request_details"`
	}
	there := ask("union.union-1", "ethereum.1", "0x6175")
	if err := json.Unmarshal([]byte(there), &wrapped); err != nil || len(wrapped.Rows) != 1 ||
		!wrapped.Rows[0].Exists || !strings.Contains(there, `"wrapping"`) {
		t.Fatalf("%s, %v", there, err)
	}
	if back := ask("ethereum.1", "union.union-1", wrapped.Rows[0].Quote); !strings.Contains(back,
		`"quote_token":"0x6175","already_exists":true,"wrap_direction":"unwrapping"`) {
		t.Errorf("back: %s", back)
	}
	if new := ask("union.union-1", "ethereum.1", "0xdead"); !strings.Contains(new,
		`"quote_token":null,"already_exists":false,"wrap_direction":"wrapping"`) {
		t.Errorf("a token that is not there: %s", new)
	}
	if none := ask("union.union-1", "nowhere.1", "0x6175"); none != `{"v2_util_get_transfer_request_details":[]}` {
		t.Errorf("no way: %s", none)
	}
	if got := s.post(t, `{ v2_util_get_transfer_request_details { quote_token } }`,
		"").code(t); got != "invalid_field" {
		t.Errorf("without arguments: %s", got)
	}
}

func TestAddressTypesForDisplayAddress(t *testing.T) {
	s := newServer(t, graphql.Options{})
	zero := "0x" + strings.Repeat("0", 40)
	for _, tt := range []struct{ display, kind, want string }{
		{"union1d03cn520attx29qugxh4wcyqm9r747j64ahcj3",
			"null", `[{"canonical":"0x6be389d14fead665141c41af576080d947eafa5a",` +
				`"display":"union1d03cn520attx29qugxh4wcyqm9r747j64ahcj3","zkgm":"0x756e696f6e31643033636e353230617474783239717567786834776379716d39723734376a36346168636a33"}]`},
		{"0x5aaeb6053f3e94c9b9a09f33669435e7ef1beaed", `"evm"`,
			`[{"canonical":"0x5aaeb6053f3e94c9b9a09f33669435e7ef1beaed","display":"0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed","zkgm":"0x5aaeb6053f3e94c9b9a09f33669435e7ef1beaed"}]`},
		{"0x5aaeb6053f3e94c9b9a09f33669435e7ef1beaed", `"cosmos"`, `[]`},
		{"union1d03cn520attx29qugxh4wcyqm9r747j64ahcj4", "null", `[]`},
		{"UNION1D03CN520ATTX29QUGXH4WCYQM9R747J64AHCJ3", `"cosmos"`,
			`[{"canonical":"0x6be389d14fead665141c41af576080d947eafa5a",` +
				`"display":"union1d03cn520attx29qugxh4wcyqm9r747j64ahcj3","zkgm":"0x756e696f6e31643033636e353230617474783239717567786834776379716d39723734376a36346168636a33"}]`},
		{"0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed", "null",
			`[{"canonical":"0x5aaeb6053f3e94c9b9a09f33669435e7ef1beaed","display":"0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed","zkgm":"0x5aaeb6053f3e94c9b9a09f33669435e7ef1beaed"}]`},
		{"0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAeD", "null", `[]`},
		{"0x5aaeb6053f3e94c9b9a09f33669435e7ef1bea", "null", `[]`},
		{zero, "null", fmt.Sprintf(`[{"canonical":%[1]q,"display":%[1]q,"zkgm":%[1]q}]`, zero)},
		{"twenty bytes of text", "null", `[]`},
	} {
		got := s.post(t,
			fmt.Sprintf(
				`{ v2_util_get_address_types_for_display_address(args: {p_display_address: %q, p_chain_type: %s}) { canonical display zkgm } }`, tt.display, tt.kind), "").data(t)
		if got != `{"v2_util_get_address_types_for_display_address":`+tt.want+"}" {
			t.Errorf("%s: %s", tt.display, got)
		}
	}
}
