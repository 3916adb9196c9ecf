package bench

import (
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
)

// results are the rows of the tables.
type results []row

// Markers of a part of docs/performance.md that is generated from a file of results in the same folder.
const (
	pageBegin = "<!-- made from %s by `make bench-page`: begin -->\n"
	pageEnd   = "<!-- end -->\n"
)

// fillPage replaces the tables of a file of results in the text of the page.
func fillPage(text, results, tables string) (string, error) {
	begin := fmt.Sprintf(pageBegin, results)
	head, rest, found := strings.Cut(text, begin)
	_, tail, ended := strings.Cut(rest, pageEnd)
	if !found || !ended {
		return "", fmt.Errorf("the page has no %q and %q", begin, pageEnd)
	}
	return head + begin + tables + pageEnd + tail, nil
}

func writePage(path, results, tables string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	page, err := fillPage(string(text), results, tables)
	if err != nil {
		return err
	}
	return os.WriteFile(path, []byte(page), 0o644)
}

func (all results) tables() string {
	var t strings.Builder
	all.fast(&t)
	all.peers(&t)
	all.soft(&t)
	all.scaling(&t)
	all.aims(&t)
	return t.String()
}

// get returns the row of a measurement on all cores, or a zero row.
func (all results) get(system, hsm string, latency float64, connections int) row {
	return all.on(all.cores(), system, hsm, latency, connections)
}

func (all results) on(cores int, system, hsm string, latency float64, connections int) row {
	for _, r := range all {
		if r.System == system && r.HSM == hsm && r.Latency == latency && r.Connections == connections &&
			r.Cores == cores {
			return r
		}
	}
	return row{}
}

// cores is the number of the machine's cores.
func (all results) cores() (n int) {
	for _, r := range all {
		n = max(n, r.Cores)
	}
	return n
}

// each returns the sorted distinct values of a column.
func each[T int | float64 | string](all results, of func(row) T, where func(row) bool) []T {
	values := make(map[T]bool)
	for _, r := range all {
		if where(r) {
			values[of(r)] = true
		}
	}
	return slices.Sorted(maps.Keys(values))
}

