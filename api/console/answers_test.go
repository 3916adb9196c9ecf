package console

import (
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/api/wire"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/health"
	"github.com/attestd/attestd/appliance/history"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/follower"
)

func TestTheThreeAnswers(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	lag := 2.5
	audited := func(damages int64) wire.JournalStatus {
		return wire.JournalStatus{Records: 1234,
			LastAudit: &wire.Audit{Time: now.Add(-5 * time.Minute), Records: 1200, Damages: damages}}
	}
	follows := func(f follower.Status) wire.ReadsStatus {
		return wire.ReadsStatus{Source: "replica", Upstream: "https://up.example",
			Replica: &wire.ReplicaStatus{Follower: &f}}
	}
	for _, c := range []struct {
		name                string
		status              wire.Status
		signs, whole, fresh string
	}{
		{"all is well", wire.Status{Signing: wire.Signing{State: wire.SigningReady}, Journal: audited(0),
			Reads: follows(follower.Status{LagSeconds: &lag})},
			"good: operational", "good: verified: 1,200 records audited 5 min ago, 34 since",
			"good: up to date: 2 s behind https://up.example"},
		{"an operator paused it",
			wire.Status{Signing: wire.Signing{State: wire.SigningPaused, Why: "upgrade", Remedy: "attestd resume"}},
			"warn: paused: upgrade: Requests for attestations get 503 and can be retried.: attestd resume",
			"warn: not verified yet", ": from the upstream"},
		{"the watchtower halted it", wire.Status{Signing: wire.Signing{State: wire.SigningHalted}}, "bad: halted",
			"warn:", ":"},
		{"the HSM is away", wire.Status{Signing: wire.Signing{State: wire.SigningFailing,
			Why: "the HSM is not available"}}, "bad: failing: the HSM is not available", "warn:", ":"},
		{"the journal is damaged", wire.Status{Journal: audited(1)}, "bad:",
			"bad: damaged: 1 fault found by the audit of 2026-01-31 11:55:00Z", ":"},
		{"the journal's disk fails", wire.Status{Failing: map[string]string{"journal": "disk I/O error"}}, "bad:",
			"bad: unknown: disk I/O error", ":"},
		{"the replica is too far behind", wire.Status{Failing: map[string]string{"replica": "10 min behind"}}, "bad:",
			"warn:", "bad: unavailable: 10 min behind: Queries are refused"},
		{"queries are off", wire.Status{Reads: wire.ReadsStatus{Source: "off"}}, "bad:", "warn:", ": not served"},
		{"rows were imported", wire.Status{Reads: wire.ReadsStatus{Source: "replica",
			Replica: &wire.ReplicaStatus{Status: index.Status{Updated: now}}}},
			"bad:", "warn:", ": imported: last changed 2026-01-31 12:00:00Z"},
		{"the chains are read", wire.Status{Reads: wire.ReadsStatus{Source: "chains"},
			Checks: []health.Finding{{Check: "indexer", State: health.OK}}}, "bad:", "warn:", "good: indexed: attestd reads"},
		{"a chain is not read", wire.Status{Reads: wire.ReadsStatus{Source: "chains"}, Checks: []health.Finding{
			{Check: "indexer", State: health.OK},
			{Check: "indexer", State: health.Warn, Detail: "ethereum.1: cannot be read"}}}, "bad:", "warn:",
			"warn: needs attention: ethereum.1: cannot be read: attestd indexer status"},
		{"the upstream fails",
			wire.Status{Reads: follows(follower.Status{Failing: true, LastError: "connection\nrefused"})}, "bad:",
			"warn:", "warn: upstream unreachable, retrying: connection\uFFFDrefused"},
		{"the backfill goes on", wire.Status{Reads: follows(follower.Status{State: follower.StateBackfill})}, "bad:",
			"warn:", "warn: incomplete: backfill"},
	} {
		got := answers(c.status, now)
		for i, want := range []string{c.signs, c.whole, c.fresh} {
			a := got[i]
			text := strings.Join([]string{a.State, a.Words, a.Detail, a.Felt, a.Command}, ": ")
			if !strings.HasPrefix(strings.ReplaceAll(text, ": : ", ": "), want) {
				t.Errorf("%s: %s %q, want %q", c.name, a.Question, text, want)
			}
			if a.State == bad && a.Felt == "" {
				t.Errorf("%s: %s is red, and does not say what clients feel", c.name, a.Question)
			}
		}
	}
}

func TestFiguresSumUpWhatTheGraphsDraw(t *testing.T) {
	t.Parallel()
	var samples []wire.Sample
	for second := range 120 {
		s := wire.Sample{Attestations: 10, Reads: 1}
		if second == 100 {
			s.P50Seconds, s.P99Seconds = new(.002), new(.25)
			s.Errors = map[appliance.Code]int64{"rate_limited": 3, "paused": 1}
			s.HSMSeconds, s.InUse = new(.003), 2
		}
		if second == 10 {
			s.InUse = 5
		}
		samples = append(samples, s)
	}
	want := map[string][2]string{
		"Attestations": {"600", "1,200"}, "Latency, median": {"2.0 ms", "2.0 ms"},
		"Latency, worst p99":        {"250.0 ms", "250.0 ms"},
		"Refusals and errors":       {"4 (rate_limited 3, paused 1)", "4 (rate_limited 3, paused 1)"},
		"Queries":                   {"60", "120"},
		"HSM latency, mean":         {"3.0 ms", "3.0 ms"},
		"HSM sessions in use, most": {"2", "5"},
	}
	for _, f := range figures(samples) {
		if got := [2]string{f.Minute, f.Window}; got != want[f.Name] {
			t.Errorf("%s: %q, want %q", f.Name, got, want[f.Name])
		}
	}
	step := history.Step{Attestations: 1234, Refusals: 2, Errors: 1, Reads: 9, Requests: 5, P50: .01, P99: .1,
		Signatures: 7, HSM: .02, Sessions: 3}
	for i, want := range []string{"2,468", "10.0 ms", "100.0 ms", "6 (refusals 4, errors 2)", "18", "20.0 ms", "3"} {
		if got := withHistory(figures(samples), []history.Step{step, {}, step})[i]; got.Window != want {
			t.Errorf("%s of the history: %q, want %q", got.Name, got.Window, want)
		}
	}
	for _, f := range figures(nil) {
		if f.Window != "0" && f.Window != "–" {
			t.Errorf("of nothing, %s: %q", f.Name, f.Window)
		}
	}
}
