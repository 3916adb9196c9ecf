package replica

import (
	"bytes"
	"path/filepath"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/dataset"
	"github.com/attestd/attestd/store/storetest"
)

// BenchmarkImport times the import of NDJSON into an empty replica.
func BenchmarkImport(b *testing.B) {
	source := newReplica(b)
	fill(b, source, 20_000)
	lines := export(b, source)
	b.SetBytes(int64(len(lines)))
	for b.Loop() {
		b.StopTimer()
		r := newReplica(b)
		b.StartTimer()
		if _, err := dataset.Import(b.Context(), dataset.Into(r), bytes.NewReader(lines),
			dataset.ImportOptions{}); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := r.Close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// BenchmarkExport times the export of 20,000 transfers with their packets and tables.
func BenchmarkExport(b *testing.B) {
	source := newReplica(b)
	fill(b, source, 20_000)
	for b.Loop() {
		export(b, source)
	}
}

// BenchmarkFollow times small batches of new rows, as a follower writes them, into a replica of 100,000 transfers.
func BenchmarkFollow(b *testing.B) {
	r, err := Open(filepath.Join(b.TempDir(), "replica.db"), Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	world, err := dataset.NewWorld(b.Context(),
		dataset.GenerateOptions{Transfers: 100_000, Seed: 1, Now: storetest.ReplicaNow}, dataset.Sink(b.Context(), r))
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		b.StopTimer()
		rows, err := world.Advance(world.Now().Add(time.Minute), 100)
		if err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if _, err := r.Write(b.Context(), index.Batch{Rows: rows}); err != nil {
			b.Fatal(err)
		}
	}
}
