package main

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/attestd/attestd/appliance/daemontest"

	landlock "github.com/landlock-lsm/go-landlock/landlock/syscall"

	"github.com/attestd/attestd/hsm/hsmtest"
	"github.com/attestd/attestd/hsm/softhsm"
)

// A malicious HSM library cannot read the log key, the API keys or the configuration. It cannot create an API key over
// the admin socket, not even from an orphaned process. The appliance still attests with it, and the log reports the
// attempt.
func TestAMaliciousLibraryGetsNothingOfTheAppliance(t *testing.T) {
	t.Parallel()
	module, err := softhsm.Module()
	if err != nil {
		t.Fatal(err)
	}
	d := daemontest.New(t)
	file := func(name string) string { return filepath.Join(d.Dir, name) }
	socket := []string{"api-key " + file("admin.sock"), "api-key-orphan " + file("admin.sock")}
	files := []string{
		"read " + file("data/log.key"), "write " + file("data/log.key"), "read " + file("data/attestd.db"),
		"write " + file("data/attestd.db"),
		"read " + file("attestd.yaml"), "write " + file("attestd.yaml"), "read " + file("api-key"),
		"create " + file("data/new"),
	}
	d.UseModule(t, hsmtest.Thief(t, module, append(files, socket...)...))
	d.Configure("ATTESTD_HSM_WORKER_NETWORK=unix")
	d.Start(t)
	defer d.Kill(t)
	// The library loads before the admin socket exists. The next worker finds the socket.
	first := d.Worker(t)
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	daemontest.Await(t, "another worker", func() (bool, string) { return d.Worker(t) != first, "it is the same" })
	daemontest.Await(t, "the library has tried all", func() (bool, string) {
		return strings.Count(string(d.Log()), "thief: has tried all") >= 2, string(d.Events())
	})
	said := string(d.Log())
	for _, act := range socket {
		wantRefused(t, said, act)
	}
	if !strings.Contains(said, "tried to use the admin socket") {
		t.Errorf("the log does not name the attempt:\n%s", said)
	}
	if keys := d.Run(t, "key", "list"); strings.Contains(keys, "thief") {
		t.Errorf("the library made an API key:\n%s", keys)
	}
	attests(t, d)
	t.Run("files", func(t *testing.T) {
		if version, err := landlock.LandlockGetABIVersion(); err != nil {
			t.Skipf("the kernel has no Landlock: %d, %v", version, err)
		}
		for _, act := range files {
			wantRefused(t, said, act)
		}
	})
}

func wantRefused(t *testing.T, said, act string) {
	t.Helper()
	if tried := "thief: " + act + ": "; !strings.Contains(said, tried) || strings.Contains(said, tried+"done") {
		t.Errorf("%s: not tried, or not refused", act)
	}
}
