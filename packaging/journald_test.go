//go:build packages

package packaging

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	attestorURL = "http://127.0.0.1:8080/functions/v1/attestor"
	// flood is more lines of the access log than the kernel keeps for a journald that does not read, and attestd in its
	// buffer: systemd sets the socket's buffer to 8 MiB, which the kernel doubles, and a line takes some 250 bytes.
	flood = 100_000
)

// TestJournald stalls, restarts, kills and stops journald, which reads the daemon's log. The daemon attests meanwhile,
// and the journal has afterwards what was not dropped, and how much was.
func TestJournald(t *testing.T) {
	need(t, "dpkg-deb")
	needsBoot(t)
	j := journald{&lifeCycle{machine: newMachine(t)}}
	j.run(t, install(j.put(t, deb(dist, version(t)))))
	j.boot(t)
	j.setup(t)
	j.run(t, "systemctl enable --quiet --now attestd")
	j.attest(t)
	for _, step := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"it stalls", j.stalls},
		{"it stalls while attestd ends", j.stallsAtTheEnd},
		{"it is restarted", j.isRestarted},
		{"it is killed", j.isKilled},
		{"it is stopped and started", j.isStopped},
	} {
		if !t.Run(step.name, step.run) {
			out, _ := j.try(t,
				"systemctl status --no-pager -l attestd systemd-journald; journalctl --no-pager -n 40 -o cat")
			t.Fatalf("%s failed: the steps after it are left out\n%s", step.name, out)
		}
	}
}

type journald struct{ *lifeCycle }

// stalls is a journald that does not read. Its watchdog would end it after three minutes.
func (j journald) stalls(t *testing.T) {
	resume := j.stall(t)
	before := j.dropped(t)
	j.flood(t)
	j.serves(t)
	dropped := j.dropped(t) - before
	if dropped == 0 {
		t.Fatalf("no line was dropped of %d", flood)
	}
	t.Logf("MEASURED lines that are kept while journald stalls: %d, dropped: %d", flood-dropped, dropped)
	resume()
	j.reports(t, dropped)
}

// stallsAtTheEnd stops and starts the service meanwhile.
func (j journald) stallsAtTheEnd(t *testing.T) {
	resume := j.stall(t)
	j.flood(t)
	started := time.Now()
	j.run(t, "systemctl stop attestd")
	t.Logf("MEASURED from systemctl stop to the end: %s", time.Since(started).Round(100*time.Millisecond))
	if got := j.show(t, "attestd", "Result", "ExecMainStatus", "ActiveState"); got[0] != "success" || got[1] != "0" ||
		got[2] != "inactive" {
		t.Errorf("result, status and state after SIGTERM: %v", got)
	}
	j.run(t, "systemctl start attestd")
	j.serves(t)
	resume()
	j.logs(t)
}

// isRestarted takes journald away for a moment. systemd keeps its connections meanwhile.
func (j journald) isRestarted(t *testing.T) {
	before := j.dropped(t)
	j.run(t, "systemctl restart systemd-journald")
	j.serves(t)
	j.logs(t)
	if n := j.dropped(t); n != before {
		t.Errorf("%d lines were dropped", n-before)
	}
}

func (j journald) isKilled(t *testing.T) {
	before := j.dropped(t)
	j.run(t, "systemctl kill --signal=SIGKILL systemd-journald")
	j.serves(t)
	j.logs(t)
	if n := j.dropped(t); n != before {
		t.Errorf("%d lines were dropped", n-before)
	}
}

// isStopped ends the daemon's connection for good.
func (j journald) isStopped(t *testing.T) {
	const units = "systemd-journald.socket systemd-journald-dev-log.socket systemd-journald-audit.socket systemd-journald"
	before := j.dropped(t)
	j.run(t, "systemctl stop "+units)
	t.Cleanup(func() { j.try(t, "systemctl start "+units) })
	j.serves(t)
	j.await(t, "a dropped line", func() bool { return j.dropped(t) > before })
	dropped := j.dropped(t) - before
	process := j.show(t, "attestd", "MainPID")[0]
	j.run(t, "systemctl start "+strings.ReplaceAll(units, "systemd-journald-audit.socket ", "")) // a container has none
	j.logs(t)
	j.reports(t, dropped)
	if got := j.show(t, "attestd", "MainPID")[0]; got != process {
		t.Errorf("process %s became %s", process, got)
	}
}

// stall stops the process of journald, until resume.
func (j journald) stall(t *testing.T) (resume func()) {
	t.Helper()
	process := j.show(t, "systemd-journald", "MainPID")[0]
	j.run(t, "kill -STOP "+process)
	resume = func() { j.try(t, "kill -CONT "+process) }
	t.Cleanup(resume)
	return resume
}

// flood has each request logged.
func (j journald) flood(t *testing.T) {
	t.Helper()
	j.run(t, fmt.Sprintf("curl -sS --output /dev/null '%s?n=[1-%d]'", attestorURL, flood))
}

// serves checks that an attestation is answered, and that the daemon says so.
func (j journald) serves(t *testing.T) {
	t.Helper()
	j.works(t)
	if got := j.run(t, "curl -sS --fail-with-body http://127.0.0.1:8080/readyz"); got != `{"status":"ok"}` {
		t.Errorf("/readyz says %s", got)
	}
}

// logs waits until the journal has a request that begins now. It repeats the request, because journald suppresses the
// lines of a flood for up to 30 seconds.
func (j journald) logs(t *testing.T) {
	t.Helper()
	id := fmt.Sprintf("mark-%d", time.Now().UnixNano())
	j.await(t, "a line of the log", func() bool {
		j.run(t, "curl -sS --output /dev/null -H 'X-Request-Id: "+id+"' "+attestorURL)
		_, err := j.try(t, "journalctl --no-pager -u attestd -o cat | grep -q "+id)
		return err == nil
	})
}

var droppedLines = regexp.MustCompile(`"level":"WARN","msg":"(\d+) log lines were dropped`)

// reports waits until warnings in the journal tell of at least so many dropped lines.
func (j journald) reports(t *testing.T, dropped int) {
	t.Helper()
	j.await(t, "the report of dropped lines", func() bool {
		sum := 0
		warnings := j.run(t, "journalctl --no-pager -u attestd -p warning -o cat")
		for _, line := range droppedLines.FindAllStringSubmatch(warnings, -1) {
			n, _ := strconv.Atoi(line[1])
			sum += n
		}
		return sum >= dropped
	})
}

// dropped is the daemon's own count.
func (j journald) dropped(t *testing.T) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(
		j.run(t, "curl -sS http://127.0.0.1:9464/metrics | sed -n 's/^attestd_log_dropped_total //p'")))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (j journald) await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Minute); !is(); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}
