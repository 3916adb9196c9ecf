package api_test

import (
	"io"
	"slices"
	"testing"
	"time"

	"github.com/attestd/attestd/api"
)

// BenchmarkStreams reports p99 of attestations beside 1,000 streams that get each of them, in parts of p99 without
// streams. One client attests without a pause. Rounds with and without streams take turns; the figures are the medians.
// The readers are in this process, so their work counts, too.
func BenchmarkStreams(b *testing.B) {
	const rounds, streams, attestations = 5, 1000, 1000
	r := newRig(b, offerEvents(b, streams), func(o *api.Options) {
		o.MaxConnections, o.MaxConnectionsPerAddress = 4*streams, 4*streams
	})
	p99 := func() float64 {
		var all []time.Duration
		for range attestations {
			began := time.Now()
			if a := r.attest(); a.status != 200 {
				b.Fatalf("%s", a)
			}
			all = append(all, time.Since(began))
		}
		slices.Sort(all)
		return float64(all[attestations*99/100])
	}
	median := func(all []float64) float64 {
		slices.Sort(all)
		return all[len(all)/2]
	}
	for b.Loop() {
		var with, without, ratios []float64
		for range rounds {
			alone := p99()
			var open []*sse
			for range streams {
				s := r.unchecked("/v1/events", r.token, "")
				go func() { _, _ = io.Copy(io.Discard, s.resp.Body) }()
				open = append(open, s)
			}
			beside := p99()
			for _, s := range open {
				s.resp.Body.Close()
			}
			without, with, ratios = append(without, alone), append(with, beside), append(ratios, beside/alone)
		}
		b.ReportMetric(median(ratios), "p99-ratio")
		b.ReportMetric(median(without)/1e6, "ms-p99-without")
		b.ReportMetric(median(with)/1e6, "ms-p99-with")
	}
}
