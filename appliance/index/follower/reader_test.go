package follower_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/vektah/gqlparser/v2/ast"

	"github.com/attestd/attestd/api/graphql"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/follower"
)

var smallTypes = []*index.Type{index.ChainType, index.TokenType, index.ClientType, index.ConnectionType, index.ChannelType}

var largeTypes = []*index.Type{index.PacketType, index.TransferType}

// walk reads a type page by page from a cursor to the end.
func walk(t *testing.T, r *follower.Reader, of *index.Type, cursor string, direction index.Direction) (rows []index.Row) {
	t.Helper()
	for {
		answers, _, _, err := r.Fetch(t.Context(), follower.Page(of, cursor, direction, 0))
		if err != nil {
			t.Fatal(err)
		}
		a := answers[0]
		if len(a.Bad) > 0 || len(a.Orders) != len(a.Rows) {
			t.Fatalf("%d rows, %d orders, %v", len(a.Rows), len(a.Orders), a.Bad)
		}
		rows = append(rows, a.Rows...)
		if len(a.Rows) < index.MaxLimit {
			return rows
		}
		cursor = a.Orders[len(a.Orders)-1]
	}
}

// table reads a small table, sorted by key.
func table(t *testing.T, r *follower.Reader, of *index.Type) []index.Row {
	t.Helper()
	rows, bad, err := r.Table(t.Context(), of)
	if err != nil || len(bad) > 0 {
		t.Fatal(err, bad)
	}
	return byKey(rows)
}

func byKey(rows []index.Row) []index.Row {
	slices.SortFunc(rows, func(a, b index.Row) int { return strings.Compare(a.Key(), b.Key()) })
	return rows
}

func TestPagesAreReadRowByRowAsTheUpstreamHasThem(t *testing.T) {
	s := newServer(t, 500, graphql.Options{})
	r := reader(t, s)
	if missing := r.Missing(); len(missing) > 0 {
		t.Errorf("missing %v", missing)
	}
	for _, of := range largeTypes {
		want := s.rows(t, of)
		same(t, walk(t, r, of, want[0].SortOrder(), index.Newer), want[1:])
		slices.Reverse(want)
		same(t, walk(t, r, of, "", index.Older), want)
	}
}

func TestSmallTablesAreReadWhole(t *testing.T) {
	s := newServer(t, 1, graphql.Options{})
	var values []any
	for i := range int32(250) {
		id := fmt.Sprintf("%04d", i)
		values = append(values,
			index.Chain{UniversalChainID: "a." + id},
			index.Client{SortOrder: "x" + id, UniversalChainID: "a.1", ClientID: i, CounterpartyUniversalChainID: "b.1"},
			index.Connection{SortOrder: "x" + id, SourceUniversalChainID: "a.1", SourceConnectionID: i, DestUniversalChainID: "b.1"},
			index.Channel{SortOrder: "x" + id, SourceUniversalChainID: "a.1", SourceChannelID: i, DestUniversalChainID: "b.1", Recommended: new(i%3 == 0)},
			index.Token{UniversalChainID: "a.1", Denom: "0x" + id, Whitelist: new(i%7 == 0)},
		)
	}
	s.write(t, values...)
	r := reader(t, s)
	for _, of := range smallTypes {
		same(t, table(t, r, of), byKey(s.rows(t, of)))
	}
}

