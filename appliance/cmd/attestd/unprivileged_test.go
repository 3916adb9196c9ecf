package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A user without access to the daemon's socket and files gets an error about the missing permission, not about a fault.
func TestAnUnprivilegedUserIsReferredToSudo(t *testing.T) {
	d := asNobody(t)
	for path, mode := range map[string]os.FileMode{d.Dir: 0o755, filepath.Join(d.Dir, "attestd.yaml"): 0o644} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	const stranger = 65533
	try := func(want string, args ...string) {
		t.Helper()
		cmd := d.Command(args...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: stranger, Gid: stranger}}
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "permission denied") || !strings.Contains(string(out), want) {
			t.Errorf("%v does not say %q: %v\n%s", args, want, err, out)
		}
		for _, wrong := range []string{"remove it to attest", "another program", "hsm init", "PKCS#11 library",
			"the first start creates it"} {
			if strings.Contains(string(out), wrong) {
				t.Errorf("%v says %q:\n%s", args, wrong, out)
			}
		}
	}
	check := func() {
		t.Helper()
		try("→ run doctor as root: sudo attestd doctor", "doctor")
		try("; run the command as root: sudo ", "key", "list")
	}
	check() // the environment file is secret
	if err := os.Chmod(filepath.Join(d.Dir, "environment"), 0o644); err != nil {
		t.Fatal(err)
	}
	check()
	d.Start(t)
	t.Cleanup(func() { d.Kill(t) })
	check()
}
