package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/attestd/attestd/api/client"
	"github.com/attestd/attestd/appliance"
	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/hsmtest"
	"github.com/attestd/attestd/hsm/softhsm"
)

// worker returns the process id of the daemon's HSM worker.
func (d *daemonProcess) worker(tb testing.TB) int {
	tb.Helper()
	var status hsm.Status
	if err := json.Unmarshal([]byte(d.run(tb, "hsm", "status", "--output", "json")), &status); err != nil ||
		status.Worker == 0 {
		tb.Fatalf("%+v, %v", status, err)
	}
	return status.Worker
}

// workerUses lets a module of hsmtest use the files in its folder.
func (d *daemonProcess) workerUses(module string) {
	d.configure("ATTESTD_HSM_WORKER_PATHS=" + filepath.Dir(module))
}

// throughFaults puts a module that fails on demand before SoftHSM.
func (d *daemonProcess) throughFaults(tb testing.TB) *hsmtest.Faults {
	tb.Helper()
	module, err := softhsm.Module()
	if err != nil {
		tb.Fatal(err)
	}
	faults := hsmtest.NewFaults(tb, module)
	d.workerUses(faults.Module)
	path := filepath.Join(d.dir, "attestd.yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	changed := strings.Replace(string(text), module, faults.Module, 1)
	if err := os.WriteFile(path, []byte(changed), 0o600); err != nil || changed == string(text) {
		tb.Fatalf("%s does not name %s: %v", path, module, err)
	}
	return faults
}

// With longRequests, a request may take 30 s, and a call of the HSM 10 s. A gap above longestGap means that
// a request waited for a call to time out. Load alone does not cause such a gap.
const (
	longRequests = "ATTESTD_SERVER_REQUEST_TIMEOUT=30s"
	longestGap   = 7 * time.Second
)

// The worker process ends under load in several ways. Every request is answered, and the journal has all answers. No
// request waits for a call to the dead process. The daemon stays up.
func TestDrillAWorkerThatEndsUnderLoadCostsNoAnsweredRecord(t *testing.T) {
	for name, end := range map[string]func(*testing.T, *daemonProcess, *hsmtest.Faults){
		"SIGKILL": func(t *testing.T, d *daemonProcess, _ *hsmtest.Faults) {
			if err := syscall.Kill(d.worker(t), syscall.SIGKILL); err != nil {
				t.Error(err)
			}
		},
		"a segmentation fault": func(_ *testing.T, _ *daemonProcess, f *hsmtest.Faults) {
			f.Set("C_Sign", hsmtest.Fault{Times: 1, Crash: true})
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDaemonFolder(t)
			faults := d.throughFaults(t)
			d.configure(longRequests)
			d.start(t)
			defer d.kill(t)
			answered, outage := attestWhile(t, d, 16, func() {
				for range 3 {
					before := d.worker(t)
					end(t, d, faults)
					await(t, "another worker", func() (bool, string) { return d.worker(t) != before, "it is the same" })
				}
			})
			recorded := exported(t, d)
			for _, a := range answered {
				if r, ok := recorded[a.ID]; !ok || r.Attestation != a {
					t.Errorf("attestation %s was answered but is not in the journal: %+v", a.ID, r)
				}
			}
			if outage > longestGap {
				t.Errorf("nothing was attested for %s", outage)
			}
			t.Logf("%d attestations answered, the longest outage %s", len(answered), outage)
			if t.Failed() {
				t.Logf("%s", d.log())
			}
		})
	}
}

// attestWhile attests from several clients, and calls do once they are answered. It returns all answers, and the
// longest time between two. A failed request fails the test.
func attestWhile(t *testing.T, d *daemonProcess, clients int,
	do func()) (answered []appliance.Attestation, outage time.Duration) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var mu sync.Mutex
	var last time.Time
	first, begun := make(chan struct{}), sync.Once{}
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			c, err := client.New(d.url, d.token, client.Options{})
			if err != nil {
				t.Error(err)
				return
			}
			for ctx.Err() == nil {
				a, err := c.Attest(t.Context(), randomRequest(), client.AttestOptions{})
				if err != nil {
					t.Errorf("a request failed: %v", err)
					return
				}
				mu.Lock()
				answered = append(answered, a)
				if now := time.Now(); last.IsZero() {
					last = now
				} else {
					outage, last = max(outage, now.Sub(last)), now
				}
				mu.Unlock()
				begun.Do(func() { close(first) })
			}
		})
	}
	defer all.Wait()
	defer cancel() // also if do ends the test
	select {
	case <-first:
		do()
	case <-time.After(patience):
		t.Error("nothing is attested")
	}
	cancel()
	all.Wait()
	return slices.Clip(answered), outage
}

// The worker ends with its daemon, however that ends, even if the worker's own threads are stopped.
func TestTheWorkerEndsWithTheDaemon(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*testing.T, *daemonProcess, int){
		"SIGTERM": func(t *testing.T, d *daemonProcess, _ int) {
			if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Error(err)
			}
			if err := d.cmd.Wait(); err != nil {
				t.Errorf("the daemon: %v\n%s", err, d.log())
			}
		},
		"SIGKILL": func(t *testing.T, d *daemonProcess, _ int) { d.kill(t) },
		"SIGKILL while it is stopped": func(t *testing.T, d *daemonProcess, worker int) {
			if err := syscall.Kill(worker, syscall.SIGSTOP); err != nil {
				t.Error(err)
			}
			d.kill(t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDaemonFolder(t)
			d.start(t)
			worker := d.worker(t)
			end(t, d, worker)
			await(t, "the worker has ended", func() (bool, string) { return ended(worker), "it is still there" })
		})
	}
}

// ended reports whether a process has exited. A zombie has.
func ended(pid int) bool {
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return true
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	_, rest, _ := strings.Cut(string(stat), ") ")
	return err != nil || strings.HasPrefix(rest, "Z")
}
