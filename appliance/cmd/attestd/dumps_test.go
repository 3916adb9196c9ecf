package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/attestd/attestd/appliance/daemontest"
	"github.com/attestd/attestd/hsm/hsmtest"
)

// Other processes of the daemon's user can neither read its memory nor obtain a core dump.
func TestTheDaemonsMemoryIsItsOwn(t *testing.T) {
	t.Parallel()
	d := asNobody(t)
	metrics := daemontest.FreeAddress(t)
	d.Configure("ATTESTD_METRICS_LISTEN=" + metrics)
	runAfter(t, d, "ulimit -c $(ulimit -Hc)") // the limit may be 0 already
	d.Start(t)
	defer d.Kill(t)
	checkMetrics(t, metrics, "process_open_fds ", "process_resident_memory_bytes ") // from /proc, which root owns then
	process := fmt.Sprintf("/proc/%d", d.Cmd.Process.Pid)
	limits, err := os.ReadFile(process + "/limits")
	if err != nil || !regexp.MustCompile(`Max core file size +0 `).Match(limits) {
		t.Errorf("core dumps are allowed (%v):\n%s", err, limits)
	}
	spy := exec.Command("cat", process+"/maps")
	spy.SysProcAttr = &syscall.SysProcAttr{Credential: d.As}
	if out, err := spy.CombinedOutput(); err == nil {
		t.Errorf("another process of the same user reads its memory's map:\n%.200s", out)
	}
	attests(t, d)
}

// runAfter makes the daemon start in a shell, after a command.
func runAfter(t *testing.T, d *daemontest.Daemon, command string) {
	t.Helper()
	script := "#!/bin/sh\n" + command + "\nexec " + d.Program + ` "$@"` + "\n"
	d.Program += "-in-a-shell"
	if err := os.WriteFile(d.Program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
}

// A container may forbid locking memory. The appliance signs anyway, and logs a warning.
func TestAPINThatCannotBeLockedInMemoryIsUsedAllTheSame(t *testing.T) {
	t.Parallel()
	d := asNobody(t)
	d.Start(t)
	d.Kill(t)
	if log := string(d.Log()); hsmtest.CanLock(t) && strings.Contains(log, "could not be locked") {
		t.Errorf("mlock is allowed, but the log says:\n%s", log)
	}
	runAfter(t, d, "ulimit -l 0")
	d.Start(t)
	defer d.Kill(t)
	attests(t, d)
	daemontest.Await(t, "the log says so", func() (bool, string) { // the worker logs, through the daemon
		log := string(d.Log())
		return strings.Contains(log, "the PIN could not be locked in memory"), log
	})
}

// asNobody is an appliance that runs as an unprivileged user.
func asNobody(t *testing.T) *daemontest.Daemon {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can start it as another user")
	}
	const nobody = 65534
	d := daemontest.New(t)
	program, err := exec.LookPath("attestd")
	if err != nil {
		t.Fatal(err)
	}
	open, err := os.MkdirTemp("", "attestd-nobody-") // only root may enter t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(open) })
	for _, args := range [][]string{{"cp", "-a", d.Dir, open + "/appliance"}, {"cp", program, open + "/attestd"},
		{"chown", "-R", fmt.Sprint(nobody), open}, {"chmod", "755", open}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
	was := d.Dir
	d.Dir, d.Program = filepath.Join(open, "appliance"), filepath.Join(open, "attestd")
	for _, name := range []string{"attestd.yaml", "softhsm2.conf"} {
		text, err := os.ReadFile(filepath.Join(d.Dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(d.Dir, name),
			regexp.MustCompile(regexp.QuoteMeta(was)).ReplaceAll(text, []byte(d.Dir)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d.As = &syscall.Credential{Uid: nobody, Gid: nobody}
	return d
}
