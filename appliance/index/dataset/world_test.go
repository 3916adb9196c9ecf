package dataset

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/index"
)

// history follows a world and checks every row that it returns.
type history struct {
	*testing.T
	world     *World
	packets   map[string]index.Packet
	rows      map[string]index.Row // all, by kind and key
	transfers map[string]int       // number of transfers by packet hash
	orders    map[string]string    // keys by kind and sort_order
	newest    map[string]string    // sort_order by kind
	late      int                  // packets below earlier ones
	updates   int                  // packets that were returned again
}

func newHistory(t *testing.T, o GenerateOptions) *history {
	t.Helper()
	h := &history{
		T: t, packets: make(map[string]index.Packet), rows: make(map[string]index.Row), transfers: make(map[string]int),
		orders: make(map[string]string), newest: make(map[string]string),
	}
	w, err := NewWorld(t.Context(), o, func(rows []index.Row) error { h.take(rows, o.Now); return nil })
	if err != nil {
		t.Fatal(err)
	}
	h.world = w
	return h
}

// advance returns the rows after checking them.
func (h *history) advance(by time.Duration, transfers int) []index.Row {
	h.Helper()
	rows, err := h.world.Advance(h.world.Now().Add(by), transfers)
	if err != nil {
		h.Fatal(err)
	}
	h.take(rows, h.world.Now())
	return rows
}

func (h *history) take(rows []index.Row, at time.Time) {
	h.Helper()
	for _, row := range rows {
		if parsed, err := index.ParseLine(row.AppendLine(nil)); err != nil ||
			!bytes.Equal(parsed.Bytes(), row.Bytes()) {
			h.Fatalf("%s: %v", row.AppendLine(nil), err)
		}
		h.takeOrder(row)
	}
	for _, p := range of[index.Packet](h, rows, index.PacketType) {
		checkPacket(h.T, p, at)
		if before, ok := h.packets[p.PacketHash]; ok {
			h.updates++
			h.checkUpdate(before, p)
		}
		h.packets[p.PacketHash] = p
	}
	for _, transfer := range of[index.Transfer](h, rows, index.TransferType) {
		checkTransfer(h.T, transfer, h.packets[transfer.PacketHash])
	}
	h.checkWhole(rows)
}

// takeOrder checks that a row keeps its sort_order and that sort_orders are unique.
func (h *history) takeOrder(row index.Row) {
	h.Helper()
	kind, order, key := row.Type().Name, row.SortOrder(), row.Key()
	before, known := h.rows[kind+key]
	if known && before.SortOrder() != order {
		h.Fatalf("%s %s was at %s, is at %s", kind, key, before.SortOrder(), order)
	}
	if other, taken := h.orders[kind+order]; taken && other != key {
		h.Fatalf("%s %s has the sort_order of %s", kind, key, other)
	}
	if !known && order < h.newest[kind] && row.Type() == index.PacketType {
		h.late++
	}
	if !known && row.Type() == index.TransferType {
		hash, _ := row.Text(index.TransferType.MustField("packet_hash").Number)
		h.transfers[hash]++
	}
	h.rows[kind+key], h.orders[kind+order], h.newest[kind] = row, key, max(order, h.newest[kind])
}

// checkUpdate checks that a packet has only progressed.
func (h *history) checkUpdate(before, after index.Packet) {
	h.Helper()
	if ended(before) {
		h.Fatalf("%s has ended and was handed out again", before.PacketHash)
	}
	if *before.Data != *after.Data || !before.SendTimestamp.Equal(*after.SendTimestamp) {
		h.Fatalf("%s is another packet now", before.PacketHash)
	}
	for i, trace := range before.Traces {
		if trace.Timestamp != nil &&
			(!trace.Timestamp.Equal(*after.Traces[i].Timestamp) || *trace.EventIndex != *after.Traces[i].EventIndex) {
			h.Fatalf("trace %d of %s has happened otherwise", i, before.PacketHash)
		}
	}
	if happened(after) <= happened(before) && *after.Status != index.StatusTimeout {
		h.Fatalf("nothing has happened to %s", before.PacketHash)
	}
}

