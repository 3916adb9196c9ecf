package drills

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/daemontest"
	"github.com/attestd/attestd/hsm/hsmtest"
)

// longestGap is the longest time without an answer, with longRequests. A longer gap means that a request waited for a
// call to time out. Load alone does not cause such a gap.
const longestGap = 7 * time.Second

// The worker process ends under load in several ways. Every request is answered, and the journal has all answers. No
// request waits for a call to the dead process. The daemon stays up.
func TestDrillAWorkerThatEndsUnderLoadCostsNoAnsweredRecord(t *testing.T) {
	for name, end := range map[string]func(*testing.T, *daemontest.Daemon, *hsmtest.Faults){
		"SIGKILL": func(t *testing.T, d *daemontest.Daemon, _ *hsmtest.Faults) {
			if err := syscall.Kill(d.Worker(t), syscall.SIGKILL); err != nil {
				t.Error(err)
			}
		},
		"a segmentation fault": func(_ *testing.T, _ *daemontest.Daemon, f *hsmtest.Faults) {
			f.Set("C_Sign", hsmtest.Fault{Times: 1, Crash: true})
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := daemontest.New(t)
			faults := d.ThroughFaults(t)
			d.Configure(daemontest.LongRequests)
			d.Start(t)
			defer d.Kill(t)
			answered, outage := d.AttestWhile(t, 16, func() {
				for range 3 {
					before := d.Worker(t)
					end(t, d, faults)
					daemontest.Await(t, "another worker", func() (bool, string) {
						return d.Worker(t) != before, "it is the same"
					})
				}
			})
			recorded := d.Records(t)
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
				t.Logf("%s", d.Log())
			}
		})
	}
}

// The worker ends with its daemon, however that ends, even if the worker's own threads are stopped.
func TestTheWorkerEndsWithTheDaemon(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*testing.T, *daemontest.Daemon, int){
		"SIGTERM": func(t *testing.T, d *daemontest.Daemon, _ int) {
			if err := d.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Error(err)
			}
			if err := d.Cmd.Wait(); err != nil {
				t.Errorf("the daemon: %v\n%s", err, d.Log())
			}
		},
		"SIGKILL": func(t *testing.T, d *daemontest.Daemon, _ int) { d.Kill(t) },
		"SIGKILL while it is stopped": func(t *testing.T, d *daemontest.Daemon, worker int) {
			if err := syscall.Kill(worker, syscall.SIGSTOP); err != nil {
				t.Error(err)
			}
			d.Kill(t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := daemontest.New(t)
			d.Start(t)
			worker := d.Worker(t)
			end(t, d, worker)
			daemontest.Await(t, "the worker has ended", func() (bool, string) { return ended(worker), "it is still there" })
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
