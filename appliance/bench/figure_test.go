package bench

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/daemontest"
)

// figure is the result of one measurement.
type figure struct {
	perSecond float64
	cpuMicros float64 // of the process under test, for each signature or attestation
	p50, p99  time.Duration
}

// median takes the median of each member separately.
func median(figures []figure) figure {
	return figure{
		middle(figures, func(f figure) float64 { return f.perSecond }),
		middle(figures, func(f figure) float64 { return f.cpuMicros }),
		time.Duration(middle(figures, func(f figure) float64 { return float64(f.p50) })),
		time.Duration(middle(figures, func(f figure) float64 { return float64(f.p99) })),
	}
}

func middle(figures []figure, of func(figure) float64) float64 {
	values := make([]float64, len(figures))
	for i, f := range figures {
		values[i] = of(f)
	}
	slices.Sort(values)
	return values[len(values)/2]
}

// benchWhole attests for a while.
func benchWhole(b *testing.B, d *daemontest.Daemon, connections int, each time.Duration) figure {
	b.Helper()
	var cpu [2]time.Duration
	s := benchSettings{window: each, cores: runtime.NumCPU()}
	f := s.load(b, d.URL, d.Token, connections, func(edge int) { cpu[edge] = cpuTime(b, d.Cmd.Process.Pid) })
	return figure{f.perSecond, micros(cpu[1]-cpu[0]) / float64(f.answers), f.p50, f.p99}
}

// readAnswer reads one response. Any status except 200 is an error.
func readAnswer(in *bufio.Reader) error {
	status, err := in.ReadSlice('\n')
	if err != nil {
		return err
	}
	if !strings.HasPrefix(string(status), "HTTP/1.1 200 ") {
		return fmt.Errorf("answered %q", status)
	}
	length := 0
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return err
		}
		if len(line) == 2 {
			_, err := io.CopyN(io.Discard, in, int64(length))
			return err
		}
		if name, value, _ := strings.Cut(string(line), ":"); strings.EqualFold(name, "Content-Length") {
			if length, err = strconv.Atoi(strings.TrimSpace(value)); err != nil {
				return err
			}
		}
	}
}

// cpuOfProcess returns cpuTime of a process.
func cpuOfProcess(b testing.TB, pid int) func() time.Duration {
	return func() time.Duration { return cpuTime(b, pid) }
}

// cpuTime is the user and system time of a process (proc(5), stat, in ticks of 10 ms).
func cpuTime(b testing.TB, pid int) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	const utime, stime, tick = 14 - 3, 15 - 3, 10 * time.Millisecond
	var sum int
	for _, f := range []string{fields[utime], fields[stime]} {
		n, err := strconv.Atoi(f)
		if err != nil {
			b.Fatal(err)
		}
		sum += n
	}
	return time.Duration(sum) * tick
}
