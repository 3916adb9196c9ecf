package sinks_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/attestd/attestd/appliance/sinks"
)

// rsyslog runs rsyslogd(8) with the configuration of docs/siem.md: mutual TLS with one of its two libraries.
type rsyslog struct {
	dir       string
	authority *authority
	program   string
	conf      string // path of its configuration file
	cmd       *exec.Cmd
	stderr    bytes.Buffer
}

func startRsyslog(t *testing.T, driver string) *rsyslog {
	t.Helper()
	program, err := exec.LookPath("rsyslogd")
	if err != nil {
		if program, err = exec.LookPath("/usr/sbin/rsyslogd"); err != nil {
			t.Fatal("rsyslogd is not here: make deps installs it")
		}
	}
	r := &rsyslog{dir: t.TempDir(), authority: newAuthority(t)}
	cert, key := r.authority.issue(t, "siem.example.com")
	conf := filepath.Join(r.dir, "rsyslog.conf")
	check(t, os.WriteFile(conf, []byte(documented(t, "rsyslog",
		"/var/spool/rsyslog", r.dir, "/etc/rsyslog.d/ca.pem", r.authority.ca, "/etc/rsyslog.d/siem.pem", cert,
		"/etc/rsyslog.d/siem.key", key,
		`"gtls"`, `"`+driver+`"`, `port="6514"`, `address="127.0.0.1" port="0" listenPortFileName="`+r.dir+`/port"`,
		"/var/log/attestd.jsonl", filepath.Join(r.dir, "messages"),
	)), 0o600))
	r.program, r.conf = program, conf
	r.start(t)
	t.Cleanup(func() {
		r.kill()
		if t.Failed() {
			t.Logf("rsyslogd: %s", r.stderr.String())
		}
	})
	return r
}

func (r *rsyslog) start(t *testing.T) {
	t.Helper()
	for _, left := range []string{"pid", "port"} { // left over by a kill
		if err := os.Remove(filepath.Join(r.dir, left)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	r.cmd = exec.Command(r.program, "-n", "-f", r.conf, "-i", filepath.Join(r.dir, "pid"))
	r.cmd.Stderr = &r.stderr
	check(t, r.cmd.Start())
}

func (r *rsyslog) kill() {
	_ = r.cmd.Process.Kill()
	_ = r.cmd.Wait() // returns the kill as an error
}

// port waits until rsyslogd listens.
func (r *rsyslog) port(t *testing.T) string {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for late := time.Now().Add(patience); time.Now().Before(late); <-tick.C {
		if port, err := os.ReadFile(filepath.Join(r.dir, "port")); err == nil && len(port) > 0 {
			return strings.TrimSpace(string(port))
		}
	}
	t.Fatal("rsyslogd does not listen")
	return ""
}

// messages waits until rsyslogd has written n lines.
func (r *rsyslog) messages(t *testing.T, n int) []string {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	var lines []string
	for late := time.Now().Add(patience); len(lines) < n; <-tick.C {
		text, _ := os.ReadFile(filepath.Join(r.dir, "messages")) // missing before the first message
		lines = slices.Collect(strings.Lines(string(text)))
		if time.Now().After(late) {
			t.Fatalf("%d of %d messages", len(lines), n)
		}
	}
	return lines
}

// sink returns a destination for this rsyslogd.
func (r *rsyslog) sink(t *testing.T) *sinks.Syslog {
	t.Helper()
	to := &sinks.Syslog{Address: "127.0.0.1:" + r.port(t), Facility: 13, Host: "signer1",
		Security: sinks.Security{CA: r.authority.ca, ServerName: "siem.example.com"}}
	to.Security.Cert, to.Security.Key = r.authority.issue(t, "attestd.example.com")
	return to
}

func TestRsyslogTakesEachEntry(t *testing.T) {
	t.Parallel()
	for _, driver := range []string{"gtls", "ossl"} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			r, j := startRsyslog(t, driver), newJournal(t)
			j.attest(t, 30)
			s := j.ship(t, t.TempDir(), sink("siem", r.sink(t)))
			status := until(t, s, "at the head", func(s sinks.Status) bool { return s.Next == 30 })
			if status.Failures > 0 {
				t.Errorf("%d batches did not count as taken", status.Failures)
			}
			if got := indexesOf(t, r.messages(t, 30)); !slices.Equal(got, from(0, 30)) {
				t.Errorf("%v", got)
			}
		})
	}
}

// fullPipe makes a full named pipe: a writer blocks until end is called.
func fullPipe(t *testing.T, path string) (end func()) {
	t.Helper()
	check(t, unix.Mkfifo(path, 0o600))
	pipe, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	check(t, err)
	for err == nil {
		_, err = unix.Write(pipe, make([]byte, 4096))
	}
	if !errors.Is(err, unix.EAGAIN) {
		t.Fatal(err)
	}
	return func() { check(t, unix.Close(pipe)) }
}

func TestAKillOfRsyslogLosesNothing(t *testing.T) {
	t.Parallel()
	const records = 100
	r, j := startRsyslog(t, "gtls"), newJournal(t)
	file := filepath.Join(r.dir, "messages")
	end := fullPipe(t, file) // blocks all writes until the kill
	j.attest(t, records)
	s := j.ship(t, t.TempDir(), sink("siem", r.sink(t)))
	until(t, s, "at the head", func(s sinks.Status) bool { return s.Next == records })
	r.kill()
	end()
	check(t, os.Remove(file))
	r.start(t)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	var missing []int64
	for late := time.Now().Add(patience); time.Now().Before(late); <-tick.C {
		text, _ := os.ReadFile(file) // missing before the first message
		written := indexesOf(t, slices.Collect(strings.Lines(string(text[:bytes.LastIndexByte(text, '\n')+1]))))
		missing = slices.DeleteFunc(from(0, records), func(i int64) bool { return slices.Contains(written, i) })
		if len(missing) == 0 { // duplicates are allowed
			return
		}
	}
	t.Errorf("%d of %d records are lost: %v", len(missing), records, missing)
}
