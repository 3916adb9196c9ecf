package bench

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/daemontest"
	"github.com/attestd/attestd/appliance/index/dataset"
)

// Flags of BenchmarkScale. It shares -rounds, -window, -results and -page with BenchmarkAttestations.
var (
	scaleTransfers = flag.Int("transfers", 10_000_000,
		"BenchmarkScale: how many transfers are filled in; 0 measures nothing, and makes the page alone")
	scaleDir = flag.String("dir", "/var/tmp",
		"BenchmarkScale: where the replicas are made, in a folder that is removed")
	scaleLive = flag.Duration("live", 30*time.Second, "BenchmarkScale: for how long new transfers are followed")
)

// scale is the settings of a measurement.
type scale struct {
	transfers int           // in the largest replica
	middle    int           // in the middle one, which is left out if it equals another
	small     int           // in the smallest
	each      int           // transfers per line of the table
	live      time.Duration // for which new transfers are followed
	perSecond int           // new transfers per second
	window    time.Duration // of one measurement of a read
	rounds    int
	say       func(format string, args ...any) // prints the progress
}

// BenchmarkScale measures the replica as it grows. For each million of generated transfers, it measures the rate of
// `attestd replica import`, the size of the file, and the memory of the process. It compares five reads over HTTP from
// the full replica with one of a million and one of ten thousand transfers, in turns. Finally it measures the delay
// from a write upstream until the full replica, as a follower, serves the new transfer. The rows of the next million
// are made while one is imported. Ctrl-C ends it and removes its files.
func BenchmarkScale(b *testing.B) {
	ctx, stop := signal.NotifyContext(b.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var runs []scaleRun
	for b.Loop() {
		if *scaleTransfers == 0 {
			continue
		}
		scaleFolder(b, *scaleDir)
		s := scale{
			transfers: *scaleTransfers, middle: min(1_000_000, *scaleTransfers), small: min(10_000, *scaleTransfers),
			each: max(1, min(1_000_000, *scaleTransfers/10)), live: *scaleLive, perSecond: 1000, window: *benchWindow,
			rounds: *benchRounds,
			say:    func(format string, args ...any) { fmt.Printf(format+"\n", args...) },
		}
		runs = append(runs, s.measure(ctx, b, newScaleDaemons(b)))
	}
	for _, r := range runs {
		fmt.Print(r.tables())
	}
	if *benchResults == "" {
		return
	}
	all, err := keepScale(*benchResults, runs)
	if err == nil && *benchPage != "" {
		err = writePage(*benchPage, "scale.json", all.tables())
	}
	if err != nil {
		b.Fatal(err)
	}
}

// scaleFolder makes the folder for all temporary files. It removes the files of a killed run, and refuses a second run
// at the same time.
func scaleFolder(b *testing.B, parent string) {
	folder := filepath.Join(parent, "attestd-scale")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		b.Fatal(err)
	}
	dir, err := os.Open(folder)
	if err != nil {
		b.Fatal(err)
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		b.Fatalf("lock %s: %v: another run is under way there; ARGS='-dir PATH' takes another place", folder, err)
	}
	b.Cleanup(func() { _, _ = os.RemoveAll(folder), dir.Close() })
	left, err := filepath.Glob(filepath.Join(folder, "*"))
	for _, path := range left {
		if err == nil {
			err = os.RemoveAll(path)
		}
	}
	if err != nil {
		b.Fatal(err)
	}
	b.Setenv("TMPDIR", folder)
}

// scaleDaemons are appliances with empty replicas.
type scaleDaemons struct{ small, middle, large *daemontest.Daemon }

func newScaleDaemons(tb testing.TB) scaleDaemons {
	tb.Helper()
	empty := func() *daemontest.Daemon {
		d := daemontest.New(tb)
		d.Configure("ATTESTD_LIMITS_GRAPHQL_RATE=unlimited")
		return d
	}
	return scaleDaemons{empty(), empty(), empty()}
}

// measure fills the replicas, reads them, and makes the largest follow the smallest.
func (s scale) measure(ctx context.Context, tb testing.TB, d scaleDaemons) scaleRun {
	tb.Helper()
	world := newWorld(tb, d.small, dataset.GenerateOptions{Transfers: s.small, Seed: 2, Now: time.Now()})
	s.checkRoom(tb, d.small)
	replicas := []sizedDaemon{{d.small, s.small}}
	if s.middle != s.small && s.middle != s.transfers {
		middle := sizedDaemon{d.middle, s.middle}
		s.fill(ctx, tb, middle, s.middle)
		replicas = append(replicas, middle)
	}
	large := sizedDaemon{d.large, s.transfers}
	run := scaleRun{Transfers: s.transfers, Cores: runtime.NumCPU(), Fill: s.fill(ctx, tb, large, s.each)}
	run.Reads = s.read(ctx, tb, append(replicas, large))
	run.Follow = s.follow(ctx, tb, d.small, large, world)
	return run
}

// sizedDaemon is an appliance whose replica has so many transfers.
type sizedDaemon struct {
	*daemontest.Daemon
	transfers int
}

