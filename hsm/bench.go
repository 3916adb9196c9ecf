package hsm

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/attestd/attestd/appliance"
)

// BenchResult is what the token did at one number of sessions.
type BenchResult struct {
	Sessions   int           `json:"sessions"`
	Signatures int           `json:"signatures"`
	PerSecond  float64       `json:"perSecond"`
	CPUMicros  float64       `json:"cpuMicros"` // user and system time of this process per signature, microseconds
	P50        time.Duration `json:"p50"`
	P99        time.Duration `json:"p99"`
}

// RawSession is a session of a signer's pool, for measuring the token itself. It belongs to one goroutine.
type RawSession struct {
	signer *Signer
	one    *session
}

// RawSession takes a session out of the pool, or waits for one while ctx lasts. Release gives it back.
func (s *Signer) RawSession(ctx context.Context) (*RawSession, error) {
	one, err := s.take(ctx)
	if err != nil {
		return nil, err
	}
	return &RawSession{s, one}, nil
}

// Sign makes one raw signature: C_SignInit and C_Sign, nothing checked, nothing repaired. The digest is one that
// no attestation can have (see trialDigest): what is measured must be worth nothing.
func (r *RawSession) Sign() error {
	_, err := r.signer.signOn(r.one, benchDigest())
	if err != nil {
		r.signer.discard(r.one, err)
	}
	return err
}

// Release gives the session back to the pool.
func (r *RawSession) Release() { r.signer.release(r.one) }

// benchDigest is above the order of the BN254 scalar field, and no output of Keccak-256 that anyone knows.
func benchDigest() (d appliance.Digest) {
	for i := range d {
		d[i] = 0xff
	}
	return d
}

// Bench measures raw signatures for d at each number of sessions, one goroutine a session, on the key that the
// options name. The module must not be in use by this process.
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

// Bench measures raw signatures on n sessions of the pool for d. Other work of the process counts into the CPU time.
func (s *Signer) Bench(ctx context.Context, n int, d time.Duration) (BenchResult, error) {
	if n < 1 || n > cap(s.idle) {
		return BenchResult{}, fmt.Errorf("bench with %d sessions: the pool has %d", n, cap(s.idle))
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

// signUntil signs on all sessions at once and returns how long each signature took.
func signUntil(ctx context.Context, raw []*RawSession, end time.Time) ([]time.Duration, error) {
	took := make([][]time.Duration, len(raw))
	errs := make([]error, len(raw))
	var all sync.WaitGroup
	for i, r := range raw {
		all.Go(func() {
			for began := time.Now(); began.Before(end) && ctx.Err() == nil; began = time.Now() {
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

// cpuTime is what this process has used so far, in all its threads.
func cpuTime() time.Duration {
	var usage syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &usage) != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
