package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/daemontest"
	"github.com/attestd/attestd/appliance/index"
	"github.com/attestd/attestd/appliance/index/dataset"
	"github.com/attestd/attestd/appliance/index/follower"
	"github.com/attestd/attestd/appliance/text"
	"github.com/attestd/attestd/store/replica"
)

// The aims of BenchmarkFollow.
const (
	aimBackfill = 5000            // packets and transfers per second
	aimLag      = 2 * time.Second // at p99, with usualLive
	aimOverhead = time.Millisecond
)

// followLive says how many new transfers an upstream gets, and for how long.
type followLive struct {
	perSecond int
	lasts     time.Duration
}

// usualLive is the load of a busy network.
var usualLive = followLive{perSecond: 100, lasts: 30 * time.Second}

// BenchmarkFollow measures, over loopback, a follower and a proxy of a second attestd with 100 thousand generated
// transfers. It measures the backfill of an empty replica; the time from writing a transfer upstream until it is read
// here over GraphQL, at 100 per second and with the default intervals; the latency that forwarding adds on one
// connection; and @cached answers of the proxy and of the upstream. Both daemons and the load generator share the
// cores. Compared systems alternate, and each figure is the median of its rounds.
//
// BENCH_FOLLOW_TRANSFERS is the number of transfers in the upstream.
func BenchmarkFollow(b *testing.B) {
	transfers := envNumber(b, "BENCH_FOLLOW_TRANSFERS", 100_000)
	up := daemontest.New(b)
	world := newWorld(b, up, dataset.GenerateOptions{Transfers: transfers, Seed: 1, Now: time.Now()})
	up.Start(b)
	defer up.Kill(b)
	d := daemontest.New(b)
	d.Configure("ATTESTD_GRAPHQL_UPSTREAM=" + up.URL + daemon.GraphQLPath)
	proxy := daemontest.New(b)
	proxy.Configure("ATTESTD_GRAPHQL_SOURCE=proxy", "ATTESTD_GRAPHQL_UPSTREAM="+up.URL+daemon.GraphQLPath)
	proxy.Start(b)
	defer proxy.Kill(b)
	for b.Loop() {
		filled := benchBackfill(b, d)
		d.Start(b)
		lags := usualLive.measure(b.Context(), b, up, d, world)
		d.Kill(b)
		reportFollowing(b, filled, lags)
		reportForwarding(b, benchForwarding(b, up, proxy))
	}
}

// newWorld fills a replica, and returns the generator, which can add transfers.
func newWorld(b testing.TB, d *daemontest.Daemon, o dataset.GenerateOptions) *dataset.World {
	opened, err := replica.Open(d.Replica(), replica.Options{})
	if err != nil {
		b.Fatal(err)
	}
	world, err := dataset.NewWorld(b.Context(), o, dataset.Sink(b.Context(), opened))
	if err != nil {
		b.Fatal(err)
	}
	if err := opened.Close(); err != nil {
		b.Fatal(err)
	}
	return world
}

// benchBackfill fills an empty replica three times, and keeps the last. perSecond counts packets and transfers.
func benchBackfill(b *testing.B, d *daemontest.Daemon) figure {
	var rounds []figure
	for range 3 {
		if err := os.Remove(d.Replica()); err != nil {
			b.Fatal(err)
		}
		var done struct {
			follower.Status
			Seconds float64
		}
		if out := d.Run(b, "replica", "sync", "--output", "json"); json.Unmarshal([]byte(out), &done) != nil {
			b.Fatal(out)
		}
		rounds = append(rounds, figure{perSecond: float64(text.Rows(done.Status).Here) / done.Seconds})
	}
	return median(rounds)
}