// checkRoom fails the test if the disk is too small. It expects the size per transfer of the smallest replica, and a
// quarter more. The imported rows take a third as much, for two lines of the table at once.
func (s scale) checkRoom(tb testing.TB, small *daemontest.Daemon) {
	tb.Helper()
	each := fileSize(tb, small.Replica()) / float64(s.small) * 1.25
	wanted := each * float64(s.transfers+s.middle+2*s.each/3)
	var disk unix.Statfs_t
	if err := unix.Statfs(small.Dir, &disk); err != nil {
		tb.Fatal(err)
	}
	if free := float64(disk.Bavail) * float64(disk.Bsize); free < wanted {
		tb.Fatalf(
			"%s transfers and what they are compared with take some %.1f GB, and %s has %.1f GB free: ARGS='-transfers %d' takes less, ARGS='-dir PATH' another disk",
			thousands(float64(s.transfers)), wanted/1e9, small.Dir, free/1e9, s.transfers/10)
	}
}

func fileSize(tb testing.TB, path string) float64 {
	tb.Helper()
	stat, err := os.Stat(path)
	if err != nil {
		tb.Fatal(err)
	}
	return float64(stat.Size())
}

// fill imports as many transfers as the replica is to have, so many at a time.
func (s scale) fill(ctx context.Context, tb testing.TB, d sizedDaemon, each int) (lines []filled) {
	tb.Helper()
	ctx, cancel := context.WithCancel(ctx)
	parts := makeRows(ctx, tb.TempDir(), dataset.GenerateOptions{Transfers: d.transfers, Seed: 1, Now: time.Now()},
		each)
	defer func() {
		cancel()
		for range parts { // until the folder is written no more
		}
	}()
	done := 0
	for part := range parts {
		if part.err != nil {
			tb.Fatalf("make rows: %v", part.err)
		}
		done += part.transfers
		line := d.importPart(ctx, tb, part)
		line.Transfers = done
		line.Bytes = fileSize(tb, d.Replica())
		lines = append(lines, line)
		s.say("%11s of %s transfers: %s a second, %s rows a second, file %s MB, %.0f bytes each, RssAnon %.0f MB",
			thousands(float64(done)), thousands(float64(d.transfers)),
			thousands(line.PerSecond), thousands(line.Rows), thousands(line.Bytes/1e6), line.Bytes/float64(done),
			line.Anonymous/1e6)
		_ = os.Remove(part.path)
	}
	if done != d.transfers {
		tb.Fatalf("interrupted after %d of %d transfers", done, d.transfers)
	}
	return lines
}

// importPart imports a file, without a daemon.
func (d sizedDaemon) importPart(ctx context.Context, tb testing.TB, part madePart) filled {
	tb.Helper()
	cmd := d.Command("replica", "import", part.path, "--output", "json")
	var imported struct {
		dataset.Imported
		Seconds float64 `json:"seconds"`
	}
	memory, out, err := runWatched(ctx, tb, cmd)
	if err == nil {
		err = json.Unmarshal(out, &imported)
	}
	if err != nil {
		tb.Fatalf("import: %v: %s", err, out)
	}
	return filled{PerSecond: float64(part.transfers) / imported.Seconds,
		Rows: float64(imported.Rows) / imported.Seconds, Anonymous: memory.Anonymous}
}

// read measures each kind of read on each replica, in turns.
func (s scale) read(ctx context.Context, tb testing.TB, replicas []sizedDaemon) (lines []readAt) {
	tb.Helper()
	requests := make([][][][]byte, len(replicas)) // by replica and kind
	for i, d := range replicas {
		samples := sampleReplica(tb, d.Daemon)
		d.Start(tb)
		tb.Cleanup(func() { d.Kill(tb) })
		for _, k := range readKinds {
			requests[i] = append(requests[i], k.requests(tb, d.URL, samples))
		}
	}
	for kind, k := range readKinds {
		figures := make([][]figure, len(replicas))
		for range s.rounds {
			for i, d := range replicas {
				if ctx.Err() != nil {
					tb.Fatal("interrupted")
				}
				figures[i] = append(figures[i],
					load(tb, d.URL, cpuOfProcess(tb, d.Cmd.Process.Pid), requests[i][kind], readConnections, s.window))
			}
		}
		for i, d := range replicas {
			f := median(figures[i])
			lines = append(lines, readAt{
				Query: k.name, Transfers: d.transfers, PerSecond: f.perSecond, CPU: f.cpuMicros, P50: micros(f.p50),
				P99:   micros(f.p99),
				Ratio: middleRatio(figures[0], figures[i]), Anonymous: daemontest.MemoryOf(d.Cmd.Process.Pid).Anonymous,
			})
		}
		s.say("read: %s", k.name)
	}
	return lines
}

// follow makes the largest replica follow the smallest, while new transfers are written to that.
func (s scale) follow(ctx context.Context, tb testing.TB, up *daemontest.Daemon, d sizedDaemon,
	world *dataset.World) followed {
	tb.Helper()
	if ctx.Err() != nil {
		tb.Fatal("interrupted")
	}
	d.Kill(tb)
	d.Configure("ATTESTD_GRAPHQL_UPSTREAM=" + up.URL + daemon.GraphQLPath)
	d.Start(tb)
	s.say("follow: %d new transfers a second for %v", s.perSecond, s.live)
	began, peak := time.Now(), watchMemory(tb, d.Cmd.Process.Pid)
	lags := followLive{perSecond: s.perSecond, lasts: s.live}.measure(ctx, tb, up, d.Daemon, world)
	n := len(lags)
	return followed{
		PerSecond: s.perSecond, New: n, P50: lags[n/2].Seconds(), P99: lags[n*99/100].Seconds(),
		Most:   lags[n-1].Seconds(),
		InStep: time.Since(began).Seconds(), Anonymous: peak().Anonymous,
	}
}
