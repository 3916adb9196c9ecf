package bench

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"slices"
	"strings"
)

// scaleRun is the result of BenchmarkScale for a number of transfers.
type scaleRun struct {
	Transfers int      `json:"transfers"`
	Cores     int      `json:"cores"`
	Fill      []filled `json:"fill"`
	Reads     []readAt `json:"reads"`
	Follow    followed `json:"follow"`
}

// filled is one line of the table of filling.
type filled struct {
	Transfers int     `json:"transfers"` // in the replica at that time
	PerSecond float64 `json:"perSecond"` // transfers, since the previous line
	Rows      float64 `json:"rowsPerSecond"`
	Bytes     float64 `json:"bytes"`   // of the file
	Anonymous float64 `json:"rssAnon"` // peak of the importing process, in bytes
}

// readAt is a read of a replica of one size. Times are in microseconds.
type readAt struct {
	Query     string  `json:"query"`
	Transfers int     `json:"transfers"`
	PerSecond float64 `json:"perSecond"`
	CPU       float64 `json:"cpu"`
	P50       float64 `json:"p50"`
	P99       float64 `json:"p99"`
	Ratio     float64 `json:"ratio"`   // rate of the smallest replica divided by this one, median of the rounds
	Anonymous float64 `json:"rssAnon"` // of the daemon, after it
}

// followed is the delay from a write upstream until the new transfer is read. Times are in seconds.
type followed struct {
	PerSecond int     `json:"perSecond"`
	New       int     `json:"new"`
	P50       float64 `json:"p50"`
	P99       float64 `json:"p99"`
	Most      float64 `json:"most"`
	InStep    float64 `json:"inStep"`  // from the start of the daemon until it was in step
	Anonymous float64 `json:"rssAnon"` // peak of the daemon, in bytes
}

// scaleRuns are all results, the smallest first.
type scaleRuns []scaleRun

// keepScale adds runs to a file of results, where they replace earlier runs of the same number of transfers. It returns
// all runs.
func keepScale(path string, runs []scaleRun) (scaleRuns, error) {
	all, err := kept[scaleRuns](path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) || len(runs) == 0 {
		return all, err
	}
	for _, r := range runs {
		all = append(slices.DeleteFunc(all, func(old scaleRun) bool {
			return old.Transfers == r.Transfers
		}), r.rounded())
	}
	slices.SortFunc(all, func(a, b scaleRun) int { return cmp.Compare(a.Transfers, b.Transfers) })
	text, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return nil, err
	}
	return all, os.WriteFile(path, append(text, '\n'), 0o644)
}

// rounded rounds to the significant digits.
func (r scaleRun) rounded() scaleRun {
	round := func(digits float64, values ...*float64) {
		for _, v := range values {
			*v = math.Round(*v*digits) / digits
		}
	}
	for i := range r.Fill {
		round(1, &r.Fill[i].PerSecond, &r.Fill[i].Rows)
	}
	for i := range r.Reads {
		l := &r.Reads[i]
		round(1, &l.PerSecond, &l.CPU, &l.P50, &l.P99)
		round(100, &l.Ratio)
	}
	round(100, &r.Follow.P50, &r.Follow.P99, &r.Follow.Most, &r.Follow.InStep)
	return r
}

// The aims for a growing replica.
const (
	aimBytesEach  = 1200   // of the file, for a transfer with its packet, traces and index entries
	aimMillion    = 15_000 // transfers per second at the first million
	aimTenMillion = 8000   // at ten million
	aimSlower     = 2      // cost of a row in the last line, relative to the first
	aimScaleRatio = 1.3    // of the reads
	aimAnonymous  = 500e6  // bytes
	aimMillionAt  = 1_000_000
)

func (all scaleRuns) tables() string {
	var t strings.Builder
	for _, r := range all {
		t.WriteString(r.tables())
	}
	return t.String()
}

func (r scaleRun) tables() string {
	var t strings.Builder
	n := thousands(float64(r.Transfers))
	fmt.Fprintf(&t,
		"\n**Filling %s transfers**, on %d cores, one of which makes the rows:\n\n| transfers | a second | rows a second | file | for each transfer | RssAnon |\n| --- | --- | --- | --- | --- | --- |\n", n, r.Cores)
	for _, l := range r.Fill {
		fmt.Fprintf(&t, "| %s | %s | %s | %s MB | %s bytes | %.0f MB |\n", thousands(float64(l.Transfers)),
			thousands(l.PerSecond), thousands(l.Rows), thousands(l.Bytes/1e6),
			thousands(l.Bytes/float64(l.Transfers)), l.Anonymous/1e6)
	}
	fmt.Fprintf(&t,
		"\n**Reading from %s transfers**, %d connections, in turns with smaller replicas:\n\n| | transfers | a second | CPU each | p50, p99 | the smallest answers |\n| --- | --- | --- | --- | --- | --- |\n", n, readConnections)
	for _, l := range r.Reads {
		fmt.Fprintf(&t, "| %s | %s | %s | %.0f µs | %.2f, %.2f ms | %.2f times as many |\n", l.Query,
			thousands(float64(l.Transfers)), thousands(l.PerSecond), l.CPU, l.P50/1000, l.P99/1000, l.Ratio)
	}
	f := r.Follow
	fmt.Fprintf(&t,
		"\n**Following into %s transfers** at %s new ones a second: read after %.2f s (p50), %.2f s (p99), at most %.2f s, of %s; RssAnon at most %.0f MB.\n",
		n, thousands(float64(f.PerSecond)), f.P50, f.P99, f.Most, thousands(float64(f.New)), f.Anonymous/1e6)
	return t.String() + r.aims()
}

// aims writes the table of this project's aims and the measured values.
func (r scaleRun) aims() string {
	var t strings.Builder
	fmt.Fprintf(&t, "\n| aims, %s transfers | aim | measured |\n| --- | --- | --- |\n", thousands(float64(r.Transfers)))
	first, last := r.Fill[0], r.Fill[len(r.Fill)-1]
	most := max(last.Anonymous, r.Follow.Anonymous)
	for _, l := range r.Fill {
		if l.Transfers == aimMillionAt {
			fmt.Fprintf(&t, "| filling at a million, transfers a second | at least %s | %s |\n", thousands(aimMillion),
				thousands(l.PerSecond))
		}
		most = max(most, l.Anonymous)
	}
	if r.Transfers >= 10*aimMillionAt {
		fmt.Fprintf(&t, "| filling at the end, transfers a second | at least %s | %s |\n", thousands(aimTenMillion),
			thousands(last.PerSecond))
	}
	worst := 0.0
	for _, l := range r.Reads {
		worst, most = max(worst, l.Ratio), max(most, l.Anonymous)
	}
	fmt.Fprintf(&t, "| a row's cost at the end, of that at the beginning | at most %d | %.2f |\n", aimSlower,
		first.Rows/last.Rows)
	fmt.Fprintf(&t, "| bytes of file for each transfer | at most %s | %s |\n", thousands(aimBytesEach),
		thousands(last.Bytes/float64(last.Transfers)))
	fmt.Fprintf(&t, "| the reads' worst ratio | at most %.1f | %.2f |\n", aimScaleRatio, worst)
	fmt.Fprintf(&t, "| RssAnon of any process | below %.0f MB | %.0f MB |\n", aimAnonymous/1e6, most/1e6)
	return t.String()
}