// checkWhole checks that each packet comes with all of its transfers, and no transfer without its packet.
func (h *history) checkWhole(rows []index.Row) {
	h.Helper()
	came := make(map[string]int)
	for _, transfer := range of[index.Transfer](h, rows, index.TransferType) {
		came[transfer.PacketHash]++
	}
	for _, p := range of[index.Packet](h, rows, index.PacketType) {
		if came[p.PacketHash] != h.transfers[p.PacketHash] {
			h.Fatalf("%s came with %d of %d transfers", p.PacketHash, came[p.PacketHash], h.transfers[p.PacketHash])
		}
		delete(came, p.PacketHash)
	}
	if len(came) > 0 {
		h.Fatalf("transfers without their packets: %v", came)
	}
}

func happened(p index.Packet) (n int) {
	for _, trace := range p.Traces {
		if trace.Timestamp != nil {
			n++
		}
	}
	return n
}

func ended(p index.Packet) bool {
	return *p.Status == index.StatusTimeout || *p.Status == index.TracePacketAck
}

func count(rows []index.Row, kind *index.Type) (n int) {
	for _, row := range rows {
		if row.Type() == kind {
			n++
		}
	}
	return n
}

func TestAWorldGoesOnUntilItsPacketsEnd(t *testing.T) {
	h := newHistory(t, GenerateOptions{Transfers: 500, Seed: 1, Now: now, BatchRows: 100})
	if got := len(of[index.Transfer](t, slices.Collect(maps.Values(h.rows)), index.TransferType)); got != 500 {
		t.Fatalf("it began with %d transfers", got)
	}
	transfers := 500
	for range 20 {
		h.advance(time.Minute, 50)
		transfers += 50
	}
	if got := count(slices.Collect(maps.Values(h.rows)), index.TransferType); got < transfers || got > transfers+3 {
		t.Errorf("%d transfers, want about %d", got, transfers)
	}
	if h.late > 0 {
		t.Errorf("%d packets came late", h.late)
	}
	if h.updates < 300 {
		t.Errorf("only %d packets were handed out again", h.updates)
	}
	h.advance(26*time.Hour, 0)
	if n := h.world.UnderWay(); n != 0 {
		t.Errorf("%d packets are still under way", n)
	}
	stages := make(map[string]int)
	for _, p := range h.packets {
		stages[*p.Status]++
	}
	if acknowledged := stages[index.TracePacketAck]; acknowledged < len(h.packets)*97/100 ||
		acknowledged == len(h.packets) {
		t.Errorf("few or all have ended: %v", stages)
	}
	if rows := h.advance(time.Second, 0); len(rows) != 0 {
		t.Errorf("%d rows came when nothing happened", len(rows))
	}
}

func TestPacketsOfAWorldTimeOut(t *testing.T) {
	h := newHistory(t, GenerateOptions{Transfers: 20, Seed: 2, Now: now})
	h.advance(time.Minute, 1000)
	before := h.updates
	h.advance(26*time.Hour, 0)
	timedOut := 0
	for _, p := range h.packets {
		if *p.Status == index.StatusTimeout && p.SendTimestamp.After(now) {
			timedOut++
			if sent := *p.SendTimestamp; p.PacketTimeoutTimestamp.Before(sent.Add(24 * time.Hour)) {
				t.Errorf("%s timed out too early", p.PacketHash)
			}
		}
	}
	if timedOut == 0 || h.updates == before {
		t.Errorf("%d packets timed out, %d were handed out again", timedOut, h.updates-before)
	}
}

func TestLatePacketsComeBelowOthers(t *testing.T) {
	h := newHistory(t, GenerateOptions{Transfers: 50, Seed: 3, Now: now})
	packets := func() int { return count(slices.Collect(maps.Values(h.rows)), index.PacketType) }

	h.world.Late(3, 0)
	h.advance(time.Minute, 40)
	if h.late != 0 {
		t.Fatalf("%d packets came late already", h.late)
	}
	before := packets()
	h.advance(time.Second, 0)
	if h.late != 3 || packets() != before+3 {
		t.Errorf("%d packets came late, %d packets in all; want 3", h.late, packets()-before)
	}

	h.world.Late(2, time.Hour)
	h.advance(time.Minute, 40)
	h.advance(30*time.Minute, 40)
	if h.late != 3 {
		t.Errorf("%d packets came before their time", h.late-3)
	}
	h.advance(31*time.Minute, 0)
	if h.late != 5 {
		t.Errorf("%d packets came late, want 5", h.late)
	}
}

