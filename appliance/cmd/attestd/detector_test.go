package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
)

// raced is attestd with the race detector, if these tests have it. The race detector makes each process four times as
// expensive, and the tests start some thousand. So the PATH leads to attestd without it, as make build compiles it. The
// daemons of the drills, of racedTests and of racedScripts are raced: they work for many callers at the same time.
var (
	raced      string
	racedTests = []string{
		"TestAnAttestorKeyIsChangedUnderLoadWithoutAFailedRequest", "TestAQuorumAttestsWithoutAnyOneMember",
		"TestADaemonKeepsInStepWithItsUpstream",
	}
	racedScripts = []string{"approvals", "events", "reload", "upstream"}
)

// programFor is the program of a test's daemons.
func programFor(test string) string {
	name, _, _ := strings.Cut(test, "/")
	if strings.HasPrefix(name, "TestDrill") || slices.Contains(racedTests, name) {
		return raced
	}
	return ""
}

// leaveDetectorOut sets raced, and compiles the attestd to which the PATH leads.
func leaveDetectorOut() (err error) {
	if raced, err = exec.LookPath("attestd"); err != nil {
		return err
	}
	info, _ := debug.ReadBuildInfo()
	if !slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		return nil
	}
	dir := filepath.Join(sharedDir, "without-detector")
	// The flags are those of make build, so that the packages are in the cache.
	build := exec.Command("go", "build", "-race=false", "-trimpath", "-buildvcs=false", "-o", filepath.Join(dir, "attestd"),
		".")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("compile attestd without the race detector: %w\n%s", err, out)
	}
	return os.Setenv("PATH", dir+string(filepath.ListSeparator)+os.Getenv("PATH"))
}

// withoutDetector is attestd without the race detector, for tests that kill it while it starts, or measure it.
func withoutDetector(tb testing.TB) string {
	tb.Helper()
	program, err := exec.LookPath("attestd")
	if err != nil {
		tb.Fatal(err)
	}
	return program
}
