package bolt_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/audit"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/bolt"
	"github.com/attestd/attestd/store/storetest"
	"github.com/google/uuid"
)

// BenchmarkAppend measures records synced to disk by concurrent callers that each wait for their own record. Per
// record, it reports the CPU time of the process, the bytes written to the file, and the final size of the file. The
// size is meaningful from about 100,000 records on (-benchtime 100000x).
func BenchmarkAppend(b *testing.B) {
	for _, callers := range []int{1, 8, 64} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) { benchmarkAppend(b, callers) })
	}
}

func benchmarkAppend(b *testing.B, callers int) {
	path := filepath.Join(b.TempDir(), "attestd.db")
	s := mustOpen(b, path, bolt.WithWAL(options(newLogKey(b)), 0)) // size as in production
	record := storetest.Record(b, "aaaaaaaaaaaaaaaa")
	ids := make([]uuid.UUID, b.N)
	for i := range ids {
		ids[i] = uuid.Must(uuid.NewV7())
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	cpu, written := cpuTime(b), bytesWritten(b)
	b.ReportAllocs()
	b.ResetTimer()
	for caller := range callers {
		random := rand.New(rand.NewPCG(1, uint64(caller)))
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(b.N); i = next.Add(1) - 1 {
				r := record
				r.ID = ids[i]
				binary.BigEndian.PutUint64(r.Hash[24:], random.Uint64())
				binary.BigEndian.PutUint64(r.UnspendableAddress[12:], random.Uint64())
				if _, _, err := s.Journal().Append(context.Background(), r); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	n := float64(b.N)
	b.ReportMetric(float64((cpuTime(b)-cpu).Microseconds())/n, "cpu-µs/op")
	b.ReportMetric(float64(bytesWritten(b)-written)/n, "written-B/op")
	b.ReportMetric(float64(fileSize(b, path))/n, "file-B/op")
}

func fileSize(b *testing.B, path string) int64 {
	stat, err := os.Stat(path)
	if err != nil {
		b.Fatal(err)
	}
	return stat.Size()
}

func cpuTime(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// bytesWritten returns the bytes that this process has passed to write calls, or 0 if the system does not report them.
func bytesWritten(b *testing.B) (n int64) {
	text, err := os.ReadFile("/proc/self/io")
	if err != nil {
		return 0
	}
	var rchar int64
	if _, err := fmt.Sscanf(string(text), "rchar: %d\nwchar: %d", &rchar, &n); err != nil {
		b.Fatal(err)
	}
	return n
}

// importRecords fills an empty store.
func importRecords(b *testing.B, s *bolt.Store, n int, record func() appliance.Record) {
	b.Helper()
	const step = 1000
	for first := 0; first < n; first += step {
		var leaves [][]byte
		for i := first; i < min(n, first+step); i++ {
			r := record()
			r.ID, r.Time = uuid.Must(uuid.NewV7()), time.Date(2026, 1, 2, 3, 4, 5, i, time.UTC)
			leaf, err := journal.EncodeLeaf(r)
			check(b, err)
			leaves = append(leaves, leaf)
		}
		check(b, s.Import(b.Context(), int64(first), leaves))
	}
}

// BenchmarkVerify measures the audit of records of one signer. Per record, it reports the CPU time of the process. It
// is meaningful from about 100,000 records on (-benchtime 100000x).
func BenchmarkVerify(b *testing.B) {
	// size as in production
	s := mustOpen(b, filepath.Join(b.TempDir(), "attestd.db"), bolt.WithWAL(options(newLogKey(b)), 0))
	importRecords(b, s, b.N, func() appliance.Record { return storetest.Record(b, "aaaaaaaaaaaaaaaa") })
	cpu := cpuTime(b)
	b.ResetTimer()
	report, err := s.Journal().Verify(b.Context(), audit.Options{})
	if err != nil || !report.OK() {
		b.Fatalf("%v, %v", report.Damages, err)
	}
	b.StopTimer()
	b.ReportMetric(float64((cpuTime(b)-cpu).Microseconds())/float64(b.N), "cpu-µs/op")
}

// BenchmarkFirstCount measures the first count of an API key's records after a restart, with and without the stored
// counts. It is meaningful from about 100,000 records on (-benchtime 100000x).
func BenchmarkFirstCount(b *testing.B) {
	key, path := newLogKey(b), filepath.Join(b.TempDir(), "attestd.db")
	record := storetest.Record(b, "aaaaaaaaaaaaaaaa")
	s := mustOpen(b, path, bolt.WithWAL(options(key), 0))
	importRecords(b, s, b.N, func() appliance.Record { return record })
	count := func(unit string) {
		began := time.Now()
		past, err := s.Journal().Past(b.Context(),
			journal.PastQuery{KeyID: record.KeyID, Since: []time.Time{time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}})
		if err != nil || past.Counts[0] != int64(b.N) {
			b.Fatalf("%v, %v", past.Counts, err)
		}
		b.ReportMetric(float64(time.Since(began).Microseconds())/1000, unit)
	}
	for _, unit := range []string{"counted-ms", "stored-ms"} {
		check(b, s.Close())
		s = mustOpen(b, path, bolt.WithWAL(options(key), 0))
		count(unit)
	}
}
