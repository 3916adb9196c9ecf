package postgres_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/postgres"
	"github.com/attestd/attestd/store/postgres/postgrestest"
	"github.com/attestd/attestd/store/storetest"
)

// BenchmarkCeiling finds the rate at which the head's lock saturates. The appliances append records without signing,
// and their callers wait for each append. Appliances, database and standby share the machine.
func BenchmarkCeiling(b *testing.B) {
	primary := postgrestest.NewServer(b, nil)
	primary.Standby(b, "second")
	c := ceiling{b, primary, primary.SocketURL(postgrestest.Owner), nil}
	if err := postgres.Init(b.Context(), c.url, "attestd", ""); err != nil {
		b.Fatal(err)
	}
	c.open(3)
	fmt.Printf("\n%-14s %10s %8s %10s %10s %12s %8s %8s %12s\n", "standby", "appliances", "callers", "records/s",
		"commits/s", "a commit", "p50", "p99", "database CPU")
	for b.Loop() {
		c.measure("asynchronous")
		primary.Synchronous(b, "second")
		c.measure("synchronous")
	}
}

type ceiling struct {
	*testing.B
	primary *postgrestest.Server
	url     string
	stores  []*postgres.Store
}

func (c *ceiling) open(appliances int) {
	key, _, err := journal.NewLogKey("example.com/attestd")
	if err != nil {
		c.Fatal(err)
	}
	for range appliances {
		s, err := postgres.Open(c.url, postgres.Options{Signer: key.Signer, Verifier: key.Verifier})
		if err != nil {
			c.Fatal(err)
		}
		c.Cleanup(func() { s.Close() })
		c.stores = append(c.stores, s)
	}
}

func (c *ceiling) measure(standby string) {
	for _, appliances := range []int{1, 3} {
		for _, callers := range []int{64, 512, 2048} {
			c.measureOne(standby, appliances, callers)
		}
	}
}

func (c *ceiling) measureOne(standby string, appliances, callers int) {
	const during = 3 * time.Second
	record := storetest.Record(c, c.key())
	size, commits, cpu, began := c.count("size"), c.updates(), c.primary.CPU(), time.Now()
	latencies := make([][]time.Duration, appliances*callers)
	var all sync.WaitGroup
	for i := range latencies {
		journal := c.stores[i%appliances].Journal()
		all.Go(func() { latencies[i] = appendUntil(c, journal, record, began.Add(during)) })
	}
	all.Wait()
	took := time.Since(began).Seconds()
	records, committed := float64(c.count("size")-size), float64(c.updates()-commits)
	sorted := slices.Sorted(slices.Values(slices.Concat(latencies...)))
	if len(sorted) == 0 {
		c.Fatal("nothing was appended")
	}
	fmt.Printf("%-14s %10d %8d %10.0f %10.0f %12.0f %6.1fms %6.1fms %12.2f\n", standby, appliances, appliances*callers,
		records/took, committed/took,
		records/committed, ms(sorted[len(sorted)/2]), ms(sorted[len(sorted)*99/100]),
		(c.primary.CPU()-cpu).Seconds()/took)
}

func ms(d time.Duration) float64 { return d.Seconds() * 1000 }

// appendUntil appends records that differ only in their ids.
func appendUntil(tb testing.TB, j *postgres.Journal, r appliance.Record, end time.Time) (latencies []time.Duration) {
	for time.Now().Before(end) {
		began := time.Now()
		r.ID = uuid.Must(uuid.NewV7())
		if _, _, err := j.Append(context.Background(), r); err != nil {
			tb.Error(err)
			return latencies
		}
		latencies = append(latencies, time.Since(began))
	}
	return latencies
}

// key creates an API key.
func (c *ceiling) key() string {
	key, _, err := appliance.NewAPIKey(appliance.KeyRequest{Name: "ceiling", Rate: appliance.Unlimited}, time.Now())
	if err == nil {
		err = c.stores[0].Keys().Create(c.Context(), key)
	}
	if err != nil {
		c.Fatal(err)
	}
	return key.ID
}

// count returns a value of the head.
func (c *ceiling) count(column string) int64 { return c.number("SELECT " + column + " FROM log_head") }

// updates returns the number of writing transactions: each takes an id.
func (c *ceiling) updates() int64 {
	return c.number("SELECT pg_snapshot_xmax(pg_current_snapshot())")
}

func (c *ceiling) number(query string) int64 {
	n, err := strconv.ParseInt(c.primary.Query(c, postgrestest.Owner, query), 10, 64)
	if err != nil {
		c.Fatal(err)
	}
	return n
}
