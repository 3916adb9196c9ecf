package hsm_test

import (
	"context"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/secp256k1"
	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/hsmtest"
)

func TestBenchMeasuresTheToken(t *testing.T) {
	t.Parallel()
	token := hsmtest.New(t)
	for _, during := range []time.Duration{time.Nanosecond, 20 * time.Millisecond} { // each session signs at least once
		results, err := hsm.Bench(t.Context(), hsm.Options{URI: token.URI}, []int{1, 3}, during)
		if err != nil || len(results) != 2 {
			t.Fatalf("%+v, %v", results, err)
		}
		for i, sessions := range []int{1, 3} {
			if r := results[i]; r.Sessions != sessions || r.Signatures < sessions || r.PerSecond <= 0 ||
				r.CPUMicros <= 0 || r.P50 <= 0 || r.P99 < r.P50 {
				t.Errorf("%+v", r)
			}
		}
	}
}

// BenchmarkRawSign is C_SignInit and C_Sign alone. Compare CPU time: the elapsed time depends on the machine's load.
func BenchmarkRawSign(b *testing.B) {
	s := benchSigner(b)
	b.RunParallel(func(pb *testing.PB) {
		raw, err := s.RawSession(context.Background())
		if err != nil {
			b.Error(err)
			return
		}
		defer raw.Release()
		for pb.Next() {
			if err := raw.Sign(); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// BenchmarkSign is the cost of a request: the wait for a session, the signature, and its check.
func BenchmarkSign(b *testing.B) {
	s := benchSigner(b)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := s.Sign(context.Background(), randomDigest()); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// BenchmarkCheck is the part of BenchmarkSign that recovers the key.
func BenchmarkCheck(b *testing.B) {
	s := benchSigner(b)
	d := randomDigest()
	signature, err := s.Sign(context.Background(), d)
	if err != nil {
		b.Fatal(err)
	}
	rs := [64]byte(append(signature.R[:], signature.S[:]...))
	for b.Loop() {
		if _, err := secp256k1.NewSignature(d, rs, s.PublicKey()); err != nil {
			b.Fatal(err)
		}
	}
}

// benchSigner opens a signer and reports CPU microseconds per operation.
func benchSigner(b *testing.B) *hsm.Signer {
	s, err := hsm.Open(context.Background(), hsm.Options{URI: hsmtest.New(b).URI})
	if err != nil {
		b.Fatal(err)
	}
	began := hsm.CPUTime()
	b.Cleanup(func() {
		b.ReportMetric(float64((hsm.CPUTime()-began).Nanoseconds())/1000/float64(b.N), "cpu-µs/op")
		_ = s.Close()
	})
	b.ResetTimer()
	return s
}
