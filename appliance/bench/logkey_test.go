package bench

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance/daemontest"
	"github.com/attestd/attestd/hsm/hsmtest"
)

// BenchmarkLogKey attests with the log key in log.key, and in a SoftHSM whose C_Sign is delayed by 0, 1 and 5 ms.
// docs/performance.md has the results.
func BenchmarkLogKey(b *testing.B) {
	for _, clients := range []int{1, 64} {
		for _, where := range []string{"log.key", "0s", "1ms", "5ms"} {
			b.Run(fmt.Sprintf("%d clients/%s", clients, where), func(b *testing.B) {
				d := daemontest.New(b)
				if delay, err := time.ParseDuration(where); err == nil {
					d.LogKeyInHSM(b).Set("C_Sign", hsmtest.Fault{Delay: delay})
				}
				d.Start(b)
				defer d.Kill(b)
				took := attestFor(b, d, clients, 4*time.Second)
				slices.Sort(took)
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(float64(len(took))/4, "attestations/s")
				b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
				b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
			})
		}
	}
}

// attestFor attests from several clients for a period, and returns the latency of each attestation.
func attestFor(b *testing.B, d *daemontest.Daemon, clients int, period time.Duration) (took []time.Duration) {
	var mu sync.Mutex
	var all sync.WaitGroup
	end := time.Now().Add(period)
	for range clients {
		all.Go(func() {
			c, err := client.New(d.URL, d.Token, client.Options{})
			if err != nil {
				b.Error(err)
				return
			}
			for time.Now().Before(end) {
				began := time.Now()
				if _, err := c.Attest(b.Context(), daemontest.RandomRequest(), client.AttestOptions{}); err != nil {
					b.Error(err)
					return
				}
				mu.Lock()
				took = append(took, time.Since(began))
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if len(took) == 0 {
		b.Fatal("nothing was attested")
	}
	return took
}