func TestChainsOfAWorldStayFresh(t *testing.T) {
	h := newHistory(t, GenerateOptions{Transfers: 10, Seed: 4, Now: now})
	chains := make(map[string]index.Chain)
	for _, c := range of[index.Chain](t, slices.Collect(maps.Values(h.rows)), index.ChainType) {
		chains[c.UniversalChainID] = c
	}
	refreshed, clients := 0, 0
	for range 20 {
		rows := h.advance(10*time.Second, 1)
		for _, c := range of[index.Chain](t, rows, index.ChainType) {
			refreshed++
			before := chains[c.UniversalChainID].Status
			if !c.Status.Timestamp.After(*before.Timestamp) || *c.Status.Height < *before.Height ||
				h.world.Now().Sub(*c.Status.Timestamp) > time.Minute {
				t.Errorf("%s went from %s to %s", c.UniversalChainID, before.Timestamp, c.Status.Timestamp)
			}
			chains[c.UniversalChainID] = c
		}
		clients += count(rows, index.ClientType)
	}
	if want := 6 * len(chains); refreshed != want || clients == 0 {
		t.Errorf("chains came %d times, want %d; clients %d times", refreshed, want, clients)
	}
}

func TestAWorldIsDeterministic(t *testing.T) {
	text := func(seed uint64) string {
		var b []byte
		add := func(rows []index.Row) error {
			for _, row := range rows {
				b = append(row.AppendLine(b), '\n')
			}
			return nil
		}
		w, err := NewWorld(t.Context(), GenerateOptions{Transfers: 100, Seed: seed, Now: now}, add)
		if err != nil {
			t.Fatal(err)
		}
		w.Late(2, 0)
		for i := range 30 {
			rows, err := w.Advance(now.Add(time.Duration(i)*20*time.Second), 7)
			if err != nil {
				t.Fatal(err)
			}
			add(rows)
		}
		return string(b)
	}
	first := text(1)
	if first != text(1) {
		t.Error("the same seed gives different rows")
	}
	if first == text(2) {
		t.Error("another seed gives the same rows")
	}
}

func TestAWorldsClockNeverGoesBack(t *testing.T) {
	h := newHistory(t, GenerateOptions{Transfers: 10, Seed: 5, Now: now})
	h.advance(-time.Hour, 20)
	if !h.world.Now().Equal(now) || h.late > 0 {
		t.Errorf("the clock stands at %s, and %d packets came late", h.world.Now(), h.late)
	}
}

// At a steady rate, the number of packets in progress stays bounded.
func TestAWorldForgetsWhatHasEnded(t *testing.T) {
	w, err := NewWorld(t.Context(), GenerateOptions{Transfers: 10, Seed: 6, Now: now}, func([]index.Row) error {
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	most := 0
	for i := range 300 {
		if _, err := w.Advance(now.Add(time.Duration(i)*time.Minute), 10); err != nil {
			t.Fatal(err)
		}
		if i == 100 { // all journeys are shorter than that, except for timeouts
			most = w.UnderWay()
		}
	}
	if n := w.UnderWay(); n == 0 || n > 2*most {
		t.Errorf("%d packets under way, earlier %d", n, most)
	}
}

func TestASinkWritesToAnIndex(t *testing.T) {
	var index written
	if err := Generate(t.Context(), GenerateOptions{Transfers: 30, Seed: 7, Now: now, BatchRows: 20},
		Sink(t.Context(), &index)); err != nil {
		t.Fatal(err)
	}
	if want := len(generate(t, GenerateOptions{Transfers: 30, Seed: 7, Now: now})); index.rows != want {
		t.Errorf("%d rows written, want %d", index.rows, want)
	}
}

// written is an index that only counts.
type written struct {
	index.Index
	rows int
}

func (w *written) Write(_ context.Context, b index.Batch) (index.Written, error) {
	w.rows += len(b.Rows)
	return index.Written{Inserted: len(b.Rows)}, nil
}
