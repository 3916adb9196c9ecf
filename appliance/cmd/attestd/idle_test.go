package main

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
)

// idleTime is how long an appliance is left alone, and idleCalls how many system calls it may make meanwhile.
const (
	idleTime  = 10 * time.Second
	idleCalls = 100
)

// An appliance that nobody asks does nothing: a poll, however small, wakes the machine for as long as it runs. Each way of asking is
// used once before, since what wakes is often made by the first request.
func TestAnApplianceThatNobodyAsksIsIdle(t *testing.T) {
	for _, command := range [][]string{{"serve"}, {"dev", "--transfers", "300"}} {
		d := newDaemonFolder(t)
		t.Run(command[0], func(t *testing.T) {
			t.Parallel()
			if command[0] == "dev" {
				command = append(command, "--dir", d.dir, "--listen", strings.TrimPrefix(d.url, "http://"))
			}
			d.cmd = d.command(command...)
			if err := d.cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer d.kill(t)
			if err := waitReady(filepath.Join(d.dir, "admin.sock")); err != nil {
				t.Fatal(err)
			}
			askEverything(t, d)
			// What has begun ends first, such as the collection of garbage, and later on a loaded machine: so the quietest time
			// of some counts. A poll is in all of them.
			var counts []string
			for range 4 {
				calls, text := systemCalls(t, d.cmd.Process.Pid)
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

func askEverything(t *testing.T, d *daemonProcess) {
	t.Helper()
	for path, body := range map[string]string{
		"/healthz": "", "/readyz": "", "/graphiql": "", "/nowhere": "",
		daemon.GraphQLPath:     `{"query":"query Q @cached(ttl: 1) { v2_stats_count { name value } }"}`,
		"/functions/v1/attest": fmt.Sprintf(`{"unspendableAddress":%q,"beneficiary":%q}`, devUnspendable, devBeneficiary),
	} {
		method := http.MethodGet
		if body != "" {
			method = http.MethodPost
		}
		if resp, text := d.ask(t, method, path, d.token, strings.NewReader(body)); resp.StatusCode != http.StatusOK && path != "/nowhere" {
			t.Fatalf("%s: %s %s", path, resp.Status, text)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	d.run(t, "doctor")
}

// systemCalls counts a process's system calls in idleTime. Where it may not be traced, it counts how often its threads went to
// sleep, for which each of them makes a call at least.
func systemCalls(t *testing.T, pid int) (calls int, text string) {
	t.Helper()
	trace := exec.Command("strace", "-c", "-f", "-p", strconv.Itoa(pid))
	var report bytes.Buffer
	trace.Stderr = &report
	if err := trace.Start(); err == nil {
		ended := make(chan error, 1)
		go func() { ended <- trace.Wait() }()
		select {
		case <-ended: // it is not allowed here
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

// straceTotal reads the last line of 'strace -c': "100.00 0.001391 13 103 11 total". No line at all is no call.
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

// sleeps is how often the threads of a process have gone to sleep by themselves.
func sleeps(t *testing.T, pid int) (all int) {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(files) == 0 {
		t.Fatalf("the threads of %d: %v", pid, err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // a thread that has ended
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