func TestPartsAreAnsweredByOneRequestWithTheCounts(t *testing.T) {
	s := newServer(t, 200, graphql.Options{})
	r := reader(t, s)
	packets, transfers := s.rows(t, index.PacketType), s.rows(t, index.TransferType)
	batch := transfers[slices.IndexFunc(transfers, func(row index.Row) bool { return strings.HasSuffix(row.Key(), "/1") })]
	hash, _ := batch.Text(index.TransferType.MustField("packet_hash").Number)

	parts := slices.Repeat([]follower.Part{follower.LookUp(index.PacketType, hash)}, follower.MaxParts)
	parts[1] = follower.LookUp(index.TransferType, strings.ToUpper(hash))
	parts[2] = follower.Page(index.TransferType, transfers[50].SortOrder(), index.Older, 7)
	parts[3] = follower.Page(index.PacketType, "", index.Older, 2)
	parts[4] = follower.LookUp(index.PacketType, "0x00")
	parts[5] = follower.After(follower.LookUp(index.TransferType, hash), batch.SortOrder())
	s.queries = nil
	answers, numPackets, numTransfers, err := r.Fetch(t.Context(), parts...)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.queries) != 1 || len(answers) != len(parts) || int(numPackets) != len(packets) || int(numTransfers) != len(transfers) {
		t.Errorf("%d requests, %d answers, %d packets, %d transfers", len(s.queries), len(answers), numPackets, numTransfers)
	}
	of := func(rows []index.Row) (found []index.Row) {
		for _, row := range rows {
			if strings.HasPrefix(row.Key(), hash) {
				found = append(found, row)
			}
		}
		return found
	}
	same(t, answers[0].Rows, of(packets))
	same(t, answers[follower.MaxParts-1].Rows, of(packets))
	got := answers[1].Rows
	slices.Reverse(got)
	same(t, got, of(transfers))
	same(t, answers[5].Rows, of(transfers)[:1]) // those before the second
	slices.Reverse(answers[2].Rows)
	same(t, answers[2].Rows, transfers[43:50])
	slices.Reverse(answers[3].Rows)
	same(t, answers[3].Rows, packets[len(packets)-2:])
	if len(answers[4].Rows)+len(answers[4].Bad) > 0 {
		t.Errorf("%+v", answers[4])
	}
}

func TestAnOperationOfTheSameShapeHasTheSameText(t *testing.T) {
	s := newServer(t, 30, graphql.Options{})
	r := reader(t, s)
	s.queries = nil
	for i, row := range s.rows(t, index.TransferType)[:3] {
		if _, _, _, err := r.Fetch(t.Context(), follower.Page(index.TransferType, row.SortOrder(), index.Newer, i+1), follower.LookUp(index.PacketType, row.Key())); err != nil {
			t.Fatal(err)
		}
	}
	if len(s.queries) != 3 || s.queries[0] != s.queries[1] || s.queries[1] != s.queries[2] {
		t.Errorf("%q", s.queries)
	}
	if strings.Contains(s.queries[0], "@cached") {
		t.Error("a follower must not be answered from a cache")
	}
}

func TestBriefRowsHaveKeyOrderAndStatus(t *testing.T) {
	s := newServer(t, 50, graphql.Options{})
	r := reader(t, s)
	for _, of := range largeTypes {
		answers, _, _, err := r.Fetch(t.Context(), follower.Brief(follower.Page(of, "", index.Older, 10)))
		if err != nil || len(answers[0].Rows) != 10 {
			t.Fatal(err, answers)
		}
		want := s.rows(t, of)
		slices.Reverse(want)
		for i, row := range answers[0].Rows {
			for _, f := range of.Fields {
				brief := f.Required && f.Elem == nil || f.Name == "status"
				if got, is := string(row.AppendJSON(nil, f.Number)), string(want[i].AppendJSON(nil, f.Number)); brief && got != is || !brief && !row.IsNull(f.Number) && f.Elem == nil {
					t.Fatalf("%s: %s, of %s", f.Name, got, is)
				}
			}
		}
	}
}

