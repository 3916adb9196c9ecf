package worker_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/secp256k1"
	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/hsmtest"
	"github.com/attestd/attestd/hsm/worker"
)

// signer is the common interface of both sides of the comparison.
type signer interface {
	Sign(context.Context, appliance.Digest) (appliance.Signature, error)
}

// inProcess checks signatures as a worker.Signer does, so that only the path to the module differs.
type inProcess struct {
	*hsm.Signer
	verifier *secp256k1.Verifier
}

func (s inProcess) Sign(ctx context.Context, d appliance.Digest) (appliance.Signature, error) {
	rs, err := s.SignUnchecked(ctx, d)
	if err != nil {
		return appliance.Signature{}, err
	}
	return s.verifier.Signature(d, rs)
}

// BenchmarkWorker compares a worker with the same module in this process, from 1 and from 64 goroutines. It alternates
// between the two within one run, because the machine's speed changes. It measures SoftHSM with the default sessions,
// and with a C_Sign that sleeps for 1 and 5 ms and 64 sessions, like a network HSM. Each value is the median of its
// rounds.
func BenchmarkWorker(b *testing.B) {
	for b.Loop() {
		fmt.Printf("\n%-8s %-11s %-10s %10s %10s %10s %10s\n", "C_Sign", "goroutines", "", "per second", "CPU each",
			"p50", "p99")
		compare(b, 2*runtime.NumCPU(), 0)
		compare(b, 64, time.Millisecond, 5*time.Millisecond)
	}
}

func compare(b *testing.B, sessions int, delays ...time.Duration) {
	const rounds, each = 9, 500 * time.Millisecond
	token, faults := hsmtest.FaultModule(b)
	options := hsm.Options{URI: token.URI, Sessions: sessions}
	direct, err := hsm.Open(b.Context(), options)
	if err != nil {
		b.Fatal(err)
	}
	defer direct.Close()
	verifier, err := secp256k1.NewVerifier(direct.PublicKey())
	if err != nil {
		b.Fatal(err)
	}
	remote, err := worker.Open(b.Context(),
		worker.Options{HSM: options, CallTimeout: time.Minute, Sandbox: testFiles()})
	if err != nil {
		b.Fatal(err)
	}
	defer remote.Close()
	status, err := remote.Status(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	for _, delay := range delays {
		faults.Set("C_Sign", hsmtest.Fault{Delay: delay})
		for _, n := range []int{1, 64} {
			var here, there []result
			for range rounds {
				here = append(here, measure(b, inProcess{direct, verifier}, 0, n, each))
				there = append(there, measure(b, remote, status.Worker, n, each))
			}
			row(delay, n, "in-process", here)
			row(delay, n, "worker", there)
		}
	}
}

type result struct {
	perSecond, cpuMicros float64
	p50, p99             time.Duration
}

func row(delay time.Duration, n int, name string, of []result) {
	middle := func(value func(result) float64) float64 {
		values := make([]float64, len(of))
		for i, r := range of {
			values[i] = value(r)
		}
		slices.Sort(values)
		return values[len(values)/2]
	}
	fmt.Printf("+%-7s %-11d %-10s %10.0f %7.0f µs %10s %10s\n", delay, n, name,
		middle(func(r result) float64 { return r.perSecond }), middle(func(r result) float64 { return r.cpuMicros }),
		time.Duration(middle(func(r result) float64 { return float64(r.p50) })).Round(time.Microsecond),
		time.Duration(middle(func(r result) float64 { return float64(r.p99) })).Round(time.Microsecond))
}

// measure signs from n goroutines for d. The CPU time covers this process, and the worker if there is one.
func measure(b *testing.B, s signer, pid, n int, d time.Duration) result {
	took := make([][]time.Duration, n)
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute) // the server gives each request a deadline
	defer cancel()
	var all sync.WaitGroup
	cpu, began := spent(b, pid), time.Now()
	for i := range n {
		all.Go(func() {
			for at := time.Now(); at.Sub(began) < d; at = time.Now() {
				if _, err := s.Sign(ctx, randomDigest()); err != nil {
					b.Error(err)
					return
				}
				took[i] = append(took[i], time.Since(at))
			}
		})
	}
	all.Wait()
	elapsed, used := time.Since(began), spent(b, pid)-cpu
	sorted := slices.Concat(took...)
	slices.Sort(sorted)
	if len(sorted) == 0 {
		b.Fatal("nothing was signed")
	}
	return result{float64(len(sorted)) / elapsed.Seconds(), float64(used.Microseconds()) / float64(len(sorted)),
		sorted[len(sorted)/2], sorted[len(sorted)*99/100]}
}

// spent returns the CPU time of this process and, if pid is not 0, of the worker (proc(5), stat, in ticks of 10 ms).
func spent(b *testing.B, pid int) time.Duration {
	var own syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &own); err != nil {
		b.Fatal(err)
	}
	sum := time.Duration(own.Utime.Nano() + own.Stime.Nano())
	if pid == 0 {
		return sum
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	for _, ticks := range strings.Fields(rest)[11:13] {
		n, err := strconv.Atoi(ticks)
		if err != nil {
			b.Fatal(err)
		}
		sum += time.Duration(n) * 10 * time.Millisecond
	}
	return sum
}

// BenchmarkProbe measures a call that costs almost no time in the module, which leaves the path to the module.
func BenchmarkProbe(b *testing.B) {
	token := hsmtest.New(b)
	direct, err := hsm.Open(b.Context(), hsm.Options{URI: token.URI, Sessions: 8})
	if err != nil {
		b.Fatal(err)
	}
	defer direct.Close()
	remote, err := worker.Open(b.Context(),
		worker.Options{HSM: hsm.Options{URI: token.URI, Sessions: 8}, CallTimeout: time.Minute, Sandbox: testFiles()})
	if err != nil {
		b.Fatal(err)
	}
	defer remote.Close()
	status, err := remote.Status(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	for name, ready := range map[string]func(context.Context) error{"in-process": direct.Ready,
		"worker": remote.Ready} {
		b.Run(name, func(b *testing.B) {
			ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
			defer cancel()
			cpu, n := spent(b, status.Worker), 0
			for b.Loop() {
				n++
				if err := ready(ctx); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64((spent(b, status.Worker)-cpu).Microseconds())/float64(n), "cpu-µs/op")
		})
	}
}
