package bench

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// `make bench-scale` works: a run with small replicas measures everything.
func TestDrillTheBenchmarkOfScaleMeasures(t *testing.T) {
	t.Parallel()
	daemons := newScaleDaemons(t)
	s := scale{
		transfers: 3000, middle: 1000, small: 500, each: 1500, live: time.Second, perSecond: 100,
		window: 50 * time.Millisecond, rounds: 1,
		say: t.Logf,
	}
	r := s.measure(t.Context(), t, daemons)
	if len(r.Fill) != 2 || r.Fill[0].Transfers != s.each || r.Fill[1].Transfers != s.transfers {
		t.Errorf("filled %+v, want two lines of %d", r.Fill, s.each)
	}
	for _, l := range r.Fill {
		if l.PerSecond <= 0 || math.IsInf(l.PerSecond, 1) || l.Rows < l.PerSecond ||
			l.Bytes < 500*float64(l.Transfers) || l.Anonymous <= 0 {
			t.Errorf("filled %+v: a part is missing", l)
		}
	}
	measured := make(map[string]bool)
	for _, l := range r.Reads {
		measured[fmt.Sprint(l.Query, l.Transfers)] = l.PerSecond > 0 && l.CPU >= 0 && l.P50 > 0 && l.P99 >= l.P50 &&
			l.Ratio > 0 && l.Anonymous > 0
	}
	for _, k := range readKinds {
		for _, transfers := range []int{s.small, s.middle, s.transfers} {
			if !measured[fmt.Sprint(k.name, transfers)] {
				t.Errorf("%s of %d transfers: not measured: %+v", k.name, transfers, r.Reads)
			}
		}
	}
	if f := r.Follow; f.New < 10 || f.P50 <= 0 || f.P99 < f.P50 || f.Most < f.P99 || f.Anonymous <= 0 {
		t.Errorf("followed %+v: a part is missing", f)
	}
	for _, heading := range []string{"**Filling 3,000", "**Reading from 3,000", "**Following into 3,000",
		"| bytes of file for each transfer | at most 1,200 |"} {
		if !strings.Contains(r.tables(), heading) {
			t.Errorf("no %q in\n%s", heading, r.tables())
		}
	}
}

// The large files are removed, however the benchmark ends.
func TestDrillTheBenchmarkOfScaleLeavesNothing(t *testing.T) {
	t.Parallel()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	parent, err := os.MkdirTemp("", "scale") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(parent)
	left := filepath.Join(parent, "attestd-scale", "left by one that was killed", "replica.db")
	if err := os.MkdirAll(left, 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "-test.run", "^$", "-test.bench", "^BenchmarkScale$", "-test.benchtime", "1x",
		"-transfers", "20000", "-dir", parent)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines, said := bufio.NewScanner(out), ""
	for lines.Scan() && !strings.Contains(lines.Text(), " of 20,000 transfers") {
		said += lines.Text() + "\n"
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	rest, _ := io.ReadAll(out)
	if err := cmd.Wait(); err == nil || !strings.Contains(string(rest), "interrupted") {
		t.Errorf("interrupted, it ended with %v: %s%s", err, said, rest)
	}
	if entries, err := os.ReadDir(parent); err != nil || len(entries) > 0 {
		t.Errorf("left %v, %v", entries, err)
	}
}
