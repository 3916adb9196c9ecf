package bench

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/archive"
	"github.com/attestd/attestd/appliance/daemontest"
	"github.com/attestd/attestd/hsm/hsmtest"
	"github.com/attestd/attestd/store/postgres/postgrestest"
)

// BenchmarkCluster compares one, two and three appliances on one PostgreSQL with an appliance that has its own file. It
// uses a fast HSM, so that the HSM is not the bottleneck, and SoftHSM. Appliances, database, standby and load share the
// machine's cores.
func BenchmarkCluster(b *testing.B) {
	const rounds = 3
	fmt.Printf("\n%-8s %-38s %11s %10s %8s %8s %10s %10s %8s %8s\n", "HSM", "", "connections", "per second", "p50",
		"p99", "commits/s", "a commit", "CPU", "database")
	for b.Loop() {
		for _, hsm := range []string{fastHSM, softHSM} {
			c := newBenchCluster(b, hsm)
			results := make([][]clusterFigure, len(c.cases()))
			for range rounds {
				for i, k := range c.cases() {
					results[i] = append(results[i], c.measure(k))
				}
			}
			for i, k := range c.cases() {
				k.print(hsm, results[i])
			}
			c.end()
		}
	}
}

// benchCluster is three appliances on a database, and one with its own file.
type benchCluster struct {
	*testing.B
	primary *postgrestest.Server
	alone   *daemontest.Daemon
	members []*daemontest.Daemon
}

// clusterCase is one measurement. appliances is the number of loaded members; 0 means the appliance with its own file.
type clusterCase struct {
	appliances, connections int
	synchronous             bool
}

func (c *benchCluster) cases() []clusterCase {
	return []clusterCase{
		{0, 64, false}, {1, 64, false}, {2, 64, false}, {3, 64, false},
		{0, 192, false}, {1, 192, false}, {2, 192, false}, {3, 192, false},
		{1, 64, true}, {3, 192, true},
	}
}

type clusterFigure struct {
	perSecond, commits, cpu, database float64 // cpu and database in processors
	p50, p99                          time.Duration
}

const benchDatabase = "attestd"

func newBenchCluster(b *testing.B, hsm string) *benchCluster {
	b.Helper()
	token := hsmToken(b, hsm)
	c := &benchCluster{B: b, primary: postgrestest.NewServer(b, nil)}
	c.primary.Exec(b, postgrestest.Owner, "CREATE DATABASE "+benchDatabase)
	c.primary.Standby(b, "second")
	daemontest.InitStore(b, c.primary, benchDatabase)
	c.alone = benchAppliance(b, token, "")
	c.alone.Start(b)
	c.alone.Token = c.alone.CreateKey(b)
	for i := range 3 {
		d := benchAppliance(b, token, c.primary.SocketURL(benchDatabase))
		if i > 0 {
			daemontest.CopyAll(b, filepath.Join(c.members[0].Dir, "data", archive.LogKeyFile),
				filepath.Join(d.Dir, "data", archive.LogKeyFile))
		}
		d.Start(b)
		c.members = append(c.members, d)
	}
	key := c.members[0].CreateKey(b)
	for _, d := range c.members {
		d.Token = key
	}
	return c
}

func hsmToken(b *testing.B, hsm string) *hsmtest.Token {
	b.Helper()
	if hsm == softHSM {
		return hsmtest.New(b)
	}
	token, _ := hsmtest.NewFast(b, hsmtest.FastOptions{})
	return token
}

