package main

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// following is a command that follows the journal.
type following struct {
	cmd      *exec.Cmd
	lines    *bufio.Scanner
	said     bytes.Buffer
	attested func(line string) bool // false for an event
}

func (d *daemonProcess) following(t *testing.T, attested func(line string) bool, args ...string) *following {
	t.Helper()
	f := &following{cmd: d.command(args...), attested: attested}
	out, err := f.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	f.lines, f.cmd.Stderr = bufio.NewScanner(out), &f.said
	if err := f.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.cmd.Process.Kill() })
	return f
}

// next waits for the next attestation.
func (f *following) next(t *testing.T) {
	t.Helper()
	for f.lines.Scan() {
		if f.attested(f.lines.Text()) {
			return
		}
	}
	t.Fatalf("%s ended: %v: %s", f.cmd, f.lines.Err(), f.said.String())
}

func (f *following) interrupt(t *testing.T, says string) {
	t.Helper()
	if err := f.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_ = f.cmd.Wait()
	if status := f.cmd.ProcessState.ExitCode(); status != exitInterrupted ||
		!regexp.MustCompile(says).MatchString(f.said.String()) {
		t.Errorf("%s: status %d: %s", f.cmd, status, f.said.String())
	}
}

// A command that follows the journal continues over a restart of the daemon, until it is interrupted.
func TestWhatFollowsGoesOnUntilItIsInterrupted(t *testing.T) {
	t.Parallel()
	d := newDaemonFolder(t)
	d.start(t)
	defer func() { d.kill(t) }()
	attest := func() {
		t.Helper()
		d.run(t, "attest", "--url", d.url, "--api-key-file", filepath.Join(d.dir, "api-key"), "--unspendable",
			devUnspendable, "--beneficiary", devBeneficiary)
	}
	attest()
	hasAddress := func(line string) bool { return strings.Contains(line, devBeneficiary) }
	noEvent := func(line string) bool { return !strings.Contains(line, "event: ") }
	export := d.following(t, hasAddress, "log", "export", "--follow")
	list := d.following(t, noEvent, "log", "list", "--follow")
	objects := d.following(t, hasAddress, "log", "list", "--follow", "--attestations", "--output", "json")
	next := func() {
		t.Helper()
		export.next(t)
		list.next(t)
		objects.next(t)
	}
	next()
	attest()
	next()
	d.kill(t)
	d.start(t)
	attest()
	next()
	export.interrupt(t, `interrupted after \d+ records; to continue, give --from \d+`)
	list.interrupt(t, "attestd: interrupted\n")
	objects.interrupt(t, `"code":"interrupted"`)
}
