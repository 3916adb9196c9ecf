package graphql_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/attestd/attestd/api/graphql"
)

func TestFigures(t *testing.T) {
	s := newServer(t, graphql.Options{})
	for _, tt := range []struct{ name, query, variables, want string }{
		{"a day", `{ v2_stats_transfers_daily_count(args: {p_days_back: 3}) { day_date count __typename } }`, "",
			`{"v2_stats_transfers_daily_count":[{"day_date":"2025-06-15","count":"65","__typename":"v2_stats_daily_count_type"},` +
				`{"day_date":"2025-06-14","count":"131","__typename":"v2_stats_daily_count_type"},{"day_date":"2025-06-13","count":"54","__typename":"v2_stats_daily_count_type"}]}`},
		{"packets a day", `query($n: Int) { v2_stats_packets_daily_count(args: {p_days_back: $n}) { count } }`,
			`{"n": 3}`,
			`{"v2_stats_packets_daily_count":[{"count":"65"},{"count":"131"},{"count":"54"}]}`},
		{"arguments as a variable",
			`query($a: v2_stats_packets_daily_count_args) { v2_stats_packets_daily_count(args: $a) { count } }`,
			`{"a": {"p_days_back": 3}}`,
			`{"v2_stats_packets_daily_count":[{"count":"65"},{"count":"131"},{"count":"54"}]}`},
		{"a route",
			`{ v2_stats_transfers_chain(args: {p_days_back: 3, p_source_universal_chain_id: "union.union-1"}) { day_date source_universal_chain_id destination_universal_chain_id total_transfers } }`, "",
			`{"v2_stats_transfers_chain":[` +
				`{"day_date":"2025-06-15","source_universal_chain_id":"union.union-1","destination_universal_chain_id":"ethereum.1","total_transfers":"13"},` +
				`{"day_date":"2025-06-14","source_universal_chain_id":"union.union-1","destination_universal_chain_id":"ethereum.1","total_transfers":"26"},` +
				`{"day_date":"2025-06-13","source_universal_chain_id":"union.union-1","destination_universal_chain_id":"ethereum.1","total_transfers":"11"}]}`},
		{"packets of a route",
			`{ v2_stats_packets_chain(args: {p_days_back: 3, p_destination_universal_chain_id: "union.union-1"}) { total_packets from: source_universal_chain_id } }`, "",
			`{"v2_stats_packets_chain":[{"total_packets":"13","from":"ethereum.11155111"},{"total_packets":"27","from":"ethereum.11155111"},{"total_packets":"10","from":"ethereum.11155111"}]}`},
		{"latency", `{ v2_stats_latency { secs_until_packet_recv { p5 median p95 } secs_until_write_ack { median } } }`,
			"",
			`{"v2_stats_latency":[{"secs_until_packet_recv":{"p5":11.971247551224854,"median":124.28604729556379,"p95":235.71114101285704},"secs_until_write_ack":null}]}`},
		{"latency of a phase",
			`{ v2_stats_latency(args: {p_phase: "packet_recv"}) { secs_until_packet_recv { median } secs_until_packet_ack { median } } }`, "",
			`{"v2_stats_latency":[{"secs_until_packet_recv":{"median":124.28604729556379},"secs_until_packet_ack":null}]}`},
		{"null is as if not written", `{ v2_stats_latency(args: null) { secs_until_packet_recv { median } } }`, "",
			`{"v2_stats_latency":[{"secs_until_packet_recv":{"median":124.28604729556379}}]}`},
		{"several, with arguments of their own",
			`{ b: v2_stats_packets_daily_count(args: {p_days_back: 1}) { count } a: v2_stats_packets_daily_count(args: {p_days_back: 2}) { count } v2_stats_count { value } }`, "",
			`{"b":[{"count":"65"}],"a":[{"count":"65"},{"count":"131"}],"v2_stats_count":[{"value":"250"},{"value":"250"}]}`},
		{"of rows, twice, and introspection",
			`query($no: Boolean!) { a: v2_stats_count { value } t: v2_transfers(args: {p_limit: 1}) { sort_order } ...F __typename b: v2_stats_count @skip(if: $no) { name n: name } __type(name: "OrderBy") { kind } } fragment F on Query { b: v2_stats_count { n: name } c: v2_health_check { status } }`, `{"no": true}`,
			`{"a":[{"value":"250"},{"value":"250"}],"t":[{"sort_order":"000000000249-x"}],"b":[{"n":"total_transfers"},{"n":"total_packets"}],` +
				`"c":[{"status":"ok"},{"status":"ok"}],"__typename":"Query","__type":{"kind":"ENUM"}}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := s.post(t, tt.query, tt.variables).data(t); got != tt.want {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
}

func TestWrongArgumentsOfFiguresAreErrors(t *testing.T) {
	s := newServer(t, graphql.Options{})
	for _, tt := range []struct{ name, query, code, message, path, place string }{
		{"days", `{ v2_stats_packets_daily_count(args: {p_days_back: 0}) { count } }`,
			"invalid_field", "p_days_back", "v2_stats_packets_daily_count", "1:39"},
		{"an empty chain", `{ x: v2_stats_transfers_chain(args: {p_source_universal_chain_id: ""}) { day_date } }`,
			"invalid_field", "p_source_universal_chain_id must not be empty", "x", "1:38"},
		{"a phase", `{ v2_stats_latency(args: {p_phase: "later"}) { secs_until_packet_recv { p5 } } }`,
			"invalid_field", "p_phase", "v2_stats_latency", "1:27"},
		{"an empty phase", `{ v2_stats_latency(args: {p_phase: ""}) { secs_until_packet_recv { p5 } } }`,
			"invalid_field", "p_phase must not be empty", "v2_stats_latency", "1:27"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := s.post(t, tt.query, "")
			err := got.fail(t)
			if place := fmt.Sprintf("%d:%d", err.Locations[0].Line, err.Locations[0].Column); got.code(t) != tt.code ||
				!strings.Contains(err.Message, tt.message) ||
				fmt.Sprint(err.Path) != "["+tt.path+"]" || place != tt.place {
				t.Errorf("code %s, path %v, place %s, message %q", got.code(t), err.Path, place, err.Message)
			}
		})
	}
}

// Each failing root field has its error, in the order of the operation.
func TestErrorsOfFiguresAndRows(t *testing.T) {
	s := newServer(t, graphql.Options{})
	got := s.post(t,
		`{ a: v2_stats_latency(args: {p_phase: "later"}) { secs_until_packet_recv { p5 } } v2_transfers(args: {p_limit: 0}) { status } v2_stats_count { name } b: v2_stats_packets_daily_count(args: {p_days_back: 0}) { count } }`, "")
	const want = `{"data":null,"errors":[` +
		`{"message":"p_phase must be packet_recv, write_ack or packet_ack","locations":[{"line":1,"column":30}],"path":["a"],"extensions":{"argument":"p_phase","code":"invalid_field"}},` +
		`{"message":"p_limit must be 1 to 100","locations":[{"line":1,"column":103}],"path":["v2_transfers"],"extensions":{"argument":"p_limit","code":"invalid_field"}},` +
		`{"message":"p_days_back must be at least 1","locations":[{"line":1,"column":190}],"path":["b"],"extensions":{"argument":"p_days_back","code":"invalid_field"}}]}`
	if got.body != want {
		t.Errorf("got\n%s\nwant\n%s", got.body, want)
	}
}
