package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/attestd/attestd/hsm"
)

// What one measurement gave.
type figure struct {
	perSecond float64
	cpuMicros float64 // of the process under test, for each signature or attestation
	p50, p99  time.Duration
}

// BenchmarkAttestations measures raw C_Sign calls on a token and whole attestations over HTTP with the same token, each
// synced to disk before it is answered. The two alternate in one run, because the machine's speed changes while it
// lasts; each figure is the median of its rounds. The load generator shares the cores with the server.
func BenchmarkAttestations(b *testing.B) {
	const rounds, each = 5, 2 * time.Second
	sessions, connections := []int{1, 2, 4, 8}, []int{1, 8, 64}
	d := newDaemonFolder(b)
	d.start(b)
	defer d.kill(b)
	raw, whole := make(map[int][]figure), make(map[int][]figure)
	for b.Loop() {
		for range rounds {
			for _, n := range sessions {
				raw[n] = append(raw[n], benchRaw(b, d, n, each))
			}
			for _, n := range connections {
				whole[n] = append(whole[n], benchWhole(b, d, n, each))
			}
		}
	}
	report(b, raw, whole, sessions, connections)
}

func report(b *testing.B, raw, whole map[int][]figure, sessions, connections []int) {
	var best figure
	fmt.Printf("\n%-26s %10s %10s %10s %10s\n", "", "per second", "CPU each", "p50", "p99")
	row := func(name string, f figure) {
		fmt.Printf("%-26s %10.0f %7.0f µs %10s %10s\n", name, f.perSecond, f.cpuMicros, f.p50.Round(time.Microsecond), f.p99.Round(time.Microsecond))
	}
	for _, n := range sessions {
		f := median(raw[n])
		row(fmt.Sprintf("raw C_Sign, %d sessions", n), f)
		if f.perSecond > best.perSecond {
			best = f
		}
	}
	for _, n := range connections {
		row(fmt.Sprintf("attest, %d connections", n), median(whole[n]))
	}
	full := median(whole[64])
	fmt.Printf("\nattestations a second at 64 connections: %.2f of raw C_Sign (aim: at least 0.75)\n", full.perSecond/best.perSecond)
	fmt.Printf("CPU of an attestation in the server:     %.2f of a raw signature (aim: at most 1.35)\n\n", full.cpuMicros/best.cpuMicros)
	b.ReportMetric(full.perSecond/best.perSecond, "of-raw-rate")
	b.ReportMetric(full.cpuMicros/best.cpuMicros, "of-raw-CPU")
}

// median takes each member's median by itself.
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

// benchRaw measures in a process of its own, as the server is one.
func benchRaw(b *testing.B, d *daemonProcess, sessions int, each time.Duration) figure {
	out := d.run(b, "hsm", "bench", "--sessions", strconv.Itoa(sessions), "--duration", each.String(), "--output", "json")
	var results []hsm.BenchResult
	if err := json.Unmarshal([]byte(out), &results); err != nil || len(results) != 1 {
		b.Fatalf("%v: %s", err, out)
	}
	r := results[0]
	return figure{r.PerSecond, r.CPUMicros, r.P50, r.P99}
}

// benchWhole keeps the load generator on one thread: more of them only take the cores from the server.
func benchWhole(b *testing.B, d *daemonProcess, connections int, each time.Duration) figure {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	before, start := cpuTime(b, d.cmd.Process.Pid), time.Now()
	latencies := make([][]time.Duration, connections)
	var wg sync.WaitGroup
	for i := range connections {
		wg.Go(func() { latencies[i] = attestFor(b, d, each) })
	}
	wg.Wait()
	elapsed, used := time.Since(start), cpuTime(b, d.cmd.Process.Pid)-before
	all := slices.Concat(latencies...)
	slices.Sort(all)
	if len(all) == 0 {
		b.Fatal("no attestation was answered")
	}
	return figure{
		perSecond: float64(len(all)) / elapsed.Seconds(),
		cpuMicros: float64(used.Microseconds()) / float64(len(all)),
		p50:       all[len(all)/2], p99: all[len(all)*99/100],
	}
}

// attestFor asks for one attestation after the other on one connection. It writes a request made beforehand and reads
// just what delimits the answer, since every cycle it takes is one that the server on the same cores does not get.
func attestFor(b *testing.B, d *daemonProcess, each time.Duration) (latencies []time.Duration) {
	address := strings.TrimPrefix(d.url, "http://")
	conn, err := net.Dial("tcp", address)
	if err != nil {
		b.Error(err)
		return nil
	}
	defer conn.Close()
	r := randomRequest()
	body := fmt.Sprintf(`{"unspendableAddress":"%s","beneficiary":"%s"}`, r.UnspendableAddress, r.Beneficiary)
	request := fmt.Appendf(nil, "POST /functions/v1/attest HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nX-Api-Key: %s\r\nContent-Length: %d\r\n\r\n%s",
		address, d.token, len(body), body)
	in := bufio.NewReader(conn)
	for end := time.Now().Add(each); time.Now().Before(end); {
		begin := time.Now()
		if _, err := conn.Write(request); err != nil {
			b.Error(err)
			return latencies
		}
		if err := readAnswer(in); err != nil {
			b.Error(err)
			return latencies
		}
		latencies = append(latencies, time.Since(begin))
	}
	return latencies
}

// readAnswer reads one response and requires it to be a 200.
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

// cpuTime is the user and system time that a process has used (proc(5), stat, in ticks of 10 ms).
func cpuTime(b *testing.B, pid int) time.Duration {
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
