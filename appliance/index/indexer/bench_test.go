package indexer_test

import (
	"testing"
)

// BenchmarkIndex reads two chains of nodes in this process, with about 5,000 events each: two EVM chains, and an EVM
// chain and a CosmWasm chain.
func BenchmarkIndex(b *testing.B) {
	b.Run("EVM", func(b *testing.B) { benchmarkIndex(b, newWorld) })
	b.Run("CosmWasm", func(b *testing.B) { benchmarkIndex(b, newMixedWorld) })
}

func benchmarkIndex(b *testing.B, start func(testing.TB) (x, y *side)) {
	b.Helper()
	x, y := start(b)
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
