package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/attestd/attestd/appliance/daemontest"
)

// realWitness is a third-party witness, which runs as a process. Its modules are not dependencies of the product.
type realWitness struct{ name, vkey, url string }

// line is its line in a policy.
func (w realWitness) line() string { return fmt.Sprintf("witness %s %s %s\n", w.name, w.vkey, w.url) }

// realWitnesses starts witnesses of two implementations, configured for the log with that key.
func realWitnesses(t *testing.T, log string) []realWitness {
	t.Helper()
	dir := t.TempDir()
	transparency, lite, agent := filepath.Join(dir, "transparency"), filepath.Join(dir, "litewitness"),
		filepath.Join(dir, "agent")
	var builds errgroup.Group
	builds.Go(func() error { return buildTransparency(t, transparency) })
	builds.Go(func() error {
		folder := filepath.Join("testdata", "witnesses", "litewitness")
		if err := goRun(t, folder, "build", "-trimpath", "-o", lite,
			"filippo.io/torchwood/cmd/litewitness"); err != nil {
			return err
		}
		return goRun(t, folder, "build", "-trimpath", "-o", agent, ".")
	})
	if err := builds.Wait(); err != nil {
		t.Fatal(err)
	}
	told := startTelling(t, 2, transparency, "-log", log)
	socket, database, listen := filepath.Join(dir, "s"), filepath.Join(dir, "db"), daemontest.FreeAddress(t)
	key := startTelling(t, 2, agent, "-log", log, "-db", database, "-socket", socket)
	startTelling(t, 0, lite, "-name", "witness.example/litewitness", "-db", database, "-ssh-agent", socket, "-listen",
		listen, "-key", key[0])
	daemontest.WaitListening(t, listen)
	return []realWitness{{"transparency", told[1], told[0]}, {"litewitness", key[1], "http://" + listen}}
}

// buildTransparency compiles the witness of transparency-dev. It adds the file from testdata that one of its
// dependencies lacks.
func buildTransparency(t *testing.T, program string) error {
	dir := filepath.Join(t.TempDir(), "module")
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata", "witnesses", "transparency"))); err != nil {
		return err
	}
	if err := goRun(t, dir, "mod", "vendor"); err != nil {
		return err
	}
	missing := filepath.Join(dir, "vendor", "github.com", "transparency-dev", "merkle", "proof", "subtree.go")
	if err := os.Rename(filepath.Join(dir, "subtree", "subtree.go"), missing); err != nil {
		return err
	}
	return goRun(t, dir, "build", "-trimpath", "-mod=vendor", "-o", program, ".")
}

func goRun(t *testing.T, dir string, args ...string) error {
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = dir
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s in %s: %w\n%s", strings.Join(args, " "), dir, err, text)
	}
	return nil
}

// startTelling runs a program until the test ends, and returns the first lines that it prints.
func startTelling(t *testing.T, lines int, program string, args ...string) (told []string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		cmd.Stderr = t.Output()
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // returns that it was killed
	})
	in := bufio.NewScanner(stdout)
	for len(told) < lines && in.Scan() {
		told = append(told, in.Text())
	}
	if len(told) < lines {
		t.Fatalf("%s ended: %v", program, in.Err())
	}
	return told
}
