package sinks_test

import (
	"context"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/attestd/attestd/appliance/sinks"
	"github.com/attestd/attestd/store/storetest"
)

// backlog is the number of records in the journal when the sink is added.
const backlog = 100_000

// BenchmarkBacklog measures how fast a sink with the defaults of audit.sinks catches up: go test -run '^$' -bench
// Backlog -benchtime 1x.
func BenchmarkBacklog(b *testing.B) {
	j := newJournal(b)
	record := storetest.Record(b, "aaaaaaaaaaaaaaaa")
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			for range backlog / 100 {
				r := record
				r.ID = uuid.Must(uuid.NewV7())
				if _, _, err := j.Journal().Append(context.Background(), r); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	for name, to := range map[string]func(b *testing.B) sinks.Destination{
		"file": func(b *testing.B) sinks.Destination {
			return &sinks.File{Path: filepath.Join(b.TempDir(), "audit.jsonl")}
		},
		"syslog": func(b *testing.B) sinks.Destination { return newReceiver(b, false).to() },
		"https":  func(b *testing.B) sinks.Destination { return newCollector(b, nil).to(b) },
	} {
		b.Run(name, func(b *testing.B) {
			for range b.N {
				s := sink("sink", to(b))
				s.Batch = 1000
				begun := time.Now()
				shipper := j.ship(b, b.TempDir(), s)
				until(b, shipper, "at the head", func(s sinks.Status) bool { return s.Next == backlog })
				b.ReportMetric(backlog/time.Since(begun).Seconds(), "records/s")
				stop(shipper)
			}
		})
	}
}
