package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/index"
)

// ReplicaNow is the current time for an index under test.
var ReplicaNow = time.Date(2026, 5, 20, 12, 0, 0, 0, time.UTC)

// Replica compares an index with a plain model. It writes random rows in random batches, changes them and writes them
// again, and makes random queries in both directions, once for each of the seeds. open returns an empty index that does not serve unverified rows;
// its clock stands at ReplicaNow. reopen returns the same index as after a restart, and chooses whether it serves
// unverified rows.
func Replica(t *testing.T, open OpenReplica, seeds uint64) {
	for seed := range seeds {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			index, reopen := open(t)
			h := &harness{t: t, index: index, model: newModel(func() time.Time {
				return ReplicaNow
			}), rng: rand.New(rand.NewPCG(seed, 1))}
			for round := range 4 {
				h.writeRandom(40 + 60*round)
				h.questions(40)
				h.serve(reopen, h.rng.IntN(2) == 0)
				h.questions(20)
			}
			h.writeAgain()
			for range 3 {
				h.serve(reopen, !h.model.serving)
				h.questions(10)
			}
		})
	}
	t.Run("refuses invalid queries", func(t *testing.T) { refuses(t, open) })
}

// OpenReplica opens an index for the suite; see Replica.
type OpenReplica func(t *testing.T) (index index.Index, reopen func(serveUnverified bool) index.Index)

type harness struct {
	t     *testing.T
	index index.Index
	model *model
	rng   *rand.Rand
}

// The sets of values for random rows are small, so that rows share values.
var (
	someChains = []string{"union.union-1", "ethereum.1", "babylon.bbn-1", "union.union-testnet-10", "nowhere.1"}
	someKinds  = []string{"a", "b", "c", "d"}
)

func (h *harness) writeRandom(n int) {
	for n > 0 {
		var b index.Batch
		for range min(n, 1+h.rng.IntN(40)) {
			row := must(index.NewRow(h.row()))
			if (row.Type() == index.PacketType || row.Type() == index.TransferType) && h.rng.IntN(4) == 0 {
				b.Unverified = append(b.Unverified,
					index.Unverified{Row: row, Reason: h.one(someKinds), Since: h.time()})
			} else {
				b.Rows = append(b.Rows, row)
			}
			n--
		}
		b.Withdrawn = h.withdrawn(b)
		b.Removed = h.removed()
		h.write(b)
	}
}

// withdrawn sometimes returns a quarantined row that the batch does not contain, and a row that is not quarantined.
func (h *harness) withdrawn(b index.Batch) (ids []index.RowID) {
	apart := h.model.unverified()
	if h.rng.IntN(3) > 0 || len(apart) == 0 {
		return nil
	}
	id := apart[h.rng.IntN(len(apart))].Row.ID()
	for _, row := range b.Rows {
		if row.ID() == id {
			return nil
		}
	}
	return []index.RowID{id, {Type: index.PacketType, Key: "nothing"}}
}

// removed sometimes returns some existing rows and a missing one.
func (h *harness) removed() (ids []index.RowID) {
	if h.rng.IntN(4) > 0 {
		return nil
	}
	for range 1 + h.rng.IntN(3) {
		t := index.RowTypes[h.rng.IntN(len(index.RowTypes))]
		keys := slices.Sorted(maps.Keys(h.model.rows[t]))
		if len(keys) > 0 {
			ids = append(ids, index.RowID{Type: t, Key: keys[h.rng.IntN(len(keys))]})
		}
	}
	return append(ids, index.RowID{Type: index.TransferType, Key: "none"})
}

func (h *harness) write(b index.Batch) {
	h.t.Helper()
	written, err := h.index.Write(context.Background(), b)
	if want := h.model.write(b); err != nil || written != want {
		h.t.Fatalf("wrote %+v, %v; model %+v", written, err, want)
	}
}