func TestDecodedIsKeptWhereItCannotBeMade(t *testing.T) {
	s := newServer(t, 1, graphql.Options{})
	packet := func(hash, version string) index.Packet {
		return index.Packet{
			SortOrder: hash, PacketHash: hash, SourceUniversalChainID: "a.1", DestUniversalChainID: "b.1", ChannelVersion: new(version),
			Decoded: json.RawMessage(`{"a":[1]}`), DecodedFlattened: json.RawMessage(`[]`),
		}
	}
	for i, version := range []string{"ucs03-zkgm-0", "ucs00-pingpong-1", ""} {
		s.write(t, packet(fmt.Sprintf("0xf%d", i), version))
	}
	packets := s.rows(t, index.PacketType)
	packets = packets[len(packets)-3:]
	bare := without(t, packets, "decoded", "decoded_flattened")
	r := reader(t, s)
	answers, _, _, err := r.Fetch(t.Context(), follower.LookUp(index.PacketType, "0xf0"), follower.LookUp(index.PacketType, "0xf1"),
		follower.LookUp(index.PacketType, "0xf2"), follower.Page(index.PacketType, "0xf", index.Newer, 3))
	if err != nil {
		t.Fatal(err)
	}
	same(t, answers[0].Rows, bare[:1])
	same(t, answers[1].Rows, packets[1:2])
	same(t, answers[2].Rows, packets[2:])
	same(t, answers[3].Rows, bare)
}

