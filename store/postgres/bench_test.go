package postgres_test

import (
	"context"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/store/bolt"
	"github.com/attestd/attestd/store/postgres"
	"github.com/attestd/attestd/store/postgres/postgrestest"
	"github.com/attestd/attestd/store/storetest"
)

// BenchmarkAppend measures records appended by 64 callers that each wait for their own record. It uses a server that
// syncs to disk, over its Unix socket, and a bbolt file on the same disk.
func BenchmarkAppend(b *testing.B) {
	key := newLogKey(b)
	b.Run("postgres", func(b *testing.B) {
		server := postgrestest.NewServer(b, nil)
		check(b, postgres.Init(b.Context(), server.URL(postgrestest.Owner), role, ""))
		store, err := postgres.Open(server.SocketURL(postgrestest.Owner), options(key))
		check(b, err)
		defer store.Close()
		benchmarkAppend(b, store.Journal())
	})
	b.Run("bolt", func(b *testing.B) {
		store, err := bolt.Open(filepath.Join(b.TempDir(), "attestd.db"),
			bolt.Options{Signer: key.Signer, Verifier: key.Verifier})
		check(b, err)
		defer store.Close()
		benchmarkAppend(b, store.Journal())
	})
}

func benchmarkAppend(b *testing.B, journal audit.Journal) {
	check(b, journal.Ready(b.Context()))
	record := storetest.Record(b, "aaaaaaaaaaaaaaaa")
	var next atomic.Int64
	var wg sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	for range 64 {
		wg.Go(func() {
			for next.Add(1) <= int64(b.N) {
				r := record
				r.ID = uuid.Must(uuid.NewV7())
				if _, _, err := journal.Append(context.Background(), r); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
}
