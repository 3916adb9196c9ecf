package hsm

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/attestd/attestd/appliance"
)

// BenchResult is the result of Bench with one number of sessions.
type BenchResult struct {
	Sessions   int
	Signatures int
	PerSecond  float64
	CPUMicros  float64 // user and system time of this process per signature, in microseconds
	P50        time.Duration
	P99        time.Duration
}

// RawSession is a session from the pool of a Signer, to measure the token alone. It is not safe for concurrent use.
type RawSession struct {
	signer *Signer
	one    *session
}

// RawSession takes a session from the pool. It waits until one is free or ctx ends. Release returns the session.
func (s *Signer) RawSession(ctx context.Context) (*RawSession, error) {
	one, err := s.acquire(ctx)
	if err != nil {
		return nil, err
	}
	return &RawSession{s, one}, nil
}

// Sign makes one signature with C_SignInit and C_Sign. It neither checks nor repairs. No attestation can have the
// digest that it signs, so the signature is useless to an attacker; see appliance.TrialDigest.
func (r *RawSession) Sign() error {
	_, err := r.signer.signOn(r.one, benchDigest())
	if err != nil {
		r.signer.discard(r.one, err)
	}
	return err
}

// Release returns the session to the pool.
func (r *RawSession) Release() { r.signer.release(r.one) }

// benchDigest returns a digest above the order of the BN254 scalar field that is not a known output of Keccak-256.
func benchDigest() (d appliance.Digest) {
	for i := range d {
		d[i] = 0xff
	}
	return d
}

// Bench measures raw signatures for d with each number of sessions, one goroutine per session, with the key of the
// options. This process must not have the module open.
func Bench(ctx context.Context, options Options, sessions []int, d time.Duration) ([]BenchResult, error) {
	options.Sessions = max(1, slices.Max(append(slices.Clone(sessions), 0)))
	s, err := Open(ctx, options)
	if err != nil {
		return nil, err
	}
	defer func() { _ = s.Close() }()
	results := make([]BenchResult, 0, len(sessions))
	for _, n := range sessions {
		result, err := s.Bench(ctx, n, d)
		if err != nil {
			return results, err
		}
		results = append(results, result)
	}
	return results, nil
}

// Bench measures raw signatures with n sessions of the pool for d. The CPU time includes other work of the process.
func (s *Signer) Bench(ctx context.Context, n int, d time.Duration) (BenchResult, error) {
	if size := int(s.size.Load()); n < 1 || n > size {
		return BenchResult{}, fmt.Errorf("bench with %d sessions: the pool has %d", n, size)
	}
	raw := make([]*RawSession, 0, n)
	defer func() {
		for _, r := range raw {
			r.Release()
		}
	}()
	for range n {
		r, err := s.RawSession(ctx)
		if err != nil {
			return BenchResult{}, err
		}
		raw = append(raw, r)
	}
	// As in a worker, a call that waits for the HSM occupies one of Go's processors.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), n+2)))
	cpu, began := cpuTime(), time.Now()
	took, err := signUntil(ctx, raw, began.Add(d))
	elapsed, spent := time.Since(began), cpuTime()-cpu
	if err != nil {
		return BenchResult{}, fmt.Errorf("bench with %d sessions: %w", n, err)
	}
	if len(took) == 0 {
		return BenchResult{Sessions: n}, ctx.Err()
	}
	slices.Sort(took)
	return BenchResult{
		Sessions: n, Signatures: len(took), PerSecond: float64(len(took)) / elapsed.Seconds(),
		CPUMicros: float64(spent.Nanoseconds()) / 1000 / float64(len(took)),
		P50:       took[len(took)/2], P99: took[len(took)*99/100],
	}, nil
}

// signUntil signs with all sessions concurrently until end, at least once with each, and returns the duration of each
// signature.
func signUntil(ctx context.Context, raw []*RawSession, end time.Time) ([]time.Duration, error) {
	took := make([][]time.Duration, len(raw))
	errs := make([]error, len(raw))
	var all sync.WaitGroup
	for i, r := range raw {
		all.Go(func() {
			for began := time.Now(); (took[i] == nil || began.Before(end)) && ctx.Err() == nil; began = time.Now() {
				if errs[i] = r.Sign(); errs[i] != nil {
					return
				}
				took[i] = append(took[i], time.Since(began))
			}
		})
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return slices.Concat(took...), nil
}

// cpuTime returns the CPU time that this process has used so far.
func cpuTime() time.Duration {
	var usage syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &usage) != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
