package dataset

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/zkgm"
)

var now = time.Date(2026, 5, 20, 12, 0, 0, 0, time.UTC)

func generate(t testing.TB, o GenerateOptions) []index.Row {
	t.Helper()
	var all []index.Row
	if err := Generate(context.Background(), o, func(rows []index.Row) error {
		all = append(all, rows...)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

func of[T any](t testing.TB, rows []index.Row, kind *index.Type) []T {
	t.Helper()
	var list []T
	for _, row := range rows {
		if row.Type() == kind {
			var value T
			if err := row.Decode(&value); err != nil {
				t.Fatal(err)
			}
			list = append(list, value)
		}
	}
	return list
}

func TestGenerateIsDeterministic(t *testing.T) {
	text := func(seed uint64, batch int) string {
		var b []byte
		for _, row := range generate(t, GenerateOptions{Transfers: 300, Seed: seed, Now: now, BatchRows: batch}) {
			b = append(row.AppendLine(b), '\n')
		}
		return string(b)
	}
	if text(1, 0) != text(1, 17) {
		t.Error("the same seed gives different rows")
	}
	if text(1, 0) == text(2, 0) {
		t.Error("another seed gives the same rows")
	}
}

// Generated rows must not change, because benchmarks are comparable only on the same data. The seed includes a packet
// with a timeout less than an hour before now, which is not marked as timed out yet.
func TestGeneratedRowsStayAsTheyWere(t *testing.T) {
	digest := sha256.New()
	for _, row := range generate(t, GenerateOptions{Transfers: 2000, Seed: 18, Now: now}) {
		digest.Write(row.AppendLine(nil))
	}
	if got := hex.EncodeToString(
		digest.Sum(nil)); got != "302de65a213690c6048e27b9e42b3ee37a66e2f155acc15abc1c6014e894ee98" {
		t.Errorf("the rows are others: %s", got)
	}
}

func TestGeneratedRows(t *testing.T) {
	for _, n := range []int{1, 7, 3000} {
		rows := generate(t, GenerateOptions{Transfers: n, Seed: 3, Now: now})
		transfers := of[index.Transfer](t, rows, index.TransferType)
		packets := of[index.Packet](t, rows, index.PacketType)
		if len(transfers) != n {
			t.Fatalf("%d transfers, want %d", len(transfers), n)
		}
		byHash := make(map[string]index.Packet)
		statuses := make(map[string]int)
		for _, p := range packets {
			byHash[p.PacketHash] = p
			statuses[*p.Status]++
			checkPacket(t, p, now)
		}
		for _, transfer := range transfers {
			checkTransfer(t, transfer, byHash[transfer.PacketHash])
		}
		if n == 3000 && (len(statuses) < 7 || statuses[index.StatusTimeout] == 0) {
			t.Errorf("few stages: %v", statuses)
		}
		checkOrders(t, rows)
	}
}

// checkPacket checks a packet, in its state at a time, against recomputed values.
func checkPacket(t *testing.T, p index.Packet, at time.Time) {
	t.Helper()
	data, err := hex.DecodeString((*p.Data)[2:])
	if err != nil {
		t.Fatal(err)
	}
	timeout, err := strconv.ParseUint(*p.TimeoutTimestamp, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	hash := zkgm.PacketHash(uint32(*p.SourceChannelID), uint32(*p.DestinationChannelID), data, 0, timeout)
	if hexText(hash[:]) != p.PacketHash {
		t.Fatalf("hash %s, recomputed %x", p.PacketHash, hash)
	}
	last, ended := "", false
	for i, trace := range p.Traces {
		happened := trace.Timestamp != nil
		if happened &&
			(ended || i > 0 && trace.Timestamp.Before(*p.Traces[i-1].Timestamp) || trace.Timestamp.After(at)) {
			t.Fatalf("trace %d of %s is out of order", i, p.PacketHash)
		}
		if happened != (trace.Height != nil) || happened != (trace.TransactionHash != nil) {
			t.Fatalf("trace %d of %s has half happened", i, p.PacketHash)
		}
		if happened {
			last = trace.Type
		}
		ended = !happened
	}
	if *p.Status != last && *p.Status != index.StatusTimeout {
		t.Fatalf("status %s of %s, but its last trace is %s", *p.Status, p.PacketHash, last)
	}
}

func checkTransfer(t *testing.T, transfer index.Transfer, p index.Packet) {
	t.Helper()
	data, _ := hex.DecodeString((*p.Data)[2:])
	decoded, err := zkgm.Decode(data)
	if err != nil {
		t.Fatal(err)
	}
	switch o := decoded.Instruction.Orders()[transfer.TransferIndex].(type) {
	case *zkgm.TokenOrderV1:
		if hexText(o.Sender) != *transfer.SenderZkgm || o.BaseAmount.String() != *transfer.BaseAmount {
			t.Fatalf("transfer %s/%d is not its order", transfer.PacketHash, transfer.TransferIndex)
		}
	case *zkgm.TokenOrderV2:
		if hexText(o.Receiver) != *transfer.ReceiverZkgm || o.QuoteAmount.String() != *transfer.QuoteAmount {
			t.Fatalf("transfer %s/%d is not its order", transfer.PacketHash, transfer.TransferIndex)
		}
	}
	for _, form := range [][2]string{{*transfer.SenderDisplay, *transfer.SenderCanonical},
		{*transfer.ReceiverDisplay, *transfer.ReceiverCanonical}} {
		if !strings.HasPrefix(form[0], "0x") && hexText(bech32Bytes(form[0])) != form[1] {
			t.Fatalf("%s is not %s", form[0], form[1])
		}
	}
	if *transfer.Status != *p.Status {
		t.Fatalf("status %s, of the packet %s", *transfer.Status, *p.Status)
	}
}

func checkOrders(t *testing.T, rows []index.Row) {
	t.Helper()
	last := make(map[string]string)
	for _, row := range rows {
		if kind := row.Type().Name; kind == "transfer" || kind == "packet" {
			if order := row.SortOrder(); order <= last[kind] {
				t.Fatalf("sort_order %s of a %s follows %s", order, kind, last[kind])
			}
			last[kind] = row.SortOrder()
		}
	}
}

func TestAWorldMayHaveFewChains(t *testing.T) {
	for chains, want := range map[int]int{0: 14, 1: 2, 2: 2, 4: 4, 99: 14} {
		rows := generate(t, GenerateOptions{Transfers: 50, Seed: 1, Now: now, Chains: chains})
		if got := len(of[index.Chain](t, rows, index.ChainType)); got != want {
			t.Errorf("%d chains, want %d", got, want)
		}
		if got := len(of[index.Transfer](t, rows, index.TransferType)); got != 50 {
			t.Errorf("%d transfers", got)
		}
	}
}

// A row that is encoded, written as a line and read again is equal, and so is one that is decoded with the types' own
// tags.
func TestRowsSurvive(t *testing.T) {
	for _, row := range generate(t, GenerateOptions{Transfers: 200, Seed: 5, Now: now}) {
		line := row.AppendLine(nil)
		parsed, err := index.ParseLine(line)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if !bytes.Equal(parsed.Bytes(), row.Bytes()) {
			t.Fatalf("%s is read as %s", line, parsed.AppendLine(nil))
		}
		var members map[string]any
		if err := json.Unmarshal(line, &members); err != nil {
			t.Fatal(err)
		}
	}
}