// writeAgain writes all rows once more, which must not change the index.
func (h *harness) writeAgain() {
	var b index.Batch
	for _, t := range index.RowTypes {
		b.Rows = append(b.Rows, h.model.list(t, func(row index.Row) bool {
			return h.model.apart[t][row.Key()] == nil
		})...)
	}
	for _, d := range h.model.unverified() {
		b.Unverified = append(b.Unverified, d.Unverified)
	}
	written, err := h.index.Write(context.Background(), b)
	if want := (index.Written{Unchanged: len(b.Rows) + len(b.Unverified)}); err != nil || written != want {
		h.t.Fatalf("the same again: %+v, %v; want %+v", written, err, want)
	}
}

// serve reopens the index.
func (h *harness) serve(reopen func(serveUnverified bool) index.Index, unverified bool) {
	h.index = reopen(unverified)
	h.model.serve(unverified)
}

func (h *harness) view(read func(s index.Snapshot)) {
	err := h.index.View(context.Background(), func(s index.Snapshot) error {
		read(s)
		return nil
	})
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *harness) questions(n int) {
	h.view(func(s index.Snapshot) {
		ctx := context.Background()
		for range n {
			tq := h.transferQuery()
			h.walk(fmt.Sprintf("transfers %+v", tq), h.model.transfers(tq), func(p index.Page) ([]index.Row, error) {
				tq.Page = p
				return s.Transfers(ctx, tq)
			})
			pq := h.packetQuery()
			h.walk(fmt.Sprintf("packets %+v", pq), h.model.packets(pq), func(p index.Page) ([]index.Row, error) {
				pq.Page = p
				return s.Packets(ctx, pq)
			})
			cq := h.channelQuery()
			h.walk(fmt.Sprintf("channels %+v", cq), h.model.channels(cq), func(p index.Page) ([]index.Row, error) {
				cq.Page = p
				return s.Channels(ctx, cq)
			})
		}
		for _, t := range index.RowTypes {
			h.each(s, t)
		}
		h.unfinished(s)
		h.unverified(s)
		h.sample(s, index.PacketType)
		h.sample(s, index.TransferType)
	})
	h.stats()
}

// walk reads all pages from the newest to the oldest and back, and one from a cursor that need not exist.
func (h *harness) walk(what string, want []index.Row, ask func(index.Page) ([]index.Row, error)) {
	h.t.Helper()
	limit := new(int32(1 + h.rng.IntN(40)))
	pages := func(p index.Page) []index.Row {
		var all []index.Row
		for {
			rows, err := ask(p)
			if err != nil {
				h.t.Fatalf("%s: %v", what, err)
			}
			if len(rows) > int(*limit) {
				h.t.Fatalf("%s: %d rows for a limit of %d", what, len(rows), *limit)
			}
			if len(rows) == 0 {
				return all
			}
			all = append(all, rows...)
			p.Cursor = rows[len(rows)-1].SortOrder()
		}
	}
	h.same(what+" forwards", pages(index.Page{Limit: limit}), want)
	back := make([]index.Row, len(want))
	for i := range want {
		back[len(want)-1-i] = want[i]
	}
	h.same(what+" backwards", pages(index.Page{Limit: limit, Cursor: "!", Direction: index.Newer}), back)
	for _, direction := range []index.Direction{index.Older, index.Newer} {
		p := index.Page{Limit: limit, Cursor: h.order(), Direction: direction}
		rows, err := ask(p)
		if err != nil {
			h.t.Fatal(err)
		}
		h.same(fmt.Sprintf("%s from %+v", what, p), rows, page(want, p))
	}
}

func (h *harness) same(what string, got, want []index.Row) {
	h.t.Helper()
	if len(got) != len(want) {
		h.t.Fatalf("%s: %d rows, want %d", what, len(got), len(want))
	}
	for i := range got {
		if g, w := string(got[i].AppendLine(nil)), string(want[i].AppendLine(nil)); g != w {
			h.t.Fatalf("%s: row %d is\n%s\nwant\n%s", what, i, g, w)
		}
	}
}

