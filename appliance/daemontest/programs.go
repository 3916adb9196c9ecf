package daemontest

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/attestd/attestd/hsm/worker"
)

// Main runs the tests of a package. Programs are additional programs that tests start by their names. If attestd is
// among them, the PATH leads to attestd for all tests; otherwise attestd is compiled when a test first needs it.
func Main(m *testing.M, programs map[string]func()) {
	worker.Main() // for tests that run a daemon in this process
	all := maps.Clone(programs)
	if all == nil {
		all = make(map[string]func())
	}
	all["thief"] = thief
	testscript.Main(tests{m, programs["attestd"] != nil}, all)
}

// tests are the tests of a package. With own, testscript put an attestd into the PATH that is this test binary.
type tests struct {
	*testing.M
	own bool
}

// Run makes sharedDir, and runs the tests.
func (t tests) Run() int {
	var err error
	if sharedDir, err = os.MkdirTemp("", "attestd-test"); err != nil {
		panic(err)
	}
	defer os.RemoveAll(sharedDir)
	if t.own {
		if ownProgram, err = exec.LookPath("attestd"); err != nil {
			panic(err)
		}
		program, err := withoutDetector()
		if err == nil {
			err = os.Setenv("PATH", filepath.Dir(program)+string(filepath.ListSeparator)+os.Getenv("PATH"))
		}
		if err != nil {
			panic(err)
		}
	}
	return t.M.Run()
}

var (
	sharedDir  string // for what several tests use; removed after the last one
	ownProgram string // the attestd that is this test binary; empty if it is none
)

// Program is attestd without the race detector, which makes each process four times as expensive.
func Program(tb testing.TB) string { return path(tb, withoutDetector) }

// Raced is attestd with the race detector, if these tests have it. Daemons that work for many callers at the same time
// use it.
func Raced(tb testing.TB) string { return path(tb, withDetector) }

func path(tb testing.TB, program func() (string, error)) string {
	tb.Helper()
	path, err := program()
	if err != nil {
		tb.Fatal(err)
	}
	return path
}

var withoutDetector = sync.OnceValues(func() (string, error) {
	if ownProgram != "" && !detects() {
		return ownProgram, nil
	}
	// The flags are those of make build, so that the packages are in the cache.
	return compile("plain", "-race=false", "-trimpath", "-buildvcs=false")
})

var withDetector = sync.OnceValues(func() (string, error) {
	switch {
	case !detects():
		return withoutDetector()
	case ownProgram != "":
		return ownProgram, nil
	}
	return compile("raced", "-race") // with the flags of these tests, whose packages are in the cache
})

// detects reports whether this test binary has the race detector.
func detects() bool {
	info, _ := debug.ReadBuildInfo()
	return slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// compile compiles attestd into a folder of sharedDir.
func compile(folder string, flags ...string) (string, error) {
	program := filepath.Join(sharedDir, folder, "attestd")
	args := append(append([]string{"build"}, flags...), "-o", program, "github.com/attestd/attestd/appliance/cmd/attestd")
	if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("compile attestd: %w\n%s", err, out)
	}
	return program, nil
}