// measure writes new transfers upstream every tenth of a second, and polls the replica for them. It returns the sorted
// delays from the beginning of each write until the read.
func (l followLive) measure(ctx context.Context, b testing.TB, up, d *daemontest.Daemon,
	world *dataset.World) (lags []time.Duration) {
	const tick = time.Second / 10
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute+10*l.lasts)
	defer cancel()
	source := &growing{admin: client.NewAdmin(filepath.Join(up.Dir, "admin.sock")), world: world,
		written: make(map[string]time.Time)}
	defer source.admin.Close()
	if err := source.advance(ctx, 0); err != nil { // brings packets under way up to date
		b.Fatal(err)
	}
	d.Run(b, "replica", "sync")
	newest := readNewer(ctx, b, d, "")
	source.highest = newest[0]

	done := make(chan error, 1)
	go func() {
		pace := time.NewTicker(tick)
		defer pace.Stop()
		for range l.lasts / tick {
			<-pace.C
			if err := source.advance(ctx, l.perSecond/int(time.Second/tick)); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	seen := watchRows(ctx, b, d, newest[0], source, done)
	for order, at := range source.written {
		lags = append(lags, seen[order].Sub(at))
	}
	slices.Sort(lags)
	return lags
}

// growing is an upstream to which rows are added. The adding goroutine owns its fields until it ends.
type growing struct {
	admin   *client.Admin
	world   *dataset.World
	highest string               // sort_order of the newest transfer
	written map[string]time.Time // when the write of each new transfer began, by its sort_order
}

func (g *growing) advance(ctx context.Context, transfers int) error {
	now := time.Now()
	rows, err := g.world.Advance(now, transfers)
	if err != nil {
		return err
	}
	highest := g.highest
	for _, row := range rows {
		if order := row.SortOrder(); transfers > 0 && row.Type() == index.TransferType && order > g.highest {
			g.written[order] = now
			highest = max(highest, order)
		}
	}
	g.highest = highest
	_, err = g.admin.Write(ctx, index.Batch{Rows: rows})
	return err
}

// watchRows notes when each transfer above a cursor is first read. It returns when the source has ended and all its
// transfers were read.
func watchRows(ctx context.Context, b testing.TB, d *daemontest.Daemon, cursor string, source *growing,
	done <-chan error) map[string]time.Time {
	seen := make(map[string]time.Time)
	for ended := false; !ended || len(seen) < len(source.written); {
		orders := readNewer(ctx, b, d, cursor)
		for _, order := range orders {
			seen[order], cursor = time.Now(), order
		}
		select {
		case err := <-done:
			if ended = true; err != nil {
				b.Fatal(err)
			}
		default:
		}
		if len(orders) == 0 {
			time.Sleep(5 * time.Millisecond) // between two polls: the follower needs the cores
		}
	}
	return seen
}

// readNewer returns the sort_orders of the transfers above a cursor, at most a page, oldest first. Without a cursor, it
// returns the newest ones.
func readNewer(ctx context.Context, b testing.TB, d *daemontest.Daemon, cursor string) (orders []string) {
	variables := map[string]any{"cursor": cursor}
	if cursor == "" {
		variables["cursor"] = nil
	}
	body, err := json.Marshal(map[string]any{
		"query": `query($cursor: String) { v2_transfers(args: {p_limit: 100, p_sort_order: $cursor, p_comparison: "gt"}) { sort_order } }`, "variables": variables,
	})
	if err != nil {
		b.Fatal(err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, d.URL+daemon.GraphQLPath, bytes.NewReader(body))
	if err != nil {
		b.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		b.Fatal(err)
	}
	defer response.Body.Close()
	var answer struct {
		Data struct {
			Transfers []struct {
				Order string `json:"sort_order"`
			} `json:"v2_transfers"`
		}
		Errors []any
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil || len(answer.Errors) > 0 {
		b.Fatal(err, answer.Errors)
	}
	for _, row := range answer.Data.Transfers {
		orders = append(orders, row.Order)
	}
	return orders
}

// forwarding has the measurements of the upstream itself and of the proxy.
type forwarding struct{ direct, proxied, cachedDirect, cachedProxied []figure }

func benchForwarding(b *testing.B, up, proxy *daemontest.Daemon) (f forwarding) {
	const rounds, each = 5, time.Second
	const page10, cached = `{ v2_transfers(args: {p_limit: 10}) { ` + page7 + ` } }`,
		"query @cached(ttl: 3600) " + firstPage
	measure := func(figures *[]figure, d *daemontest.Daemon, query string, connections int) {
		request := graphqlRequest(d.URL, query, nil)
		checkAnswer(b, d.URL, request)
		*figures = append(*figures, load(b, d.URL, cpuOfProcess(b, d.Cmd.Process.Pid), [][]byte{request}, connections, each))
	}
	for range rounds {
		measure(&f.direct, up, page10, 1)
		measure(&f.proxied, proxy, page10, 1)
		measure(&f.cachedDirect, up, cached, readConnections)
		measure(&f.cachedProxied, proxy, cached, readConnections)
	}
	return f
}

func reportFollowing(b *testing.B, filled figure, lags []time.Duration) {
	p50, p99 := lags[len(lags)/2], lags[len(lags)*99/100]
	fmt.Printf("\nbackfill into an empty replica:   %.0f packets and transfers a second (aim: more than %d)\n",
		filled.perSecond, aimBackfill)
	fmt.Printf("lag at %d new transfers a second: p50 %s, p99 %s, of %d (aim: p99 less than %s)\n",
		usualLive.perSecond, p50.Round(time.Millisecond), p99.Round(time.Millisecond), len(lags), aimLag)
	b.ReportMetric(filled.perSecond, "backfilled/s")
	b.ReportMetric(p99.Seconds(), "s-lag-p99")
}

func reportForwarding(b *testing.B, f forwarding) {
	fmt.Printf("\n%-34s %10s %10s %10s %10s\n", "", "per second", "CPU each", "p50", "p99")
	row := func(name string, figures []figure) figure {
		f := median(figures)
		fmt.Printf("%-34s %10.0f %7.0f µs %10s %10s\n", name, f.perSecond, f.cpuMicros, f.p50.Round(time.Microsecond),
			f.p99.Round(time.Microsecond))
		return f
	}
	direct := row("a page of 10, 1 connection: direct", f.direct)
	proxied := row("the same, proxied", f.proxied)
	cachedDirect := row(fmt.Sprintf("@cached, %d connections: direct", readConnections), f.cachedDirect)
	cachedProxied := row("the same, proxied", f.cachedProxied)
	overhead, overhead99 := proxied.p50-direct.p50, proxied.p99-direct.p99
	fmt.Printf("\noverhead of a proxied request:    p50 %s, p99 %s (aim: p50 less than %s)\n",
		overhead.Round(time.Microsecond), overhead99.Round(time.Microsecond), aimOverhead)
	fmt.Printf("@cached answers of the proxy:     %.2f of the upstream's own\n\n",
		cachedProxied.perSecond/cachedDirect.perSecond)
	b.ReportMetric(float64(overhead.Microseconds()), "µs-overhead-p50")
	b.ReportMetric(cachedProxied.perSecond, "cached-proxied/s")
}
