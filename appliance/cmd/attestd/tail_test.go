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

	"github.com/attestd/attestd/appliance/daemontest"
)

// following is a command that follows the journal.
type following struct {
	cmd      *exec.Cmd
	lines    *bufio.Scanner
	said     bytes.Buffer
	attested func(line string) bool // false for an event
}

func follows(t *testing.T, d *daemontest.Daemon, attested func(line string) bool, args ...string) *following {
	t.Helper()
	f := &following{cmd: d.Command(args...), attested: attested}
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
	d := daemontest.New(t)
	d.Start(t)
	defer func() { d.Kill(t) }()
	attest := func() {
		t.Helper()
		d.Run(t, "attest", "--url", d.URL, "--api-key-file", filepath.Join(d.Dir, "api-key"), "--unspendable",
			devUnspendable, "--beneficiary", devBeneficiary)
	}
	attest()
	hasAddress := func(line string) bool { return strings.Contains(line, devBeneficiary) }
	noEvent := func(line string) bool { return !strings.Contains(line, "event: ") }
	export := follows(t, d, hasAddress, "log", "export", "--follow")
	list := follows(t, d, noEvent, "log", "list", "--follow")
	objects := follows(t, d, hasAddress, "log", "list", "--follow", "--attestations", "--output", "json")
	next := func() {
		t.Helper()
		export.next(t)
		list.next(t)
		objects.next(t)
	}
	next()
	attest()
	next()
	d.Kill(t)
	d.Start(t)
	attest()
	next()
	export.interrupt(t, `interrupted after \d+ records; to continue, give --from \d+`)
	list.interrupt(t, "attestd: interrupted\n")
	objects.interrupt(t, `"code":"interrupted"`)
}
