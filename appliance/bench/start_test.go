package bench

import (
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/daemontest"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/bolt"
)

// BenchmarkStart measures the time from the start of `attestd serve` until its first attestation is answered. The
// journal has BENCH_RECORDS records, which repeat some of the daemon's own with new ids; the replica has BENCH_TRANSFERS
// transfers. Both files are in the kernel's cache. Filling the journal takes some 30 µs a record.
func BenchmarkStart(b *testing.B) {
	records := envNumber(b, "BENCH_RECORDS", 1_000_000)
	d, _ := newReadDaemon(b, envNumber(b, "BENCH_TRANSFERS", 1_000_000))
	d.Start(b)
	for range 100 {
		attestOnce(b, d)
	}
	d.Kill(b)
	repeatRecords(b, filepath.Join(d.Dir, "data"), records)
	for b.Loop() {
		begin := time.Now()
		d.Start(b)
		ready := time.Since(begin)
		attestOnce(b, d)
		b.ReportMetric(ready.Seconds(), "s-until-ready")
		b.ReportMetric(time.Since(begin).Seconds(), "s-until-attested")
		d.Kill(b)
	}
}

func attestOnce(b *testing.B, d *daemontest.Daemon) {
	b.Helper()
	c, err := client.New(d.URL, d.Token, client.Options{})
	if err != nil {
		b.Fatal(err)
	}
	if _, err := c.Attest(b.Context(), daemontest.RandomRequest(), client.AttestOptions{}); err != nil {
		b.Fatal(err)
	}
}

// repeatRecords imports records into a journal that no daemon uses: its own, with new ids and idempotency keys.
func repeatRecords(b *testing.B, data string, records int) {
	key, err := archive.ReadLogKey(data)
	if err != nil {
		b.Fatal(err)
	}
	store, err := bolt.Open(filepath.Join(data, archive.StoreFile), bolt.Options{Signer: key.Signer, Verifier: key.Verifier})
	if err != nil {
		b.Fatal(err)
	}
	defer store.Close()
	var own []appliance.Record
	var size int64
	err = store.Journal().Entries(b.Context(), 0, func(e journal.Entry) error {
		if size++; e.Event == nil {
			own = append(own, e.Record)
		}
		return nil
	})
	for i := 0; i < records && err == nil; {
		var leaves [][]byte
		for ; len(leaves) < 4096 && i < records && err == nil; i++ {
			r := own[i%len(own)]
			r.ID, r.Time, r.IdempotencyKey = uuid.Must(uuid.NewV7()), own[len(own)-1].Time, strconv.Itoa(i)
			var leaf []byte
			leaf, err = journal.EncodeLeaf(r)
			leaves = append(leaves, leaf)
		}
		if err == nil {
			err = store.Import(b.Context(), size, leaves)
		}
		size += int64(len(leaves))
	}
	if err != nil {
		b.Fatal(err)
	}
}
