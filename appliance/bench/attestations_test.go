package bench

import (
	"flag"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Flags of BenchmarkAttestations. `make bench ARGS='-window 5s -rounds 5'` takes longer and is more precise.
var (
	benchWindow = flag.Duration("window", time.Second,
		"BenchmarkAttestations, BenchmarkScale: how long one measurement takes")
	benchRounds = flag.Int("rounds", 3,
		"BenchmarkAttestations, BenchmarkScale: measurements of each, in turns; their medians are the result")
	benchHSMs = flag.String("hsms", "0s,1ms,5ms,"+softHSM,
		"BenchmarkAttestations: latencies of C_Sign of a fast HSM, and "+softHSM)
	benchConnections = flag.String("connections", "1,64,256,1024", "BenchmarkAttestations: numbers of them")
	benchCores       = flag.String("cores", everyCores(),
		"BenchmarkAttestations: numbers of cores that the server has, in turns, to see how it grows with them")
	benchSystems = flag.String("systems", strings.Join(everySystem, ","), "BenchmarkAttestations: what is measured")
	benchProgram = flag.String("program", "",
		"BenchmarkAttestations: the attestd that is measured; empty: what this test is compiled with")
	benchBefore   = flag.String("before", "", "BenchmarkAttestations: an earlier attestd, measured in turns with it")
	benchSessions = flag.Int("before-sessions", 64,
		"BenchmarkAttestations: the sessions that the earlier attestd is told to open on a fast HSM; 0 leaves it to find out")
	benchResults = flag.String("results", "",
		"BenchmarkAttestations, BenchmarkScale: a JSON file that takes the results; others in it stay")
	benchPage = flag.String("page", "",
		"BenchmarkAttestations, BenchmarkScale: a page whose tables are made anew from that file")
)

// benchSettings are the parsed flags.
type benchSettings struct {
	window, warm time.Duration
	rounds       int
	connections  []int
	cores        int // of the server
	systems      []string
	program      string
	before       string
}

func readBenchSettings(tb testing.TB) benchSettings {
	tb.Helper()
	return benchSettings{
		window: *benchWindow, warm: *benchWindow * 3 / 10, rounds: *benchRounds, cores: runtime.NumCPU(),
		connections: listed(tb, *benchConnections, strconv.Atoi),
		systems:     split(*benchSystems), program: *benchProgram, before: *benchBefore,
	}
}

// split splits a list at commas.
func split(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}

// listed parses a list with commas.
func listed[T any](tb testing.TB, text string, read func(string) (T, error)) []T {
	tb.Helper()
	var list []T
	for _, part := range split(text) {
		value, err := read(part)
		if err != nil {
			tb.Fatalf("%q: %v", text, err)
		}
		list = append(list, value)
	}
	return list
}

func (s benchSettings) wants(name string) bool { return slices.Contains(s.systems, name) }

// BenchmarkAttestations measures whole attestations over HTTP, each synced to disk before its answer. It uses a fast
// network HSM that signs after 0, 1 and 5 ms, and SoftHSM. For comparison, it measures C_Sign in a program that only
// signs, and a peer. Compared systems alternate in one run, because the machine's speed changes. Each figure is the
// median of its rounds.
func BenchmarkAttestations(b *testing.B) {
	s := readBenchSettings(b)
	var rows []row
	for b.Loop() {
		printHead()
		for _, hsm := range split(*benchHSMs) {
			b.Run(hsm, func(b *testing.B) { rows = append(rows, s.measure(b, hsm)...) })
		}
		b.Run("cores", func(b *testing.B) {
			rows = append(rows, s.measureCores(b, listed(b, *benchCores, strconv.Atoi))...)
		})
		b.Run("journal", func(b *testing.B) { rows = append(rows, s.measureJournal(b)...) })
	}
	if *benchResults == "" {
		return
	}
	all, err := keep(*benchResults, rows)
	if err == nil && *benchPage != "" {
		err = writePage(*benchPage, "performance.json", all.tables())
	}
	if err != nil {
		b.Fatal(err)
	}
}

// measure measures with an HSM. The peer has no HSM; it is compared with an HSM of latency 0.
func (s benchSettings) measure(tb testing.TB, hsm string) (rows []row) {
	tb.Helper()
	systems, program := s.newRig(tb, hsm).systems(tb), ""
	if latency, err := time.ParseDuration(hsm); err == nil && latency == 0 &&
		(s.wants(integrated) || s.wants(sequenced)) {
		if program, err = buildPeer(tb); err != nil {
			fmt.Printf("The peer is left out: %v\n", err)
		}
	}
	for _, n := range s.connections {
		if hsm == softHSM && n > mostSoft {
			continue
		}
		peers, stop := s.startPeers(tb, program, n)
		rows = append(rows, s.inTurns(tb, slices.Concat(systems, peers), n)...)
		stop()
	}
	return rows
}

// mostSoft is the most connections for SoftHSM: more would only wait for the same CPU.
const mostSoft = 64

// measureCores measures attestd on some of the cores, with an HSM of latency 0. The clients have the other cores, if
// any.
func (s benchSettings) measureCores(tb testing.TB, cores []int) []row {
	tb.Helper()
	if !s.wants(now) {
		return nil
	}
	var systems []system
	for _, s.cores = range cores {
		systems = append(systems, s.newRig(tb, "0s").start(tb, now, s.program, 0))
	}
	return s.inTurns(tb, systems, coresConnections)
}

// coresConnections is enough to give every core work.
const coresConnections = 128

// everyCores is a list of numbers of cores: some, all but one, and all, which the clients share.
func everyCores() string {
	list := []string{}
	for n := 1; n < runtime.NumCPU()-1; n *= 2 {
		list = append(list, strconv.Itoa(n))
	}
	if all := runtime.NumCPU(); all > 1 {
		list = append(list, strconv.Itoa(all-1))
	}
	return strings.Join(append(list, strconv.Itoa(runtime.NumCPU())), ",")
}

func (s benchSettings) measureJournal(tb testing.TB) (rows []row) {
	tb.Helper()
	if !s.wants(alone) {
		return nil
	}
	journal := []system{s.journalAlone(tb)}
	for _, n := range s.connections {
		rows = append(rows, s.inTurns(tb, journal, n)...)
	}
	return rows
}

// systems starts the wanted systems that use the rig's token.
func (r rig) systems(tb testing.TB) []system {
	tb.Helper()
	var list []system
	for _, raw := range []system{{inC, r.fromC}, {inGo, r.fromGo}} {
		if r.settings.wants(raw.name) {
			list = append(list, raw)
		}
	}
	if r.settings.before != "" && r.settings.wants(before) {
		list = append(list, r.start(tb, before, r.settings.before, r.sessionsBefore()))
	}
	if r.settings.wants(now) {
		list = append(list, r.start(tb, now, r.settings.program, 0))
	}
	return list
}

// inTurns measures each system, and takes the medians of the rounds.
func (s benchSettings) inTurns(tb testing.TB, systems []system, connections int) []row {
	tb.Helper()
	measured := make([][]row, len(systems))
	for range s.rounds {
		for i, system := range systems {
			measured[i] = append(measured[i], system.measure(tb, connections))
		}
	}
	medians := make([]row, len(systems))
	for i, system := range systems {
		medians[i] = medianRow(measured[i])
		medians[i].System = system.name
		medians[i].print()
	}
	return medians
}