// each compares all rows of a type, and their order.
func (h *harness) each(s index.Snapshot, t *index.Type) {
	var got []index.Row
	err := s.Each(context.Background(), t, func(row index.Row) error {
		got = append([]index.Row{row}, got...)
		return nil
	})
	if err != nil {
		h.t.Fatal(err)
	}
	h.same("each "+t.Name, got, h.model.list(t, func(index.Row) bool { return true }))
}

// unfinished compares the packets that are neither acknowledged nor timed out.
func (h *harness) unfinished(s index.Snapshot) {
	var got []index.Row
	enough := errors.New("enough")
	for behind, n, err := (index.Row{}), 1, enough; errors.Is(err, enough); n++ { // one row, then two more, then three
		left := n
		err = s.Unfinished(context.Background(), behind, func(row index.Row) error {
			got, behind = append(got, row), row
			if left--; left == 0 {
				return enough
			}
			return nil
		})
		if err != nil && !errors.Is(err, enough) {
			h.t.Fatal(err)
		}
	}
	slices.SortFunc(got, func(a, b index.Row) int { return strings.Compare(b.SortOrder(), a.SortOrder()) })
	h.same("unfinished", got, h.model.list(index.PacketType, func(row index.Row) bool {
		_, acknowledged := at(row, "packet_ack_timestamp")
		_, timedOut := at(row, "packet_timeout_timestamp")
		return !acknowledged && !timedOut
	}))
}

// unverified compares the quarantined rows and their number.
func (h *harness) unverified(s index.Snapshot) {
	var got []index.Row
	want := h.model.unverified()
	err := s.Unverified(context.Background(), func(u index.Unverified) error {
		if i := len(got); i < len(want) &&
			(u.Reason != want[i].Reason || !u.Since.Equal(want[i].Since) || u.Since.Location() != time.UTC) {
			h.t.Fatalf("unverified %d: %q since %v, want %q since %v", i, u.Reason, u.Since, want[i].Reason,
				want[i].Since)
		}
		got = append(got, u.Row)
		return nil
	})
	if err != nil {
		h.t.Fatal(err)
	}
	var rows []index.Row
	for _, d := range want {
		rows = append(rows, d.Row)
	}
	h.same("unverified", got, rows)
	status, err := s.Status(context.Background())
	if err != nil || status.Unverified != uint64(len(want)) {
		h.t.Fatalf("%d unverified, %v; want %d", status.Unverified, err, len(want))
	}
}

// sample requests fewer rows than exist, all rows, and more.
func (h *harness) sample(s index.Snapshot, t *index.Type) {
	all := h.model.rows[t]
	for _, n := range []int{-1, 0, 1, len(all) / 2, len(all), len(all) + 1, math.MaxInt} {
		rows, err := s.Sample(context.Background(), t, n)
		if want := min(max(n, 0), len(all)); err != nil || len(rows) != want {
			h.t.Fatalf("a sample of %d: %d of %d, %v", n, len(rows), len(all), err)
		}
		seen := make(map[string]bool)
		for _, row := range rows {
			if seen[row.Key()] || !bytes.Equal(row.Bytes(), all[row.Key()].Bytes()) {
				h.t.Fatalf("a sample of %d: %s occurs twice or differs", n, row.Key())
			}
			seen[row.Key()] = true
		}
	}
}

