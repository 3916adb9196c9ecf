package worker_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	landlock "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"

	"github.com/attestd/attestd/hsm"
	"github.com/attestd/attestd/hsm/hsmtest"
	"github.com/attestd/attestd/hsm/sandbox"
	"github.com/attestd/attestd/hsm/worker"
)

// needsLandlock skips a test of an act that only this version of Landlock can refuse.
func needsLandlock(t *testing.T, version int) {
	t.Helper()
	if has, err := landlock.LandlockGetABIVersion(); err != nil || has < version {
		t.Skipf("the kernel has version %d of Landlock's ABI (%v), and this takes version %d", has, err, version)
	}
}

// openThief opens a token through a malicious module, and returns the log of the module's acts.
func openThief(t *testing.T, rules sandbox.Rules, acts ...string) (s *worker.Signer, said *logged) {
	t.Helper()
	token := hsmtest.New(t)
	real := token.URI.ModulePath
	token.URI.ModulePath = hsmtest.Thief(t, real, acts...)
	rules.Paths = append(rules.Paths, filepath.Dir(token.PINFile))
	s, said = open(t, worker.Options{HSM: hsm.Options{URI: token.URI, Sessions: 2}, Sandbox: rules})
	wantLog(t, said, "thief: has tried all")
	return s, said
}

// wantRefused checks that each act was tried and refused.
func wantRefused(t *testing.T, said *logged, acts ...string) {
	t.Helper()
	for _, act := range acts {
		tried := "thief: " + act + ": "
		if text := said.String(); !strings.Contains(text, tried) || strings.Contains(text, tried+"done") {
			t.Errorf("%s: not tried, or not refused", act)
		}
	}
}

func wantDone(t *testing.T, said *logged, acts ...string) {
	t.Helper()
	for _, act := range acts {
		if !strings.Contains(said.String(), "thief: "+act+": done") {
			t.Errorf("%s: refused", act)
		}
	}
}

// A malicious library cannot open or create the daemon's files, nor see or stop its process, and the token still signs.
func TestAMaliciousLibraryOpensNoFileOfTheDaemons(t *testing.T) {
	needsLandlock(t, 1)
	dir := t.TempDir()
	var acts []string
	for _, name := range []string{"log.key", "attestd.db", "attestd.yaml"} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("secret"), 0o600); err != nil {
			t.Fatal(err)
		}
		acts = append(acts, "read "+path, "write "+path)
	}
	own := fmt.Sprintf("/proc/%d/", os.Getpid())
	acts = append(acts, "create "+filepath.Join(dir, "new"), "list "+dir, "read "+own+"environ", "write "+own+"mem",
		"list "+own+"root",
		"read /etc/shadow", "list /root", fmt.Sprintf("trace %d", os.Getpid()))
	signal := fmt.Sprintf("kill %d", os.Getpid())
	s, said := openThief(t, sandbox.Rules{Network: sandbox.Any}, append(acts, signal)...)
	wantRefused(t, said, acts...)
	mustSign(t, s)
	t.Run("signals", func(t *testing.T) {
		needsLandlock(t, 6)
		wantRefused(t, said, signal)
	})
}

// A library can make only the sockets that hsm.worker_network allows, even on a kernel without Landlock.
func TestALibraryMakesTheSocketsItNeedsOnly(t *testing.T) {
	tcp, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	path := filepath.Join(t.TempDir(), "s")
	local, err := new(net.ListenConfig).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	_, port, _ := net.SplitHostPort(tcp.Addr().String())
	acts := []string{"tcp " + port, "udp " + port, "unix " + path, "io_uring 0"}
	for _, test := range []struct {
		network       sandbox.Network
		done, refused []string
	}{
		{sandbox.None, nil, acts},
		{sandbox.Unix, acts[2:3], []string{acts[0], acts[1], acts[3]}},
		{sandbox.Any, acts[:3], nil},
	} {
		t.Run(string(test.network), func(t *testing.T) {
			s, said := openThief(t, sandbox.Rules{Network: test.network, Paths: []string{filepath.Dir(path)}}, acts...)
			wantDone(t, said, test.done...)
			wantRefused(t, said, test.refused...)
			mustSign(t, s)
		})
	}
}

// The admin socket recognises a worker by its mark, and every process that descends from one, even after it has left
// its parent.
func TestAWorkerIsMarked(t *testing.T) {
	s, _ := open(t, sessions(1, hsmtest.New(t).URI))
	if marked, err := sandbox.Marked(workerOf(t, s)); !marked || err != nil {
		t.Errorf("the worker: %v, %v", marked, err)
	}
	if marked, err := sandbox.Marked(os.Getpid()); marked || err != nil {
		t.Errorf("the daemon: %v, %v", marked, err)
	}
	if marked, err := sandbox.Marked(1); marked || err != nil {
		t.Errorf("another process: %v, %v", marked, err)
	}
	if _, err := sandbox.Marked(unix.Getpid() + 1<<22); err == nil { // above the kernel's largest process id
		t.Error("no error for a process that is not there")
	}
}

// A path that would give the library access to the daemon's data is refused before the library is loaded.
func TestNoPathOfALibraryHoldsTheDaemonsData(t *testing.T) {
	token := hsmtest.New(t)
	dir := t.TempDir()
	data := filepath.Join(dir, "data", "attestd")
	if err := os.MkdirAll(data, 0o700); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(data, link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, data, link, filepath.Join(dir, "missing")} {
		options := sessions(1, token.URI)
		options.Sandbox = sandbox.Rules{Paths: []string{path}, Protected: []string{data}}
		s, err := worker.Open(t.Context(), options)
		if err == nil {
			_ = s.Close()
			t.Errorf("%s: opened", path)
		} else if !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "hsm.worker_paths") {
			t.Errorf("%s: %v", path, err)
		}
	}
}
