package daemon

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/config"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/bolt"
	"github.com/attestd/attestd/store/postgres"
	"github.com/attestd/attestd/store/postgres/postgrestest"
	"github.com/attestd/attestd/store/storetest"
)

// BenchmarkWholeJournal measures the operations that read every record, on both stores. BENCH_RECORDS is the number of
// records; the default is small. Run it with -benchtime 1x.
func BenchmarkWholeJournal(b *testing.B) {
	records := int64(20_000)
	if text := os.Getenv("BENCH_RECORDS"); text != "" {
		var err error
		records, err = strconv.ParseInt(text, 10, 64)
		check(b, err)
	}
	key, secret, err := journal.NewLogKey("example.com/attestd")
	check(b, err)
	c := &config.Config{DataDir: b.TempDir()}
	check(b, os.WriteFile(filepath.Join(c.DataDir, archive.LogKeyFile), []byte(secret+"\n"), 0o600))
	file := filledFile(b, filepath.Join(c.DataDir, archive.StoreFile), key, records)
	b.Cleanup(func() { check(b, file.Close()) })

	server := postgrestest.NewServer(b, nil)
	check(b, postgres.Init(b.Context(), server.URL(postgrestest.Owner), "attestd", ""))
	c.Store.URL = config.DatabaseURL(server.SocketURL(postgrestest.Owner))
	target, end, err := openTarget(c, string(c.Store.URL), key)
	check(b, err)
	source := archive.CopySource{Keys: file.Keys, Leaves: archive.LeavesOf(file.Journal), Verifier: key.Verifier}
	none := func(int64, int64) {}
	timed(b, records, "store copy --prepare to PostgreSQL", func() {
		target.Verified, err = archive.Prepare(b.Context(), source, target.CopyTarget, none)
		check(b, err)
	})
	timed(b, records, "the last step", func() {
		_, err := archive.Copy(b.Context(), source, target.CopyTarget, none)
		check(b, err)
	})
	check(b, end())
	database, err := databaseStore(c, key, postgres.Options{Signer: key.Signer, Verifier: key.Verifier})
	check(b, err)
	b.Cleanup(func() { check(b, database.Close()) })

	for name, store := range map[string]*Store{"bolt": file, "PostgreSQL": database} {
		timed(b, records, name+" log verify", func() {
			report, err := store.Unguarded().Verify(b.Context(), audit.Options{AnySigner: true})
			check(b, err)
			if !report.OK() || report.Size != records {
				b.Fatal(report)
			}
		})
		timed(b, records, name+" backup", func() {
			_, _, err := archive.Make(b.Context(), archive.FreeName(b.TempDir(), time.Now()),
				func(w io.Writer) error { return store.Backup(b.Context(), w, "bench") }, archive.Sealing{},
				archive.AuditOptions{SkipRecords: true})
			check(b, err)
		})
	}
}

// timed reports how long fn takes for a million records.
func timed(b *testing.B, records int64, name string, fn func()) {
	b.Run(name, func(b *testing.B) {
		begin := time.Now()
		fn()
		b.ReportMetric(time.Since(begin).Seconds()*1e6/float64(records), "s/million")
		b.ReportMetric(time.Since(begin).Seconds(), "s")
	})
}

// filledFile returns a file store with records of one signer.
func filledFile(b *testing.B, path string, key journal.LogKey, records int64) *Store {
	b.Helper()
	store, err := bolt.Open(path, bolt.Options{Signer: key.Signer, Verifier: key.Verifier})
	check(b, err)
	const step = 1000
	now := time.Now().UTC().Truncate(time.Millisecond)
	check(b, audit.Ahead((records+step-1)/step, func(n int64) (leaves [][]byte, err error) {
		for i := n * step; i < min(records, n*step+step); i++ {
			r := storetest.Record(b, "a key")
			r.Time, r.IdempotencyKey = now.Add(time.Duration(i)*time.Millisecond), strconv.FormatInt(i, 10)
			leaf, err := journal.EncodeLeaf(r)
			if err != nil {
				return nil, err
			}
			leaves = append(leaves, leaf)
		}
		return leaves, nil
	}, func(n int64, leaves [][]byte) error { return store.Import(context.Background(), n*step, leaves) }))
	return fileStore(store, key)
}

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
