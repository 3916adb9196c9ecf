package indexer_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/chain/chaintest"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/indexer"
)

// TestEachPacketThatTheChainDoesNotKnowIsNamed checks a replica with forged packets. The check is interrupted and
// continues at the same packet. It reports each forged packet of the range, and no other.
func TestEachPacketThatTheChainDoesNotKnowIsNamed(t *testing.T) {
	t.Parallel()
	a, _ := newWorld(t)
	rows := sentOn(t, a, 350)
	from := a.Head(t) + 1
	later := sentOn(t, a, 50)
	want := make(map[string]bool)
	for i := 0; i < len(rows); i += 50 {
		forged := altered(t, rows[i], func(p *index.Packet) {
			p.TimeoutTimestamp = new("7")
			p.PacketHash = newParcelLike(t, *p).Hash().String()
			p.SortOrder += "x"
		})
		rows, want[forged.Key()] = append(rows, forged), true
	}
	rows = append(rows, altered(t, rows[1], func(p *index.Packet) {
		p.PacketHash, p.SourceUniversalChainID, p.SortOrder = "0x01", "union.union-1", "9"
	}))
	idx := openIndex(t)
	if _, err := idx.Write(t.Context(), index.Batch{Rows: append(rows, later...)}); err != nil {
		t.Fatal(err)
	}
	v := newVerifier(t, chainsOf(a)...)
	ctx, cancel := context.WithCancel(t.Context())
	check := indexer.ReplicaCheck{Index: idx, Chain: a.id, OnProgress: func(packets, of int64) {
		if of != 407 {
			t.Errorf("%d packets of %d", packets, of)
		}
		if packets >= 200 {
			cancel()
		}
	}}
	if _, err := v.CheckReplica(ctx, check); !errors.Is(err, context.Canceled) {
		t.Fatalf("interrupted: %v", err)
	}
	check.OnProgress = nil
	report, err := v.CheckReplica(t.Context(), check)
	if err != nil {
		t.Fatal(err)
	}
	if report.Resumed != 200 || report.Packets != 407 || report.Known != 400 || report.Unknown != len(want) ||
		report.Waiting != 0 || report.Block.Number != a.Head(t) {
		t.Errorf("the report is %+v", report)
	}
	for _, doubt := range report.Listed {
		if !want[doubt.Packet] || !strings.Contains(doubt.Reason, "does not know it") {
			t.Errorf("listed: %+v", doubt)
		}
		delete(want, doubt.Packet)
	}
	if len(want) > 0 {
		t.Errorf("not listed: %v", want)
	}
	check.Range = indexer.Range{From: from, To: from}
	if report, err = v.CheckReplica(t.Context(), check); err != nil || report.Packets != 50 || report.Known != 50 ||
		report.Resumed != 0 {
		t.Errorf("blocks from %d: %+v, %v", from, report, err)
	}
	check.Chain = "ethereum.5"
	if _, err := v.CheckReplica(t.Context(), check); appliance.CodeOf(err) != appliance.CodeNotFound {
		t.Errorf("a chain that is not configured: %v", err)
	}
}

// TestACheckWithoutRPCsSaysSoAndContinues has the RPC fail in the middle of a check.
func TestACheckWithoutRPCsSaysSoAndContinues(t *testing.T) {
	t.Parallel()
	a, _ := newWorld(t)
	idx := openIndex(t)
	if _, err := idx.Write(t.Context(), index.Batch{Rows: sentOn(t, a, 300)}); err != nil {
		t.Fatal(err)
	}
	proxy := chaintest.NewProxy(t, a.URL)
	c := chainsOf(a)[0]
	c.RPCs = []string{proxy.URL}
	check := indexer.ReplicaCheck{Index: idx, Chain: a.id, OnProgress: func(packets, _ int64) {
		if packets == 100 {
			proxy.Answer(func(chaintest.Request) *chaintest.Reply { return &chaintest.Reply{Status: 502} })
		}
	}}
	_, err := newVerifier(t, c).CheckReplica(t.Context(), check)
	if appliance.CodeOf(err) != appliance.CodeUpstreamUnavailable || !strings.Contains(err.Error(), "502") {
		t.Errorf("without RPCs: %v", err)
	}
	proxy.Answer(nil)
	report, err := newVerifier(t, c).CheckReplica(t.Context(), check)
	if err != nil || report.Known != 300 || report.Resumed != 100 {
		t.Errorf("again: %+v, %v", report, err)
	}
}

// BenchmarkVerify checks packets against a go-ethereum node in this process.
func BenchmarkVerify(b *testing.B) {
	a, _ := newWorld(b)
	var rows []index.Row
	for range 20 {
		rows = append(rows, sentOn(b, a, 300)...)
	}
	idx := openIndex(b)
	if _, err := idx.Write(b.Context(), index.Batch{Rows: rows}); err != nil {
		b.Fatal(err)
	}
	v := newVerifier(b, chainsOf(a)...)
	for b.Loop() {
		if report, err := v.CheckReplica(b.Context(), indexer.ReplicaCheck{Index: idx, Chain: a.id}); err != nil ||
			report.Known != len(rows) {
			b.Fatalf("%+v, %v", report, err)
		}
	}
	b.ReportMetric(float64(b.N*len(rows))/b.Elapsed().Seconds(), "packets/s")
}
