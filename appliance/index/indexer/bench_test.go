package indexer_test

import (
	"testing"
)

// BenchmarkIndex reads two chains of go-ethereum nodes in this process, with about 5,000 events each.
func BenchmarkIndex(b *testing.B) {
	x, y := newWorld(b)
	for range 60 {
		exchange(b, x, y, 60)
	}
	events := uint64(0)
	for b.Loop() {
		indexer := newIndexer(b, openIndex(b), chainsOf(x, y))
		stop := run(b, indexer)
		caughtUp(b, indexer, x, y)
		stop()
		for _, s := range indexer.Status() {
			events += s.Events
		}
	}
	b.ReportMetric(float64(events)/b.Elapsed().Seconds(), "events/s")
}
