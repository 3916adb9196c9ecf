package bench

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"runtime"
	"slices"
)

// row is one line of the results. Times are in microseconds except for Latency. CPU is per attestation.
type row struct {
	System      string  `json:"system"`
	HSM         string  `json:"hsm,omitempty"`
	Latency     float64 `json:"latencyMillis"` // of C_Sign
	Connections int     `json:"connections"`   // or sessions, or callers
	Cores       int     `json:"cores"`         // of the system; the clients share them if the machine has no more
	PerSecond   float64 `json:"perSecond"`
	Slowest     float64 `json:"slowest"` // per second, of the rounds
	Fastest     float64 `json:"fastest"`
	P50         float64 `json:"p50,omitzero"`
	P99         float64 `json:"p99,omitzero"`
	Daemon      float64 `json:"cpuDaemon,omitzero"`
	Worker      float64 `json:"cpuWorker,omitzero"`
	Sign        float64 `json:"cpuSign,omitzero"`    // share of C_Sign in the worker's
	Clients     float64 `json:"cpuClients,omitzero"` // of the load generator
	Others      float64 `json:"others,omitzero"`     // share of all cores that other processes and the kernel used
}

// take sets the clients' results, and the CPU that the processes of the system used, in microseconds.
func (r *row) take(f loaded, daemon, worker float64) {
	n := float64(f.answers)
	r.PerSecond, r.P50, r.P99, r.Clients = f.perSecond, micros(f.p50), micros(f.p99), f.cpuMicros
	r.Daemon, r.Worker = daemon/n, worker/n
	r.Others = max(0, f.busy-daemon-worker-f.cpuMicros*n) / micros(f.elapsed) / float64(runtime.NumCPU())
}

// key identifies a measurement. A new row replaces an old one with the same key.
func (r row) key() string {
	return fmt.Sprintf("%s %s %08.3f %02d %05d", r.HSM, r.System, r.Latency, r.Cores, r.Connections)
}

// medianRow takes the median of each member separately.
func medianRow(rows []row) row {
	m := rows[0]
	for _, field := range []func(*row) *float64{
		func(r *row) *float64 {
			return &r.PerSecond
		}, func(r *row) *float64 { return &r.P50 }, func(r *row) *float64 { return &r.P99 },
		func(r *row) *float64 {
			return &r.Daemon
		}, func(r *row) *float64 { return &r.Worker }, func(r *row) *float64 { return &r.Sign },
		func(r *row) *float64 { return &r.Clients }, func(r *row) *float64 { return &r.Others },
	} {
		values := make([]float64, len(rows))
		for i := range rows {
			values[i] = *field(&rows[i])
		}
		slices.Sort(values)
		*field(&m) = values[len(values)/2]
	}
	bySpeed := func(a, b row) int { return cmp.Compare(a.PerSecond, b.PerSecond) }
	m.Slowest, m.Fastest = slices.MinFunc(rows, bySpeed).PerSecond, slices.MaxFunc(rows, bySpeed).PerSecond
	return m
}

func printHead() {
	fmt.Printf("\n%-19s %-8s %7s %5s %6s %9s %19s %10s %10s %8s %8s %8s %8s %6s\n", "", "HSM",
		"latency", "cores", "conns", "a second", "of the rounds", "p50 µs", "p99 µs",
		"daemon", "worker", "C_Sign", "clients", "others")
}

func (r row) print() {
	fmt.Printf("%-19s %-8s %5.0fms %5d %6d %9.0f %9.0f-%-9.0f %10.0f %10.0f %8.1f %8.1f %8.1f %8.1f %5.0f%%\n",
		r.System, r.HSM, r.Latency, r.Cores, r.Connections, r.PerSecond,
		r.Slowest, r.Fastest, r.P50, r.P99, r.Daemon, r.Worker, r.Sign, r.Clients, 100*r.Others)
}

// keep adds the rows to a file of results. They replace earlier rows of the same measurement. It returns all rows.
func keep(path string, rows results) (results, error) {
	all, err := kept[results](path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	fresh := make(map[string]bool)
	for _, r := range rows {
		fresh[r.key()] = true
	}
	all = append(slices.DeleteFunc(all, func(r row) bool { return fresh[r.key()] }), rows...)
	slices.SortStableFunc(all, func(a, b row) int { return cmp.Compare(a.key(), b.key()) })
	var text bytes.Buffer
	text.WriteString("[\n")
	for i, r := range all {
		all[i] = r.rounded()
		line, err := json.Marshal(all[i])
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&text, "  %s%s\n", line, map[bool]string{true: ","}[i < len(all)-1])
	}
	text.WriteString("]\n")
	return all, os.WriteFile(path, text.Bytes(), 0o644)
}

// kept reads the results of earlier runs.
func kept[T any](path string) (all T, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return all, err
	}
	return all, json.Unmarshal(text, &all)
}

// rounded rounds to the significant digits.
func (r row) rounded() row {
	for _, value := range []*float64{&r.PerSecond, &r.Slowest, &r.Fastest, &r.P50, &r.P99, &r.Daemon, &r.Worker,
		&r.Sign, &r.Clients} {
		*value = math.Round(*value*10) / 10
	}
	r.Others = math.Round(r.Others*1000) / 1000
	return r
}
