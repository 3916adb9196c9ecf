package api_test

import (
	"io"
	"slices"
	"testing"
	"time"

	"github.com/attestd/attestd/api"
)

// BenchmarkStreams reports p99 of attestations beside 1,000 streams that get each of them, in parts of p99 without
// streams, measured before and after.
func BenchmarkStreams(b *testing.B) {
	const streams, attestations = 1000, 1000
	r := newRig(b, offerEvents(b, streams), func(o *api.Options) {
		o.MaxConnections, o.MaxConnectionsPerAddress = 4*streams, 4*streams
	})
	measure := func() (all []time.Duration) {
		for range attestations {
			began := time.Now()
			if a := r.attest(); a.status != 200 {
				b.Fatalf("%s", a)
			}
			all = append(all, time.Since(began))
		}
		return all
	}
	p99 := func(all []time.Duration) float64 {
		slices.Sort(all)
		return float64(all[len(all)*99/100])
	}
	for b.Loop() {
		without := measure()
		var open []*sse
		for range streams {
			s := r.stream("/v1/events", r.token, "")
			go func() { _, _ = io.Copy(io.Discard, s.resp.Body) }()
			open = append(open, s)
		}
		with := measure()
		for _, s := range open {
			s.resp.Body.Close()
		}
		without = append(without, measure()...)
		b.ReportMetric(p99(with)/p99(without), "p99-ratio")
		b.ReportMetric(p99(without)/1e6, "ms-p99-without")
	}
}
