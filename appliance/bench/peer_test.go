package bench

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/appliance/daemontest"
	"github.com/attestd/attestd/appliance/journal"
	"github.com/attestd/attestd/store/bolt"
	"github.com/attestd/attestd/store/storetest"
)

// startPeers starts the wanted peers, with the batch sizes that suit them best. stop ends them.
func (s benchSettings) startPeers(tb testing.TB, program string, connections int) (peers []system, stop func()) {
	tb.Helper()
	var running []*exec.Cmd
	for _, name := range []string{integrated, sequenced} {
		if program == "" || !s.wants(name) {
			continue
		}
		address := daemontest.FreeAddress(tb)
		cmd := exec.CommandContext(tb.Context(), program, "-listen", address, "-dir",
			filepath.Join(tb.TempDir(), "log"),
			"-batch-size", strconv.Itoa(connections), fmt.Sprintf("-sequenced=%t", name == sequenced))
		s.onServerCores(tb, func() {
			if err := cmd.Start(); err != nil {
				tb.Fatal(err)
			}
		})
		daemontest.WaitListening(tb, address)
		running = append(running, cmd)
		peers = append(peers, system{name, func(tb testing.TB, connections int) row {
			return s.measurePeer(tb, address, cmd.Process.Pid, connections)
		}})
	}
	return peers, func() {
		for _, cmd := range running {
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // returns that it was killed
		}
	}
}

func (s benchSettings) measurePeer(tb testing.TB, address string, pid, connections int) row {
	tb.Helper()
	r := row{Connections: connections, Cores: s.cores}
	var cpu [2]float64
	f := s.load(tb, "http://"+address, "", connections, func(edge int) { cpu[edge] = cpuOf(tb, pid) })
	r.take(f, cpu[1]-cpu[0], 0)
	return r
}

// buildPeer compiles the peer. It is a separate Go module, so that the product does not depend on the peer's modules.
func buildPeer(tb testing.TB) (program string, err error) {
	tb.Helper()
	program = filepath.Join(tb.TempDir(), "peer")
	build := exec.CommandContext(tb.Context(), "go", "build", "-o", program, ".")
	build.Dir = filepath.Join("testdata", "tessera")
	if text, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the peer: %w\n%s", err, text)
	}
	return program, nil
}

// journalAlone is the journal with callers that have their signatures already. Its rate bounds the rate of one
// appliance.
func (s benchSettings) journalAlone(tb testing.TB) system {
	tb.Helper()
	key, _, err := journal.NewLogKey("bench.example/journal")
	if err != nil {
		tb.Fatal(err)
	}
	store, err := bolt.Open(filepath.Join(tb.TempDir(), "attestd.db"),
		bolt.Options{Signer: key.Signer, Verifier: key.Verifier})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = store.Close() })
	record := storetest.Record(tb, "aaaaaaaaaaaaaaaa")
	return system{alone, func(tb testing.TB, callers int) row { return s.append(tb, store.Journal(), record, callers) }}
}

// append has each caller append one record after another.
func (s benchSettings) append(tb testing.TB, to journal.Journal, record appliance.Record, callers int) row {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), s.window)
	defer cancel()
	var appended atomic.Int64
	var wg sync.WaitGroup
	cpu, began := ownCPU(), time.Now()
	for range callers {
		wg.Go(func() {
			for r, more := record, true; more; more = ctx.Err() == nil {
				r.ID = uuid.Must(uuid.NewV7())
				if _, _, err := to.Append(tb.Context(), r); err != nil {
					tb.Errorf("append: %v", err)
					return
				}
				appended.Add(1)
			}
		})
	}
	wg.Wait()
	n := float64(appended.Load())
	return row{Connections: callers, Cores: s.cores, PerSecond: n / time.Since(began).Seconds(),
		Daemon: micros(ownCPU()-cpu) / n}
}