func (h *harness) stats() {
	h.view(func(s index.Snapshot) {
		ctx := context.Background()
		stats, err := s.Stats(ctx)
		h.equal("stats", err, stats, []index.Stat{
			{Name: index.StatTransfers, Value: uint64(len(h.model.rows[index.TransferType]))},
			{Name: index.StatPackets, Value: uint64(len(h.model.rows[index.PacketType]))},
		})
		for _, q := range []index.DayQuery{{}, {DaysBack: new(int32(1))}, {DaysBack: new(int32(2))},
			{SourceChain: someChains[0]}, {SourceChain: someChains[1], DestinationChain: someChains[2]}} {
			transfers, packets := h.model.routeDays(index.TransferType, "transfer_send_timestamp", q),
				h.model.routeDays(index.PacketType, "packet_send_timestamp", q)
			got, err := s.TransfersByChain(ctx, q)
			h.equal("transfers by chain", err, got, transfers)
			got, err = s.PacketsByChain(ctx, q)
			h.equal("packets by chain", err, got, packets)
			if q.SourceChain == "" {
				days, err := s.TransfersDaily(ctx, q)
				h.equal("transfers daily", err, days, daily(transfers))
				days, err = s.PacketsDaily(ctx, q)
				h.equal("packets daily", err, days, daily(packets))
			}
		}
		for _, q := range []index.LatencyQuery{{}, {SourceChain: someChains[0]}, {DestinationChain: someChains[1]},
			{SourceChain: someChains[2], DestinationChain: someChains[3]}} {
			l, err := s.Latency(ctx, q)
			if err != nil {
				h.t.Fatal(err)
			}
			h.near(l.PacketRecv, h.model.latency(q, "packet_recv_timestamp"))
			h.near(l.WriteAck, h.model.latency(q, "write_ack_timestamp"))
			h.near(l.PacketAck, h.model.latency(q, "packet_ack_timestamp"))
		}
	})
}

func (h *harness) equal(what string, err error, got, want any) {
	h.t.Helper()
	bothEmpty := err == nil && reflect.ValueOf(got).Len() == 0 && reflect.ValueOf(want).Len() == 0
	if err != nil || !bothEmpty && !reflect.DeepEqual(got, want) {
		h.t.Fatalf("%s: %v, %v\nwant %v", what, got, err, want)
	}
}

// near compares percentiles within the allowed error.
func (h *harness) near(got, want *index.Percentiles) {
	h.t.Helper()
	if (got == nil) != (want == nil) {
		h.t.Fatalf("percentiles %v, want %v", got, want)
	}
	if got == nil {
		return
	}
	for _, pair := range [][2]float64{{got.P5, want.P5}, {got.Median, want.Median}, {got.P95, want.P95}} {
		if math.Abs(pair[0]-pair[1]) > pair[1]*index.LatencyError*1.000001 {
			h.t.Fatalf("percentiles %v, want %v", got, want)
		}
	}
}

func refuses(t *testing.T, open OpenReplica) {
	idx, _ := open(t)
	ctx := context.Background()
	err := idx.View(ctx, func(s index.Snapshot) error {
		for _, limit := range []int32{0, -1, math.MinInt32} {
			_, err := s.Transfers(ctx, index.TransferQuery{Page: index.Page{Limit: &limit}})
			if appliance.CodeOf(err) != appliance.CodeInvalidField {
				t.Errorf("limit %d: %v", limit, err)
			}
		}
		_, err := s.Transfers(ctx, index.TransferQuery{Addresses: make([]string, index.MaxAddresses+1)})
		if appliance.CodeOf(err) != appliance.CodeInvalidField {
			t.Errorf("too many addresses: %v", err)
		}
		_, err = s.PacketsDaily(ctx, index.DayQuery{DaysBack: new(int32(0))})
		if appliance.CodeOf(err) != appliance.CodeInvalidField {
			t.Errorf("no days: %v", err)
		}
		_, err = s.Sample(ctx, index.ChainType, 1)
		if appliance.CodeOf(err) != appliance.CodeInvalidField {
			t.Errorf("a sample of chains: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	chain := must(index.NewRow(index.Chain{UniversalChainID: "union.union-1"}))
	for what, b := range map[string]index.Batch{
		"an empty row":            {Rows: make([]index.Row, 1)},
		"an empty unverified row": {Unverified: make([]index.Unverified, 1)},
		"an unverified chain":     {Unverified: []index.Unverified{{Row: chain}}},
	} {
		if _, err := idx.Write(ctx, b); appliance.CodeOf(err) != appliance.CodeInvalidField {
			t.Errorf("%s: %v", what, err)
		}
	}
}