// An older upstream may lack fields, arguments and queries; the rows then have nulls.
func TestAnOlderUpstreamIsReadAsFarAsItGoes(t *testing.T) {
	s := newServer(t, 150, graphql.Options{})
	for _, test := range []struct {
		name    string
		without []string
		of      *index.Type
		null    []string // fields that are null as a result
		missing []string
		empty   bool
	}{
		{name: "fields", of: index.PacketType, without: []string{"v2_packet_type.packet_recv_maker_msg", "v2_packet_type.status", "v2_packet_type.decoded"},
			null:    []string{"packet_recv_maker_msg", "status"},
			missing: []string{"v2_packet_type.decoded", "v2_packet_type.packet_recv_maker_msg", "v2_packet_type.status"}},
		{name: "the status of transfers", of: index.TransferType, without: []string{"v2_transfer_type.status"}, null: []string{"status"}},
		{name: "a field that a relation has", of: index.PacketType, without: []string{"v2_traces_type.universal_chain_id", "v2_packet_type.source_universal_chain_id"}},
		{name: "what nested rows cannot do without", of: index.PacketType, without: []string{"v2_traces_type.type"}, null: []string{"traces"},
			missing: []string{"v2_packet_type.traces", "v2_traces_type.type"}},
		{name: "nested fields", of: index.TokenType, without: []string{"v2_token_meta_representations.chain", "v2_token_meta_bucket.capacity", "v2_token_meta_bucket.chain"},
			null:    []string{"representations", "bucket"},
			missing: []string{"v2_token_meta.bucket", "v2_token_meta.representations", "v2_token_meta_bucket.capacity", "v2_token_meta_bucket.universal_chain_id", "v2_token_meta_representations.universal_chain_id"}},
		{name: "filters", of: index.ChannelType, without: []string{"v2_channels_args.p_recommended", "v2_tokens_args.p_whitelist"},
			null: []string{"recommended"}, missing: []string{"v2_channel_type.recommended", "v2_token_meta.whitelist"}},
		{name: "pages", of: index.ClientType, without: []string{"v2_clients_args.p_sort_order", "v2_clients_args.p_limit"}},
		{name: "a query", of: index.ClientType, without: []string{"Query.v2_clients"}, missing: []string{"Query.v2_clients"}, empty: true},
		{name: "a key", of: index.ChannelType, without: []string{"v2_channel_type.source_channel_id"}, missing: []string{"Query.v2_channels", "v2_channel_type.source_channel_id"}, empty: true},
		{name: "counts", of: index.TransferType, without: []string{"Query.v2_stats_count"}, missing: []string{"Query.v2_stats_count"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := reader(t, altered(t, s, test.without...))
			if got := r.Missing(); !slices.Equal(got, test.missing) {
				t.Errorf("missing %q, want %q", got, test.missing)
			}
			want := without(t, s.rows(t, test.of), test.null...)
			switch {
			case test.empty:
				want = nil
				fallthrough
			case slices.Contains(smallTypes, test.of):
				same(t, table(t, r, test.of), byKey(want))
			default:
				slices.Reverse(want)
				same(t, walk(t, r, test.of, "", index.Older), want)
				if _, _, _, err := r.Fetch(t.Context(), follower.LookUp(test.of, want[0].Key())); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func TestAnUpstreamWithoutPacketsOrTransfersCannotBeFollowed(t *testing.T) {
	s := newServer(t, 1, graphql.Options{})
	for lack, want := range map[string]string{
		"Query.v2_packets":                "it lacks v2_packets",
		"Query.v2_transfers":              "it lacks v2_transfers",
		"v2_packets_args.p_packet_hash":   "it lacks v2_packets(args: {p_packet_hash})",
		"v2_transfers_args.p_sort_order":  "it lacks v2_transfers(args: {p_sort_order})",
		"v2_packet_type.packet_hash":      "it lacks v2_packet_type.packet_hash",
		"v2_transfer_type.transfer_index": "it lacks v2_transfer_type.transfer_index",
		"v2_transfer_type.sort_order":     "it lacks v2_transfer_type.sort_order",
	} {
		err := follower.NewReader(altered(t, s, lack)).Discover(t.Context())
		if appliance.CodeOf(err) != appliance.CodeUpstreamUnavailable || !strings.Contains(err.Error(), want) {
			t.Errorf("without %s: %v", lack, err)
		}
	}
}

// Without introspection the hosted schema is assumed. attestd's own schema is the same except for the status of
// transfers.
func TestAnUpstreamThatDoesNotTellItsSchemaIsAskedForAllOfTheHostedOne(t *testing.T) {
	s := newServer(t, 120, graphql.Options{NoIntrospection: true})
	r := reader(t, s)
	if missing := r.Missing(); len(missing) > 0 {
		t.Errorf("missing %v", missing)
	}
	for _, of := range largeTypes {
		want := s.rows(t, of)
		if of == index.TransferType {
			want = without(t, want, "status")
		}
		slices.Reverse(want)
		same(t, walk(t, r, of, "", index.Older), want)
	}
	for _, of := range smallTypes {
		same(t, table(t, r, of), byKey(s.rows(t, of)))
	}
}

// The hosted schema has a different name for the query type, and p_comparison is an enum.
func TestTheHostedSchemaIsMet(t *testing.T) {
	s := newServer(t, 150, graphql.Options{})
	hosted := altered(t, s, "v2_transfer_type.status")
	hosted.schema.Query.Name = "query_root"
	for _, def := range hosted.schema.Types {
		if f := def.Fields.ForName("p_comparison"); f != nil {
			f.Type = ast.NamedType("ComparisonOp", nil)
		}
	}
	hosted.schema.Types["query_root"] = hosted.schema.Query
	r := reader(t, hosted)
	want := s.rows(t, index.PacketType)
	same(t, walk(t, r, index.PacketType, want[0].SortOrder(), index.Newer), want[1:])
	same(t, table(t, r, index.ChannelType), byKey(s.rows(t, index.ChannelType)))
}

const (
	goodPacket   = `{"sort_order":"5","packet_hash":"0x05","source_universal_chain_id":"a.1","destination_universal_chain_id":"b.1"}`
	goodTransfer = `{"sort_order":"6","packet_hash":"0x05","transfer_index":0,"source_universal_chain_id":"a.1","destination_universal_chain_id":"b.1"}`
)

func TestRowsThatCannotBeReadAreReportedAndTheOthersKept(t *testing.T) {
	s := newServer(t, 1, graphql.Options{})
	lacking := func(row, member string) string { return strings.Replace(row, member, "", 1) }
	for _, test := range []struct{ row, want, order string }{
		{lacking(goodPacket, `"sort_order":"5",`), "packet 0x05: sort_order is missing in a packet", ""},
		{lacking(goodPacket, `"packet_hash":"0x05",`), "packet without packet_hash: packet_hash is missing in a packet", "5"},
		{strings.Replace(goodPacket, `"5"`, `5`, 1), "packet 0x05: sort_order must be text", "5"},
		{strings.Replace(goodPacket, `{`, `{"packet_send_timestamp":"yesterday",`, 1), "packet 0x05: packet_send_timestamp must be an RFC 3339 time", "5"},
		{strings.Replace(goodPacket, `{`, `{"packet_send_timestamp":"9999-01-01T00:00:00Z",`, 1), "packet 0x05: packet_send_timestamp must be in the years", "5"},
		{strings.Replace(goodPacket, `{`, `{"traces":[{"type":"SEND_PACKET"}],`, 1), "packet 0x05: universal_chain_id is missing in a traces", "5"},
		{strings.Replace(goodPacket, `{`, `{"surprise":1,`, 1), "packet 0x05: surprise is not a member of a packet", "5"},
		{strings.Replace(goodPacket, "0x05", `\u001b[2J`, 1), `packet \x1b[2J: the upstream returned another packet than the requested 0x05`, "5"},
		{strings.Replace(goodPacket, "0x05", "0x06", 1), "packet 0x06: the upstream returned another packet than the requested 0x05", "5"},
		{strings.Replace(goodPacket, `{`, `{"`+strings.Repeat("x", 1000)+`":1,`, 1), "packet 0x05: " + strings.Repeat("x", 200) + "…", "5"},
		{`null`, "packet without packet_hash: ", ""},
		{`[1]`, "packet that is not an object: ", ""},
	} {
		data := fmt.Sprintf(`{"p0":[%s,%s,%s],"p1":[%s],"n":[{"name":"total_packets","value":"3"},{"name":"other","value":"x"}]}`, goodPacket, test.row, goodPacket, goodTransfer)
		answers, _, _, err := reader(t, canned{s, data}).Fetch(t.Context(), follower.LookUp(index.PacketType, "0x05"), follower.Page(index.TransferType, "", index.Older, 1))
		if err != nil {
			t.Fatal(err)
		}
		orders := []string{"5", "5"}
		if test.order != "" {
			orders = append(orders, test.order)
		}
		a := answers[0]
		if len(a.Rows) != 2 || len(a.Bad) != 1 || !strings.HasPrefix(a.Bad[0].Error(), test.want) || !slices.Equal(a.Orders, orders) {
			t.Errorf("%s:\n%d rows, %q, %q", test.row, len(a.Rows), a.Bad, a.Orders)
		}
		if len(answers[1].Rows) != 1 {
			t.Errorf("the transfer: %+v", answers[1])
		}
	}
}

func TestAnAnswerOfAnotherFormIsNone(t *testing.T) {
	s := newServer(t, 1, graphql.Options{})
	for _, data := range []string{
		``, `null`, `[]`, `5`, `"p0"`, `{}`, `{"p0":[]}`, `{"n":[]}`, `{"p0":null,"n":[]}`, `{"p0":{},"n":[]}`, `{"p0":[,],"n":[]}`, `{"p0":[}],"n":[]}`,
		`{"p0":[],"n":{}}`, `{"p0":[],"n":[5]}`, `{"p0":[],"n":[]`, `{"p0":[{],"n":[]}`, `{"p0":["],"n":[]}`, `{"p0":[1 2],"n":[]}`, `{p0:[],"n":[]}`, `{"p0":[],"n":[]}}`,
		`{"p0":[` + goodPacket + `,` + goodPacket + `],"n":[]}`, `{"p0":[],"n":[],"p1":[]}`, `{"p0":[],"n":[` + strings.Repeat(`{},`, 200) + `{}]}`,
	} {
		_, _, _, err := reader(t, canned{s, data}).Fetch(t.Context(), follower.Page(index.PacketType, "", index.Older, 1))
		if appliance.CodeOf(err) != appliance.CodeUpstreamUnavailable || !strings.HasPrefix(err.Error(), "the upstream's answer is not ") {
			t.Errorf("%s: %v", data, err)
		}
	}
	for _, data := range []string{``, `null`, `{}`, `{"__schema":null}`, `{"__schema":{"queryType":{}}}`, `{"__schema":5}`, `{"__schema":{"queryType":{"name":"Query"}}}` + strings.Repeat(" ", 8<<20)} {
		if err := follower.NewReader(told(data)).Discover(t.Context()); appliance.CodeOf(err) != appliance.CodeUpstreamUnavailable {
			t.Errorf("schema %s: %v", data, err)
		}
	}
}

// told is an upstream that answers every query with the same text.
type told string

// Query implements follower.Upstream.
func (d told) Query(context.Context, string, map[string]any) (json.RawMessage, error) {
	return json.RawMessage(d), nil
}

func TestAFailureOfTheUpstreamIsPassedOn(t *testing.T) {
	s := newServer(t, 1, graphql.Options{})
	r := reader(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Discover(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, _, _, err := r.Fetch(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, _, err := r.Table(ctx, index.ChannelType); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, _, _, err := r.Fetch(t.Context(), follower.Page(index.PacketType, "", index.Older, 5)); err != nil {
		t.Error(err) // a failure does not change the plan
	}
}

// endless is an upstream that always returns another full page of clients. next chooses the first number of a page.
type endless struct {
	*server
	pages *int
	next  func(page int) int
}

// Query implements follower.Upstream.
func (e endless) Query(ctx context.Context, query string, variables map[string]any) (json.RawMessage, error) {
	if strings.Contains(query, "__schema") {
		return e.server.Query(ctx, query, variables)
	}
	first := e.next(*e.pages)
	*e.pages++
	var rows []string
	for i := range index.MaxLimit {
		rows = append(rows, fmt.Sprintf(`{"sort_order":"%d","universal_chain_id":"a","client_id":%d,"counterparty_universal_chain_id":"b"}`, first+i, first+i))
	}
	return json.RawMessage(`{"p0":[` + strings.Join(rows, ",") + `]}`), nil
}

func TestASmallTableThatNeverEndsIsGivenUp(t *testing.T) {
	s := newServer(t, 1, graphql.Options{})
	for _, test := range []struct {
		name        string
		next        func(page int) int
		pages, rows int
		bad         int
	}{
		{"always the same page", func(int) int { return 0 }, 2, 100, 0},
		{"two pages in turn", func(page int) int { return page % 2 * 100 }, 3, 200, 0},
		{"always another page", func(page int) int { return page * 100 }, 1000, 100_000, 1},
	} {
		pages := 0
		rows, bad, err := reader(t, endless{s, &pages, test.next}).Table(t.Context(), index.ClientType)
		if err != nil || pages != test.pages || len(rows) != test.rows || len(bad) != test.bad {
			t.Errorf("%s: %d pages, %d rows, %v, %v", test.name, pages, len(rows), bad, err)
		}
	}
}

// BenchmarkFetch reads pages of packets and of transfers, from an upstream in the same process and from memory.
func BenchmarkFetch(b *testing.B) {
	s := newServer(b, 3000, graphql.Options{})
	r := reader(b, s)
	var parts []follower.Part
	for range 5 {
		parts = append(parts, follower.Page(index.PacketType, "", index.Older, 100), follower.Page(index.TransferType, "", index.Older, 100))
	}
	fetch := func(b *testing.B, r *follower.Reader) {
		rows := 0
		for b.Loop() {
			answers, _, _, err := r.Fetch(b.Context(), parts...)
			if err != nil {
				b.Fatal(err)
			}
			for _, a := range answers {
				rows += len(a.Rows)
			}
		}
		b.ReportMetric(float64(rows)/b.Elapsed().Seconds(), "rows/s")
	}
	b.Run("over loopback", func(b *testing.B) { fetch(b, r) })
	b.Run("parsing alone", func(b *testing.B) {
		recorded := &recorder{server: s}
		once := reader(b, recorded)
		if _, _, _, err := once.Fetch(b.Context(), parts...); err != nil {
			b.Fatal(err)
		}
		b.SetBytes(int64(len(recorded.data)))
		fetch(b, reader(b, canned{s, string(recorded.data)}))
	})
}

// recorder is a server that keeps its last answer.
type recorder struct {
	*server
	data json.RawMessage
}

// Query implements follower.Upstream.
func (r *recorder) Query(ctx context.Context, query string, variables map[string]any) (data json.RawMessage, err error) {
	r.data, err = r.server.Query(ctx, query, variables)
	return r.data, err
}
