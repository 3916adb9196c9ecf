package drills

import (
	"bufio"
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/attestd/attestd/appliance/daemon"
	"github.com/attestd/attestd/appliance/daemontest"
)

// idleTime is the time without requests, and idleCalls is the limit for system calls in that time.
const (
	idleTime  = 10 * time.Second
	idleCalls = 100
)

// An appliance without requests is idle: even a small poll would wake the machine forever. The test uses each interface
// once before, since a first request often creates timers.
func TestDrillAnApplianceThatNobodyAsksIsIdle(t *testing.T) {
	t.Parallel()
	for _, command := range [][]string{{"serve"}, {"dev", "--transfers", "300"}} {
		t.Run(command[0], func(t *testing.T) {
			t.Parallel()
			d := daemontest.New(t)
			if command[0] == "dev" {
				command = append(command, "--dir", d.Dir, "--listen", strings.TrimPrefix(d.URL, "http://"))
			}
			d.Cmd = d.Command(command...)
			if err := d.Cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer d.Kill(t)
			if err := daemontest.WaitReady(filepath.Join(d.Dir, "admin.sock")); err != nil {
				t.Fatal(err)
			}
			askEverything(t, d)
			// Earlier work, such as a garbage collection, may still run on a loaded machine. So the quietest of several
			// periods counts. A poll would be in all of them.
			var counts []string
			for range 4 {
				calls, text := systemCalls(t, d.Cmd.Process.Pid)
				t.Logf("%d system calls in %s:\n%s", calls, idleTime, text)
				if calls < idleCalls {
					return
				}
				counts = append(counts, strconv.Itoa(calls))
			}
			t.Errorf("%s system calls in %s each, at most %d are idle", strings.Join(counts, ", "), idleTime, idleCalls)
		})
	}
}

func askEverything(t *testing.T, d *daemontest.Daemon) {
	t.Helper()
	for path, body := range map[string]string{
		"/healthz": "", "/readyz": "", "/graphiql": "", "/nowhere": "",
		daemon.GraphQLPath: `{"query":"query Q @cached(ttl: 1) { v2_stats_count { name value } }"}`,
		"/functions/v1/attest": fmt.Sprintf(`{"unspendableAddress":%q,"beneficiary":%q}`, "0xD1220A0cf47c7B9Be7A2E6BA89F429762e7b9aDb",
			"0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"),
	} {
		method := http.MethodGet
		if body != "" {
			method = http.MethodPost
		}
		if resp, text := d.Ask(t, method, path, d.Token, strings.NewReader(body)); resp.StatusCode != http.StatusOK &&
			path != "/nowhere" {
			t.Fatalf("%s: %s %s", path, resp.Status, text)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	d.Run(t, "doctor")
}

// systemCalls counts the system calls of a process in idleTime. If tracing is forbidden, it counts how often the
// threads went to sleep, which takes at least one call each.
func systemCalls(t *testing.T, pid int) (calls int, text string) {
	t.Helper()
	trace := exec.Command("strace", "-c", "-f", "-p", strconv.Itoa(pid))
	var report bytes.Buffer
	trace.Stderr = &report
	if err := trace.Start(); err == nil {
		ended := make(chan error, 1)
		go func() { ended <- trace.Wait() }()
		select {
		case <-ended: // tracing is forbidden here
		case <-time.After(idleTime):
			_ = trace.Process.Signal(syscall.SIGINT)
			<-ended
		}
		if calls, ok := straceTotal(report.String()); ok {
			return calls, report.String()
		}
	}
	before := sleeps(t, pid)
	<-time.After(idleTime)
	return sleeps(t, pid) - before, "(counted without strace)"
}

// straceTotal reads the last line of 'strace -c': "100.00 0.001391 13 103 11 total". A report without lines means 0
// calls.
func straceTotal(report string) (calls int, ok bool) {
	for line := range strings.Lines(report) {
		fields := strings.Fields(line)
		if len(fields) >= 5 && fields[len(fields)-1] == "total" {
			n, err := strconv.Atoi(fields[3])
			return n, err == nil
		}
	}
	return 0, strings.Contains(report, "detached")
}

// sleeps is the number of voluntary context switches of a process's threads.
func sleeps(t *testing.T, pid int) (all int) {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(files) == 0 {
		t.Fatalf("the threads of %d: %v", pid, err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // the thread has ended
		}
		for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
			if n, found := strings.CutPrefix(lines.Text(), "voluntary_ctxt_switches:"); found {
				count, _ := strconv.Atoi(strings.TrimSpace(n))
				all += count
			}
		}
	}
	return all
}