func (all results) fast(t *strings.Builder) {
	t.WriteString("\n**A fast HSM**, all cores:\n\n" +
		"| `C_Sign` takes | connections | the module gives C, Go | before | attestd | of what Go gets | p50, p99 | CPU each, before | CPU each: daemon + worker, `C_Sign` of it | the clients' CPU |\n" +
		"| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	isFast := func(r row) bool { return r.System == now && r.HSM == fastHSM && r.Cores == all.cores() }
	for _, latency := range each(all, func(r row) float64 { return r.Latency }, isFast) {
		for _, n := range each(all, func(r row) int { return r.Connections }, isFast) {
			c, g := all.get(inC, fastHSM, latency, n), all.get(inGo, fastHSM, latency, n)
			if g.PerSecond == 0 { // measured only for the table of cores
				continue
			}
			old, r := all.get(before, fastHSM, latency, n), all.get(now, fastHSM, latency, n)
			fmt.Fprintf(t, "| %g ms | %s | %s, %s | %s | **%s** | %.2f | %s | %s | %s | %.0f µs |\n", latency,
				thousands(float64(n)), thousands(c.PerSecond), thousands(g.PerSecond),
				old.speed(), thousands(r.PerSecond), r.PerSecond/g.PerSecond, r.waits(), old.cpu(), r.cpu(), r.Clients)
		}
	}
}

func (all results) soft(t *strings.Builder) {
	t.WriteString("\n**SoftHSM**, all cores, which its signatures take:\n\n" +
		"| connections | `C_Sign` gives C, Go | before | attestd | of what C gets | p50, p99 | CPU of a raw signature | CPU each, before | CPU each: daemon + worker | of a raw signature's |\n" +
		"| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	isSoft := func(r row) bool { return r.System == now && r.HSM == softHSM && r.Cores == all.cores() }
	for _, n := range each(all, func(r row) int { return r.Connections }, isSoft) {
		c, g := all.get(inC, softHSM, 0, n), all.get(inGo, softHSM, 0, n)
		old, r := all.get(before, softHSM, 0, n), all.get(now, softHSM, 0, n)
		fmt.Fprintf(t, "| %d | %s, %s | %s | **%s** | %.2f | %s | %.0f µs | %s | %s | %.2f |\n", n,
			thousands(c.PerSecond), thousands(g.PerSecond), old.speed(),
			thousands(r.PerSecond), r.PerSecond/c.PerSecond, r.waits(), c.Sign, old.cpu(), r.cpu(),
			(r.Daemon+r.Worker)/c.Sign)
	}
}

func (all results) peers(t *strings.Builder) {
	t.WriteString("\n**Against the peer**, with the fast HSM at 0 ms:\n\n" +
		"| connections | attestd: synced, under a signed checkpoint | Tessera, under a signed checkpoint | our rate is | our CPU is | Tessera, sequenced only | our rate is | our CPU is |\n" +
		"| --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, n := range each(all, func(r row) int {
		return r.Connections
	}, func(r row) bool { return r.System == integrated }) {
		r, whole, early := all.get(now, fastHSM, 0, n), all.get(integrated, "", 0, n), all.get(sequenced, "", 0, n)
		cpu := r.Daemon + r.Worker
		fmt.Fprintf(t, "| %s | **%s**, %.0f µs | %s, %.0f µs | %.1f | %.2f | %s, %.0f µs | %.2f | %.2f |\n",
			thousands(float64(n)), thousands(r.PerSecond), cpu,
			thousands(whole.PerSecond), whole.Daemon, r.PerSecond/whole.PerSecond, cpu/whole.Daemon,
			thousands(early.PerSecond), early.Daemon, r.PerSecond/early.PerSecond, cpu/early.Daemon)
	}
}

// aims writes the table of this project's aims and the measured values.
func (all results) aims(t *strings.Builder) {
	t.WriteString("\n**Aims** on four cores:\n\n| | aim | measured |\n| --- | --- | --- |\n")
	aim := func(what, aim, format string, value float64) {
		if !math.IsNaN(value) && !math.IsInf(value, 0) && value != 0 {
			fmt.Fprintf(t, "| %s | %s | "+format+" |\n", what, aim, value)
		}
	}
	at := func(system string, latency float64, n int) row { return all.get(system, fastHSM, latency, n) }
	aim("5 ms, 64 connections: of what the module gives Go", "at least 0.85", "%.2f",
		at(now, 5, 64).PerSecond/at(inGo, 5, 64).PerSecond)
	aim("1 ms, 64 connections: of what the module gives Go", "at least 0.8", "%.2f",
		at(now, 1, 64).PerSecond/at(inGo, 1, 64).PerSecond)
	aim("0 ms, 256 connections: a second", "at least 30,000", "%.0f", at(now, 0, 256).PerSecond)
	r := at(now, 0, 256)
	aim("0 ms, 256 connections: CPU beside `C_Sign`", "at most 80 µs", "%.0f µs", r.Daemon+r.Worker-r.Sign)
	aim("0 ms, 64 connections: p99", "below 5 ms", "%.1f ms", at(now, 0, 64).P99/1000)
	aim("0 ms, one connection: p50", "0.35 ms", "%.2f ms", at(now, 0, 1).P50/1000)
	whole, early := all.get(integrated, "", 0, 256), all.get(sequenced, "", 0, 256)
	aim("256 connections: of Tessera's rate when it answers at the sequencing", "at least 1", "%.2f",
		r.PerSecond/early.PerSecond)
	aim("256 connections: of Tessera's CPU when it answers under a checkpoint", "at most 1", "%.2f",
		(r.Daemon+r.Worker)/whole.Daemon)
	soft, c := all.get(now, softHSM, 0, 64), all.get(inC, softHSM, 0, 64)
	aim("SoftHSM, 64 connections: of raw `C_Sign`", "at least 0.85", "%.2f", soft.PerSecond/c.PerSecond)
	aim("SoftHSM, 64 connections: CPU of a raw signature's", "at most 1.2", "%.2f", (soft.Daemon+soft.Worker)/c.Sign)
}

// speed formats the rate. It is empty without a measurement.
func (r row) speed() string {
	if r.PerSecond == 0 {
		return ""
	}
	return thousands(r.PerSecond)
}

func (r row) waits() string {
	digits := func(micros float64) string {
		return strconv.FormatFloat(micros/1000, 'f', 2-min(2, int(math.Log10(max(1, micros/1000)))), 64)
	}
	return digits(r.P50) + ", " + digits(r.P99) + " ms"
}

func (r row) cpu() string {
	switch {
	case r.Daemon == 0:
		return ""
	case r.Sign == 0:
		return fmt.Sprintf("%.0f + %.0f µs", r.Daemon, r.Worker)
	}
	return fmt.Sprintf("%.0f + %.0f µs, %.0f", r.Daemon, r.Worker, r.Sign)
}

// thousands writes a whole number with commas.
func thousands(n float64) string {
	digits := strconv.FormatFloat(n, 'f', 0, 64)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