// benchAppliance is an appliance that has not been started.
func benchAppliance(b *testing.B, token *hsmtest.Token, store string) *daemontest.Daemon {
	b.Helper()
	d := &daemontest.Daemon{Dir: b.TempDir(), Environ: token.Env, Program: daemontest.Program(b)}
	listen := daemontest.FreeAddress(b)
	d.URL = "http://" + listen
	d.Write(b, "attestd.yaml", fmt.Sprintf(
		"data_dir: %q\nserver: { listen: %q }\nadmin: { socket: %q }\nmetrics: { listen: \"127.0.0.1:0\" }\n"+
			"hsm: { uri: %q, worker_paths: [%q] }\njournal: { origin: attestd.invalid/bench }\nstore: { url: %q }\ncluster: { name: %q }\n",
		filepath.Join(d.Dir, "data"), listen, filepath.Join(d.Dir, "admin.sock"), token.URI.String(),
		filepath.Dir(token.URI.ModulePath), store, listen))
	return d
}

func (c *benchCluster) end() {
	for _, d := range append(c.members, c.alone) {
		d.Kill(c)
	}
	c.primary.Stop(c)
}

// measure loads the appliances.
func (c *benchCluster) measure(k clusterCase) (f clusterFigure) {
	c.primary.Synchronous(c, map[bool][]string{true: {"second"}}[k.synchronous]...)
	loaded := c.members[:k.appliances]
	if k.appliances == 0 {
		loaded = []*daemontest.Daemon{c.alone}
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	for i, d := range loaded {
		all.Go(func() {
			before := func(edge int) {
				if i == 0 {
					c.mark(&f, loaded, map[int]float64{0: -1, 1: 1}[edge])
				}
			}
			r := runLoad(c, strings.TrimPrefix(d.URL, "http://"), d.Token, k.connections/len(loaded),
				500*time.Millisecond, clusterWindow, before)
			mu.Lock()
			defer mu.Unlock()
			f.perSecond += r.perSecond
			f.p50, f.p99 = max(f.p50, r.p50), max(f.p99, r.p99)
		})
	}
	all.Wait()
	return f
}

const clusterWindow = 2 * time.Second

// mark adds sign times the counters' present values.
func (c *benchCluster) mark(f *clusterFigure, loaded []*daemontest.Daemon, sign float64) {
	n, err := strconv.ParseFloat(c.primary.Query(c, benchDatabase, "SELECT pg_snapshot_xmax(pg_current_snapshot())"), 64)
	if err != nil {
		c.Error(err)
	}
	f.commits += sign * n / clusterWindow.Seconds()
	f.database += sign * c.primary.CPU().Seconds() / clusterWindow.Seconds()
	for _, d := range loaded {
		f.cpu += sign * (cpuOf(c, d.Cmd.Process.Pid) + cpuOf(c, d.Worker(c))) / 1e6 / clusterWindow.Seconds()
	}
}

func (k clusterCase) print(hsm string, figures []clusterFigure) {
	name := fmt.Sprintf("%d on PostgreSQL", k.appliances)
	switch {
	case k.appliances == 0:
		name = "1 with its own file"
	case k.synchronous:
		name += ", synchronous standby"
	}
	of := func(value func(clusterFigure) float64) float64 {
		sorted := slices.SortedFunc(slices.Values(figures), func(a, b clusterFigure) int {
			return cmp.Compare(value(a), value(b))
		})
		return value(sorted[len(sorted)/2])
	}
	perSecond, commits := of(func(f clusterFigure) float64 {
		return f.perSecond
	}), of(func(f clusterFigure) float64 { return f.commits })
	fmt.Printf("%-8s %-38s %11d %10.0f %6.1fms %6.1fms", hsm, name, k.connections, perSecond,
		of(func(f clusterFigure) float64 {
			return f.p50.Seconds() * 1000
		}),
		of(func(f clusterFigure) float64 { return f.p99.Seconds() * 1000 }))
	cpu := of(func(f clusterFigure) float64 { return f.cpu })
	if k.appliances == 0 {
		fmt.Printf(" %10s %10s %8.2f %8s\n", "", "", cpu, "")
		return
	}
	fmt.Printf(" %10.0f %10.1f %8.2f %8.2f\n", commits, perSecond/commits, cpu, of(func(f clusterFigure) float64 {
		return f.database
	}))
}
