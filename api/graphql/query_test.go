package graphql_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/attestd/attestd/api/graphql"
)

func TestQueriesAnswer(t *testing.T) {
	s := newServer(t, graphql.Options{})
	last := numTransfers - 1
	for _, tt := range []struct{ name, query, variables, want string }{
		{"first page is the newest", `{ v2_transfers(args: {p_limit: 2}) { sort_order } }`, "",
			fmt.Sprintf(`{"v2_transfers":[{"sort_order":%q},{"sort_order":%q}]}`, sortOrder(last), sortOrder(last-1))},
		{"lt is the next page", fmt.Sprintf(`{ v2_transfers(args: {p_limit: 1, p_sort_order: %q, p_comparison: "lt"}) { sort_order } }`, sortOrder(5)), "",
			fmt.Sprintf(`{"v2_transfers":[{"sort_order":%q}]}`, sortOrder(4))},
		{"gt is the previous page, ascending", fmt.Sprintf(`{ v2_transfers(args: {p_limit: 2, p_sort_order: %q, p_comparison: "gt"}) { sort_order } }`, sortOrder(5)), "",
			fmt.Sprintf(`{"v2_transfers":[{"sort_order":%q},{"sort_order":%q}]}`, sortOrder(6), sortOrder(7))},
		{"the order of fields is the query's", `{ b: v2_packets(args: {p_limit: 1}) { timeout_timestamp __typename x: packet_send_height } a: __typename }`, "",
			fmt.Sprintf(`{"b":[{"timeout_timestamp":"18446744073709551615","__typename":"v2_packet_type","x":"%d"}],"a":"Query"}`, 100+last)},
		{"times are RFC 3339 in UTC", `{ v2_packets(args: {p_packet_hash: "` + hash("aa", 1) + `"}) { packet_send_timestamp traces { type timestamp transaction_hash chain { universal_chain_id } } } }`, "",
			`{"v2_packets":[{"packet_send_timestamp":"2025-06-13T14:21:00.000001Z","traces":[` +
				`{"type":"SEND_PACKET","timestamp":"2025-06-13T14:21:00.000001Z","transaction_hash":"` + hash("bb", 0) + `","chain":{"universal_chain_id":"ethereum.1"}},` +
				`{"type":"PACKET_RECV","timestamp":null,"transaction_hash":"` + hash("dd", 1) + `","chain":{"universal_chain_id":"babylon.bbn-1"}},` +
				`{"type":"WRITE_ACK","timestamp":null,"transaction_hash":null,"chain":{"universal_chain_id":"babylon.bbn-1"}},` +
				`{"type":"PACKET_ACK","timestamp":null,"transaction_hash":null,"chain":{"universal_chain_id":"ethereum.1"}}]}]}`},
		{"stats", `{ v2_stats_count { name value } }`, "",
			fmt.Sprintf(`{"v2_stats_count":[{"name":"total_transfers","value":"%d"},{"name":"total_packets","value":"%[1]d"}]}`, numTransfers)},
		{"v1_packets is v2_packets", `{ v1_packets(args: {p_limit: 1}) { packet_hash } }`, "", `{"v1_packets":[{"packet_hash":"` + hash("aa", last) + `"}]}`},
		{"where on nested lists filters", `{ v2_chains(args: {p_universal_chain_id: "babylon.bbn-1"}) { features(where: {environment: {_eq: "PRODUCTION"}}) { environment } all: features { environment } } }`, "",
			`{"v2_chains":[{"features":[{"environment":"PRODUCTION"}],"all":[{"environment":"PRODUCTION"},{"environment":"STAGING"}]}]}`},
		{"skip and include", `query($yes: Boolean!) { v2_stats_count { name @skip(if: $yes) value @include(if: $yes) ... @include(if: true) { n: name } } }`, `{"yes": true}`,
			fmt.Sprintf(`{"v2_stats_count":[{"value":"%d","n":"total_transfers"},{"value":"%[1]d","n":"total_packets"}]}`, numTransfers)},
		{"fragments merge", `{ v2_transfers(args: {p_limit: 1}) { ...A ...B source_chain { testnet } } } fragment A on v2_transfer_type { source_chain { universal_chain_id } transfer_index } fragment B on v2_transfer_type { ... on v2_transfer_type { source_chain { family { name } universal_chain_id } } }`, "",
			`{"v2_transfers":[{"source_chain":{"universal_chain_id":"ethereum.11155111","family":{"name":null},"testnet":true},"transfer_index":0}]}`},
		{"no arguments", `{ v2_connections { sort_order } }`, "", `{"v2_connections":[` + connectionOrders() + `]}`},
		{"whole args as a variable", `query($a: v2_transfers_args) { v2_transfers(args: $a) { sort_order } }`, `{"a": {"p_limit": 1}}`,
			fmt.Sprintf(`{"v2_transfers":[{"sort_order":%q}]}`, sortOrder(last))},
		{"a missing variable is as if not written", `query($n: Int, $h: String) { v2_transfers(args: {p_limit: $n, p_transaction_hash: $h, p_packet_hash: "` + hash("aa", 3) + `"}) { sort_order } }`, "",
			fmt.Sprintf(`{"v2_transfers":[{"sort_order":%q}]}`, sortOrder(3))},
		{"null is as if not written", `{ v2_transfers(args: {p_limit: 1, p_network: null, p_addresses_canonical: null, p_comparison: null}) { sort_order } }`, "",
			fmt.Sprintf(`{"v2_transfers":[{"sort_order":%q}]}`, sortOrder(last))},
		{"tokens by rank descending", `{ v2_tokens(args: {p_universal_chain_id: "union.union-1"}, order_by: {rank: desc_nulls_last}) { rank } }`, "",
			`{"v2_tokens":[{"rank":7},{"rank":5},{"rank":2},{"rank":0}]}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := s.post(t, tt.query, tt.variables).data(t); got != tt.want {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
}

func connectionOrders() string {
	var orders []string
	for i := 11; i >= 0; i-- {
		orders = append(orders, fmt.Sprintf(`{"sort_order":"%04d"}`, i))
	}
	return strings.Join(orders, ",")
}

// Clients write two arguments in more forms than one type allows.
func TestArgumentsAreTakenAsClientsWriteThem(t *testing.T) {
	s := newServer(t, graphql.Options{})
	page := `v2_transfers(args: {p_limit: 1, p_sort_order: "` + sortOrder(5) + `", p_comparison: %s}) { sort_order } }`
	newer := fmt.Sprintf(`{"v2_transfers":[{"sort_order":%q}]}`, sortOrder(6))
	older := fmt.Sprintf(`{"v2_transfers":[{"sort_order":%q}]}`, sortOrder(4))
	addresses := `v2_transfers(args: {p_limit: 1, p_addresses_canonical: %s}) { sender_canonical } }`
	sender := fmt.Sprintf("0x%040x", 8)
	found := fmt.Sprintf(`{"v2_transfers":[{"sender_canonical":%q}]}`, sender)
	for _, tt := range []struct{ query, variables, want string }{
		{"{" + fmt.Sprintf(page, `"gt"`), "", newer},
		{"{" + fmt.Sprintf(page, `gt`), "", newer},
		{"{" + fmt.Sprintf(page, `lt`), "", older},
		{"query($c: String) {" + fmt.Sprintf(page, `$c`), `{"c": "gt"}`, newer},
		{"query($c: String!) {" + fmt.Sprintf(page, `$c`), `{"c": "gt"}`, newer},
		{"query($c: ComparisonOp) {" + fmt.Sprintf(page, `$c`), `{"c": "gt"}`, newer},
		{"query($c: ComparisonOp!) {" + fmt.Sprintf(page, `$c`), `{"c": "gt"}`, newer},
		{"query($c: ComparisonOp! = gt) {" + fmt.Sprintf(page, `$c`), "", newer},
		{"query($c: ComparisonOp) {" + fmt.Sprintf(page, `$c`), "", older},
		{"query($c: ComparisonOp) { ...F } fragment F on Query {" + fmt.Sprintf(page, `$c`), `{"c": "gt"}`, newer},

		{"{" + fmt.Sprintf(addresses, `["`+sender+`"]`), "", found},
		{"{" + fmt.Sprintf(addresses, `"`+sender+`"`), "", found},
		{"query($a: jsonb) {" + fmt.Sprintf(addresses, `$a`), `{"a": ["` + sender + `"]}`, found},
		{"query($a: jsonb!) {" + fmt.Sprintf(addresses, `$a`), `{"a": ["` + sender + `"]}`, found},
		{"query($a: [String!]) {" + fmt.Sprintf(addresses, `$a`), `{"a": ["` + sender + `"]}`, found},
		{"query($a: [String]) {" + fmt.Sprintf(addresses, `$a`), `{"a": ["` + sender + `"]}`, found},
		{"query($a: [String!]!) {" + fmt.Sprintf(addresses, `$a`), `{"a": ["` + sender + `"]}`, found},
		{"query($a: String!) {" + fmt.Sprintf(addresses, `[$a]`), `{"a": "` + sender + `"}`, found},
		{"query($a: [String!]) {" + fmt.Sprintf(addresses, `$a`), `{"a": []}`, `{"v2_transfers":[]}`},
		{`{ v2_bonds(args: {p_addresses_canonical: []}) { packet_hash } }`, "", `{"v2_bonds":[]}`},
		{`{ v2_channels(args: {p_tags: []}) { sort_order } }`, "", `{"v2_channels":[]}`},
		{`{ v2_channels(args: {p_tags: ["none", "recommended"], p_limit: 1}) { sort_order } }`, "", `{"v2_channels":[{"sort_order":"0011"}]}`},
		{`{ v2_channels(args: {p_tags: null, p_limit: 1}) { sort_order } }`, "", `{"v2_channels":[{"sort_order":"0011"}]}`},
	} {
		t.Run(tt.query, func(t *testing.T) {
			if got := s.post(t, tt.query, tt.variables).data(t); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

// A wrong argument is reported with message, path, location and code, and is never guessed.
func TestWrongArgumentsAreErrors(t *testing.T) {
	s := newServer(t, graphql.Options{})
	for _, tt := range []struct{ name, query, variables, code, message, path, place string }{
		{"limit of zero", `{ v2_transfers(args: {p_limit: 0}) { status } }`, "", "invalid_field", "p_limit must be 1 to 100", "v2_transfers", "1:23"},
		{"null for a defaulted condition", `query($b: Boolean = true) { v2_stats_count { name @skip(if: $b) value } }`, `{"b": null}`, "invalid_variable", "$b\" must not be null", "v2_stats_count name", "1:61"},
		{"null for a defaulted condition of a fragment", `query($b: Boolean = true) { v2_stats_count { ... @include(if: $b) { name } } }`, `{"b": null}`, "invalid_variable", "Boolean!", "v2_stats_count name", "1:63"},
		{"null for a defaulted number", `query($n: Int = 1) { v2_tokens { wrapping(where: {destination_channel_id: {_eq: $n}}) { index } } }`, `{"n": null}`, "invalid_variable", "Int!", "v2_tokens wrapping", "1:81"},
		{"null deep inside, aliases", `query($n: Int = 1) { t: v2_transfers { m: base_token_meta { w: wrapping(where: {destination_channel_id: {_eq: $n}}) { index } } } }`, `{"n": null}`, "invalid_variable", "Int!", "t m w", "1:111"},
		{"negative limit, alias", `{ x: v2_packets(args: {p_limit: -1}) { status } }`, "", "invalid_field", "p_limit", "x", "1:24"},
		{"limit beyond 32 bits", `{ v2_packets(args: {p_limit: 3000000000}) { status } }`, "", "validation_failed", "32-bit", "v2_packets", "1:30"},
		{"limit of another type", `{ v2_packets(args: {p_limit: "5"}) { status } }`, "", "validation_failed", "Int", "v2_packets", "1:31"},
		{"comparison", `{ v2_packets(args: {p_comparison: "le"}) { status } }`, "", "invalid_field", "p_comparison", "v2_packets", "1:21"},
		{"bare comparison", `{ v2_packets(args: {p_comparison: le}) { status } }`, "", "invalid_field", "p_comparison", "v2_packets", "1:21"},
		{"bare text elsewhere", `{ v2_packets(args: {p_network: mainnet}) { status } }`, "", "validation_failed", "String", "v2_packets", "1:32"},
		{"comparison variable elsewhere", `query($c: ComparisonOp) { v2_packets(args: {p_network: $c}) { status } }`, `{"c": "gt"}`, "validation_failed", "ComparisonOp", "v2_packets", "1:56"},
		{"comparison variable not of the enum", `query($c: ComparisonOp) { v2_packets(args: {p_comparison: $c}) { status } }`, `{"c": "GT"}`, "invalid_variable", "ComparisonOp", "", "1:7"},
		{"network", `{ v2_packets(args: {p_network: "main"}) { status } }`, "", "invalid_field", "p_network", "v2_packets", "1:21"},
		{"empty filter", `{ v2_packets(args: {p_transaction_hash: ""}) { status } }`, "", "invalid_field", "p_transaction_hash must not be empty", "v2_packets", "1:21"},
		{"addresses", `{ v2_transfers(args: {p_addresses_canonical: [1]}) { status } }`, "", "invalid_field", "list of strings", "v2_transfers", "1:23"},
		{"addresses as an object", `query($a: jsonb) { v2_transfers(args: {p_addresses_canonical: $a}) { status } }`, `{"a": {"b": 1}}`, "invalid_field", "list of strings", "v2_transfers", "1:40"},
		{"time", `{ v2_packets(args: {p_packet_send_timestamp: "yesterday"}) { status } }`, "", "invalid_field", "RFC 3339", "v2_packets", "1:21"},
		{"unknown argument", `{ v2_packets(args: {p_sender: "x"}) { status } }`, "", "validation_failed", "p_sender", "v2_packets", "1:21"},
		{"unknown field", `{ v2_packets { traces { hash } } }`, "", "validation_failed", "hash", "v2_packets traces hash", "1:25"},
		{"variable of a wrong type", `query($n: Int) { v2_packets(args: {p_limit: $n}) { status } }`, `{"n": "5"}`, "invalid_variable", "$n", "", "1:7"},
		{"fraction", `query($n: Int) { v2_packets(args: {p_limit: $n}) { status } }`, `{"n": 1.5}`, "invalid_variable", "1.5", "", "1:7"},
		{"missing variable", `query($n: Int!) { v2_packets(args: {p_limit: $n}) { status } }`, "", "invalid_variable", "not provided", "", "1:7"},
		{"member of a variable", `query($a: v2_packets_args) { v2_packets(args: $a) { status } }`, `{"a": {"p_x": 1}}`, "invalid_variable", "p_x", "", "1:7"},
		{"conflicting fields", `{ v2_packets { a: status a: data } }`, "", "validation_failed", "conflict", "", "1:16"},
		{"conflicting arguments", `{ v2_packets(args: {p_limit: 1}) { status } v2_packets { data } }`, "", "validation_failed", "conflict", "", "1:3"},
		{"syntax", `{ v2_packets {`, "", "parse_failed", "", "", "1:15"},
		{"mutation", `mutation { x }`, "", "operation_unsupported", "mutation", "", "1:1"},
		{"operation not named", `query A { __typename } query B { __typename }`, "", "unknown_operation", "operationName", "", ""},
		{"ttl", `query @cached(ttl: -1) { __typename }`, "", "invalid_field", "ttl", "", "1:8"},
		{"defer", `{ ... @defer { __typename } }`, "", "validation_failed", "defer", "", "1:8"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := s.post(t, tt.query, tt.variables)
			err := got.fail(t)
			path := strings.Trim(fmt.Sprint(err.Path), "[]")
			var place string
			if len(err.Locations) > 0 {
				place = fmt.Sprintf("%d:%d", err.Locations[0].Line, err.Locations[0].Column)
			}
			if got.code(t) != tt.code || !strings.Contains(err.Message, tt.message) || path != tt.path || place != tt.place {
				t.Errorf("code %s, path %q, place %s, message %q; want %s, %q, %s, %q", got.code(t), path, place, err.Message, tt.code, tt.path, tt.place, tt.message)
			}
		})
	}
}

func TestWhereOnARootFieldIsIgnoredAndSaidSo(t *testing.T) {
	s := newServer(t, graphql.Options{})
	got := s.post(t, `query($w: JSON) { v2_transfers(args: {p_limit: 1}, where: {status: {_eq: "NONE", _in: [1]}}) { sort_order } b: v2_tokens(where: $w) { rank } }`, `{"w": {}}`)
	if !strings.Contains(got.data(t), sortOrder(numTransfers-1)) {
		t.Errorf("where has filtered: %s", got.body)
	}
	for _, want := range []string{`"where_ignored"`, `"path":["v2_transfers"]`, `"path":["b"]`} {
		if !strings.Contains(got.body, want) {
			t.Errorf("no %s in %s", want, got.body)
		}
	}
	if plain := s.post(t, `{ v2_tokens { rank } }`, ""); strings.Contains(plain.body, "extensions") {
		t.Errorf("extensions without a where: %s", plain.body)
	}
}

// Every field of the schema can be queried, and has an answer.
func TestEveryFieldOfTheSchemaAnswers(t *testing.T) {
	s := newServer(t, graphql.Options{Limits: graphql.Limits{MaxCost: 1 << 29}})
	stakes := newServer(t, graphql.Options{Limits: graphql.Limits{MaxCost: 1 << 29}, Index: madeUp(t)})
	schema := loadSchema(t)
	args := map[string]string{
		"v2_util_get_transfer_request_details":          `(args: {p_source_universal_chain_id: "union.union-1", p_destination_universal_chain_id: "ethereum.1", p_base_token: "0x01"})`,
		"v2_util_get_address_types_for_display_address": `(args: {p_display_address: "0x0000000000000000000000000000000000000001"})`,
	}
	for _, f := range schema.Query.Fields {
		if strings.HasPrefix(f.Name, "__") {
			continue
		}
		s := s
		if slices.Contains(stakeRoots, f.Name) {
			s = stakes
		}
		t.Run(f.Name, func(t *testing.T) {
			data := s.post(t, "{ "+f.Name+args[f.Name]+" "+everything(schema, f.Type.Name())+" }", "").data(t)
			if len(data) < 30 {
				t.Errorf("got %s", data)
			}
		})
	}
}
